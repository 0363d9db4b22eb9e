"""Clients in this process, one after the other, each training in its row of one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Reply, Turn
from unseen.core.round import Backend
from unseen.core.row_store import Rows, keep_freed_memory
from unseen.core.rows import DenseRows
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model, stack
from unseen.errors import UnseenError


class InProcess(Backend):
    """One module, bound in turn to each client's row of a [K, P] matrix.

    Nothing is copied into state dicts. The replies' rows are views of the matrix, and live until
    the next exchange.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they keep, from a checkpoint.
        memory_limit: The bytes that the matrix may take in memory; a larger one lies in a file, see
            `unseen.core.row_store.Rows`.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        memory_limit: int | None = None,
    ) -> None:
        keep_freed_memory()
        self.model = model
        for client in clients.values():
            check_types(model, client)
        self.clients = {name: _on(client, model.device) for name, client in clients.items()}
        self.memories = memories if memories is not None else Memories()
        self.memory_limit = memory_limit
        self._hold(1)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Run the exchange's local part at each client, in the order of the names."""
        count = len(clients) if exchange.slots else 1  # an evaluation keeps no row
        if len(self.matrix) < count:
            self._hold(count)
        replies = []
        for i, name in enumerate(clients):
            k = i if exchange.slots else 0
            replies.append(self._one(exchange, inbox, name, turn, k))
            self._rows.let_go()
        return replies

    def _hold(self, count: int) -> None:
        """Allocate rows for `count` clients."""
        self._rows = Rows(count, self.model.vector, self.memory_limit)
        self.matrix = self._rows.matrix
        self.buffers = stack(count, self.model.buffers)

    def _one(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int) -> Reply:
        label = (turn.round, turn.order)
        turn = replace(turn, client=name)
        vector, buffers = self.matrix[k], self.buffers[k]
        vector.copy_(inbox["model"])
        buffers.copy_(inbox["buffers"])
        self.model.bind(vector, buffers)
        memory: Memory = self.memories.before(name, label)
        try:
            reply, memory = exchange.local(self.model, inbox, self.clients[name], memory, turn)
        except Exception as error:
            error.add_note(f"(at client {name!r}, exchange {turn.exchange!r}, round {turn.round})")
            raise
        self.memories.write(name, label, memory)
        return finished(reply, exchange, inbox, {"model": vector, "buffers": buffers})

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        """The slot's rows as a matrix: a view where they still lie side by side."""
        found = stacked([reply.rows[slot] for reply in replies], self.memory_limit)
        return DenseRows(found, reference)


def check_types(model: Model, client: Client) -> None:
    """Refuse data of another floating type than the model's, which no layer takes."""
    expected = model.vector.dtype
    if model.layout.size == 0:  # sums over raw tables have no model
        return
    for split in filter(None, (client.train, client.validation)):
        for label, values in (("inputs", split.x), ("labels", split.y)):
            if values.dtype.is_floating_point and values.dtype != expected:
                found = str(values.dtype).removeprefix("torch.")
                wanted = str(expected).removeprefix("torch.")
                raise UnseenError(
                    f"client {client.name!r} has {label} in {found}, and the model computes in "
                    f"{wanted}: give it {label}.to(torch.{wanted})."
                )


def finished(reply: Reply, exchange: Exchange, inbox: Inbox, own: Mapping[str, Tensor]) -> Reply:
    """Keep the rows of the exchange's slots, and take differences in place.

    This comes after the outermost local, so that what wraps a local still sees the model.

    Args:
        reply: What the local returned.
        exchange: The exchange.
        inbox: What the client received.
        own: Slot -> the tensor that the model is bound to.
    """
    rows = {}
    for name, slot in exchange.slots.items():
        if (row := reply.rows.get(name)) is None:
            continue  # a bad reply, which the round refuses or leaves out
        if row is own.get(name) and slot.sends == "difference":
            row.sub_(inbox[slot.to or name])
        rows[name] = row
    return Reply(rows, reply.scalars)


def stacked(rows: Sequence[Tensor], memory_limit: int | None = None) -> Tensor:
    """Stack rows [P] into one matrix [K, P].

    It is a view where they are consecutive rows of one matrix, else a copy, in memory up to the
    limit.
    """
    first = rows[0]
    step = rows[1].storage_offset() - first.storage_offset() if len(rows) > 1 else first.numel()
    consecutive = step >= first.numel() > 0 and all(
        row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and row.storage_offset() == first.storage_offset() + i * step
        and row.is_contiguous()
        for i, row in enumerate(rows)
    )
    if consecutive:
        return first.as_strided((len(rows), first.numel()), (step, 1))
    matrix = Rows(len(rows), first, memory_limit).matrix
    for target, row in zip(matrix, rows, strict=True):
        target.copy_(row)
    return matrix


def _on(client: Client, device: torch.device) -> Client:
    """The client with its data on the device."""
    train = client.train.to(device) if client.train is not None else None
    validation = client.validation.to(device) if client.validation is not None else None
    return Client(client.name, train, validation, client.classes)
