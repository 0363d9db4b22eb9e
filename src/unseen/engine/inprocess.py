"""Clients in this process, one after the other, each training in its row of one matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from unseen.core import Backend, Client, DenseRows, Exchange, Inbox, Memories, Model, Reply, Turn
from unseen.core.joint import JointLocal
from unseen.core.replies import finished
from unseen.core.row_store import Rows, keep_freed_memory
from unseen.core.vector import stack
from unseen.errors import UnseenError


class InProcess(Backend):
    """One module, bound in turn to each client's row of a [K, P] matrix.

    Note:
        Nothing is copied into state dicts. The replies' rows are views of the matrix, and live
        until the next exchange.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they remember, from a checkpoint.
        memory_limit: The bytes that the matrix may take in memory; a larger one lies in a file, see
            `unseen.core.row_store.Rows`.
    """

    #: Whether locals that can answer for all clients at once do.
    joint = True

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        memory_limit: int | None = None,
    ) -> None:
        keep_freed_memory()
        self.model = model
        self.clients: dict[str, Client] = {}
        for name, client in clients.items():
            check_types(model, client)
            splits = (s and s.to(model.device) for s in (client.train, client.validation))
            train, validation = splits
            self.clients[name] = replace(client, train=train, validation=validation)
        self.memories = memories if memories is not None else Memories()
        self.memory_limit = memory_limit
        self._hold(1)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        if isinstance(exchange.local, JointLocal) and self.joint:
            return self._together(exchange.local, exchange, inbox, clients, turn)
        places = range(len(clients)) if exchange.slots else [0] * len(clients)
        if len(self.matrix) < max(places, default=0) + 1:
            self._hold(len(clients))
        replies = []
        for name, k in zip(clients, places, strict=True):
            replies.append(self._one(exchange, inbox, name, turn, k))
            self._rows.let_go()
        return replies

    def _hold(self, count: int) -> None:
        self._rows = Rows(count, self.model.vector, self.memory_limit)
        self.matrix = self._rows.matrix
        self.buffers = stack(count, self.model.buffers)

    def _together(
        self,
        local: JointLocal,
        exchange: Exchange,
        inbox: Inbox,
        clients: Sequence[str],
        turn: Turn,
    ) -> list[Reply]:
        """Return the replies of a local that answers for all clients at once."""
        label, here = (turn.round, turn.order), [self.clients[name] for name in clients]
        self._receive(exchange, inbox, 0)
        memories = [self.memories.before(name, label) for name in clients]
        answers = local.answers(self.model, inbox, here, memories, turn)
        for name, (_, memory) in zip(clients, answers, strict=True):
            self.memories.write(name, label, memory)
        return [finished(reply, exchange, inbox, {}) for reply, _ in answers]

    def _receive(self, exchange: Exchange, inbox: Inbox, k: int) -> dict[str, Tensor]:
        """Bind the model to row k of the matrix, as a client receives it, and return the row."""
        vector, buffers = self.matrix[k], self.buffers[k]
        for part in ((None, None),) if exchange.reads is None else exchange.reads:
            vector[slice(*part)].copy_(inbox["model"][slice(*part)])
        buffers.copy_(inbox["buffers"])
        self.model.bind(vector, buffers)
        return {"model": vector, "buffers": buffers}

    def _one(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int) -> Reply:
        label = (turn.round, turn.order)
        turn = replace(turn, client=name)
        own = self._receive(exchange, inbox, k)
        before = self.memories.before(name, label)
        try:
            reply, memory = exchange.local(self.model, inbox, self.clients[name], before, turn)
        except Exception as error:
            error.add_note(f"(at client {name!r}, exchange {turn.exchange!r}, round {turn.round})")
            raise
        self.memories.write(name, label, memory)
        return finished(reply, exchange, inbox, own)

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        matrix = stacked([reply.rows[slot] for reply in replies], self.memory_limit)
        return DenseRows(matrix, reference)


def check_types(model: Model, client: Client) -> None:
    """Refuse data of another floating type than the model's, which no layer takes."""
    expected = model.vector.dtype
    if model.layout.size == 0:  # sums over raw tables have no model
        return
    for split in filter(None, (client.train, client.validation)):
        for label, values in (("inputs", split.x), ("labels", split.y)):
            if values.dtype.is_floating_point and values.dtype != expected:
                kind, own = (str(t).removeprefix("torch.") for t in (values.dtype, expected))
                fault = f"client {client.name!r} has {label} in {kind}; expected {own}."
                raise UnseenError(fault, remedy=f"Give it {label}.to(torch.{own}).")


def stacked(rows: Sequence[Tensor], memory_limit: int | None = None) -> Tensor:
    """Stack rows [P] into one matrix [K, P]: a view of consecutive rows of one matrix, or a copy.

    Args:
        rows: The rows.
        memory_limit: The bytes that a copy may take in memory.
    """
    first, last = rows[0], rows[-1]
    step = rows[1].storage_offset() - first.storage_offset() if len(rows) > 1 else first.numel()
    # Rows between the first and the last of one storage are of it too.
    consecutive = (
        step >= first.numel() > 0
        and last.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and all(
            row.data_ptr() == first.data_ptr() + i * step * first.element_size()
            and row.is_contiguous()
            for i, row in enumerate(rows)
        )
    )
    if consecutive:
        return first.as_strided((len(rows), first.numel()), (step, 1))
    widest = max(rows, key=lambda row: row.element_size())
    matrix = Rows(len(rows), widest, memory_limit).matrix
    for target, row in zip(matrix, rows, strict=True):
        target.copy_(row)
    return matrix
