"""Models of many clients, members and jobs trained as one batch of models.

Made for GPUs, where a small net's step is a matter of launches, and for perceptrons anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Exchange, Inbox, Memories, Memory, Model, Reply, Split, Turn
from unseen.core.exchange import Local, Method
from unseen.core.joint import Ask, OneOf, Several
from unseen.core.metrics.evaluation import EVALUATION_BATCH, Evaluate, forward, plain
from unseen.core.parts import Part, Wrapper, innermost
from unseen.engine.batch_plan import Answer, Examinee, Member, Trainee
from unseen.engine.batch_reasons import contains, in_one_pass, penalties_of, unbatched
from unseen.engine.inprocess import Given, InProcess, Key, key_of, locals_of, single
from unseen.engine.model_batch import Trainer
from unseen.methods.gradient import Gradient
from unseen.methods.local.train import FullGradient, Measure, Penalised, Train
from unseen.methods.recipe import Training

#: What meets models, of which a batch may be made.
KINDS = Train, FullGradient, Measure
#: Why a method has nothing to train in a batch.
NO_STEPS = "its clients do not train by steps"


class Stacked(InProcess):
    """Clients in this process, of whose models those that can train as one batch.

    Note:
        Back-propagation with FedProx's, SCAFFOLD's, the site shift's and mixup's changes of it, by
        SGD or Adam, with BatchNorm, Dropout and augmented images; also inside GA's probe and
        SCAFFOLD's controls. Of perceptrons also one gradient over the whole split, the variances of
        the head's gradients, and Fishr's penalty on them. Splits of few rows are evaluated in one
        pass. All else runs one client after the other.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they remember, from a checkpoint.
        memory_limit: See `InProcess`.
        trainer: Trains the models: a `Trainer` of its own, or one where jobs meet (`Meeting`).
        always: Whether batches are made where they take longer, too: on a CPU, of all networks but
            perceptrons in float32.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        memory_limit: int | None = None,
        trainer: Callable[[Sequence[Member]], list[Answer]] | None = None,
        always: bool = False,
    ) -> None:
        super().__init__(model, clients, memories, memory_limit)
        self.always = always
        self.trainer = trainer if trainer is not None else Trainer()

    def _ready(self, exchange: Exchange, asks: Callable[[], list[Ask]]) -> dict[Key, Local]:
        if isinstance(exchange.local, Evaluate):
            return self._evaluated(exchange.local, asks())
        batched: dict[Key, Local] = {}
        if any(isinstance(innermost(one), KINDS) for one in single(exchange.local)):
            batched = self._batched(asks())
        # Last, since other jobs take their turns while this one waits for its batch: what is large
        # and made before would be held meanwhile.
        return super()._ready(exchange, asks) | batched

    def _evaluated(self, local: Evaluate, asks: Sequence[Ask]) -> dict[Key, Local]:
        """Return the scores of small splits, several of which pass through the network at once."""
        # BatchNorm without statistics of its own would mix the clients' rows.
        if local.predict is not plain or contains(self.model, _BatchNorm):
            return {}
        scored: dict[Key, Local] = {}
        for group in self._passes(local.split, asks):
            here = [self.clients[ask.turn.client] for ask in group]
            inputs = [client.split(local.split).batch(slice(None))[0] for client in here]
            sizes = list(map(len, inputs))
            outputs = forward(self.model, Split(torch.cat(inputs), torch.zeros(sum(sizes))))
            parts = outputs.split(sizes)
            for ask, client, own in zip(group, here, parts, strict=True):
                scored[key_of(ask)] = Given(local.scored(own, client, ask.turn))
        return scored

    def _passes(self, split: str, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
        """Yield asks whose rows, of one shape and type, one pass takes together."""
        group: list[Ask] = []
        rows, form = 0, None
        for ask in asks:
            own = self.clients[ask.turn.client].split(split)
            apart = "buffers" in ask.memory or not isinstance(own.x, Tensor)
            if apart or not 0 < len(own) < EVALUATION_BATCH:
                continue
            alike = form == (form := (own.x.shape[1:], own.x.dtype))
            if group and not (alike and rows + len(own) <= EVALUATION_BATCH):
                if len(group) > 1:
                    yield group
                group, rows = [], 0
            group, rows = [*group, ask], rows + len(own)
        if len(group) > 1:
            yield group

    def _batched(self, asks: Sequence[Ask]) -> dict[Key, Local]:
        """Return what stands for the locals that a batch has done the work of."""
        reasons: dict[tuple[int, int], str] = {}
        batch: list[tuple[Ask, Member]] = []
        for ask in asks:
            local, client = ask.exchange.local, self.clients[ask.turn.client]
            key = id(local), id(ask.model)
            if key not in reasons:
                reasons[key] = unbatched(local, ask.model, client, self.always)
            if not reasons[key] and (member := member_of(ask, client)) is not None:
                batch.append((ask, member))
        answers = self.trainer([member for _, member in batch]) if batch else []
        return {
            key_of(ask): replayed(ask.exchange.local, answer, ask.inbox)
            for (ask, _), answer in zip(batch, answers, strict=True)
        }


def member_of(ask: Ask, client: Client) -> Member | None:
    """Return what a batch needs to know of an ask, or None where the split is too large for it."""
    last, own = innermost(ask.exchange.local), (client, ask.inbox, ask.memory, ask.turn)
    if isinstance(last, Train):
        return Trainee(ask.model, *own, last)
    if not in_one_pass(client):
        return None
    return Examinee(ask.model, *own, last, next(iter(penalties_of(ask.exchange.local)), None))


@dataclass(frozen=True)
class Replayed(Part):
    """A training that has happened in a batch, inside the wrappers that look at it.

    Attributes:
        vector, buffers: What became of the model [P] and [B].
        scalars: What it reports.
        gradient, training: Those of the local that it stands for.
    """

    vector: Tensor
    buffers: Tensor
    scalars: Mapping[str, float]
    gradient: Gradient
    training: Training

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        model.vector.copy_(self.vector)
        model.buffers.copy_(self.buffers)
        rows, rest = {"model": model.vector, "buffers": model.buffers}, dict(forgotten(memory))
        if self.training.buffers == "local":
            rest["buffers"] = self.buffers.clone()
        return Reply(rows, dict(self.scalars)), rest


def forgotten(memory: Memory) -> Memory:
    """Return the memory as `Train` leaves it where nothing of its optimiser is kept."""
    return {name: value for name, value in memory.items() if not name.startswith("optimiser.")}


def replayed(local: Local, answer: Answer, inbox: Inbox) -> Local:
    """Return the local around what has happened, in which its penalty is."""
    if isinstance(local, Penalised):
        return replayed(local.inner, answer, inbox)
    if isinstance(local, Wrapper):
        return cast(Local, local.around(replayed(local.inner, answer, inbox)))
    rows, scalars = answer
    if isinstance(local, Train):
        vectors = rows["model"], rows["buffers"]
        return Replayed(*vectors, scalars, local.gradient, local.training)
    return Given(Reply({"buffers": inbox["buffers"], **rows}, scalars))  # buffers: there are none


def unstackable(
    method: Method, model: Model, clients: Mapping[str, Client], always: bool = False
) -> str:
    """Return why none of a method's models trains in a batch, or "".

    A method that only measures in a batch trains one model after the other.

    Args:
        method: The method, completed for its network or not.
        model: The study's network.
        clients: Who trains.
        always: As of `Stacked`.
    """
    client = next(c for c in clients.values() if c.train is not None)
    trains = [
        local for local in locals_of(method) if isinstance(innermost(local), Train | FullGradient)
    ]
    if not trains:
        return NO_STEPS
    reasons = [unbatched(local, model, client, always) for local in trains]
    return "" if "" in reasons else reasons[0]


def models_of(method: Method) -> int:
    """Return the most models that a client trains in an exchange of a method."""
    return max(models_in(exchange.local) for exchange in method.exchanges if exchange.slots)


def models_in(local: Local) -> int:
    """Return how many models a local trains at most."""
    if isinstance(local, OneOf):
        return max(map(models_in, local.locals))
    return sum(map(models_of, local.methods)) if isinstance(local, Several) else 1
