"""Many models trained as one batch of models: clients of a round, members of an ensemble, sweeps.

Made for GPUs, where a small net's step is a matter of launches; on a CPU one model after the other
is faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from unseen.core import (
    Backend,
    Client,
    DenseRows,
    Exchange,
    Inbox,
    Memories,
    Memory,
    Model,
    Reply,
    Turn,
)
from unseen.core.exchange import Local, Method, Outcome, State
from unseen.core.joint import Ask, Several
from unseen.core.losses import CrossEntropy
from unseen.core.parts import able, innermost, layers
from unseen.core.replies import finished
from unseen.core.round import due, play_round, recipients, sample
from unseen.engine.inprocess import InProcess
from unseen.engine.model_batch import PREFIX, Member, Pool, refuse, train
from unseen.errors import UnseenError
from unseen.gradient import Backprop
from unseen.local.train import Train

CHANGES = "the method changes the network"


class Stacked(Backend):
    """A `Backend` whose clients train as one batch of models; they are evaluated one by one.

    Note:
        For plain back-propagation and the proximal term, by SGD or Adam, on nets without BatchNorm
        and Dropout. Everything else is refused with the reason.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they remember, from a checkpoint.
        graph: See `train`.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        graph: bool = False,
    ) -> None:
        self.model, self.one_by_one = model, InProcess(model, clients, memories)
        self.graph = graph
        self.clients = self.one_by_one.clients
        self.memories = self.one_by_one.memories
        #: Replies of a coming exchange, by its name, from a batch with models of other federations.
        self.ready: dict[str, list[Reply]] = {}
        self._pool: Pool | None = None

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        if exchange.name in self.ready:
            return self.ready.pop(exchange.name)
        if not exchange.slots:
            return self.one_by_one.map(exchange, inbox, clients, turn)
        members = self.members(exchange, inbox, clients, turn)
        matrix, scalars = train(members, self.pool(), self.graph)
        return self.replies(exchange, inbox, clients, turn, matrix, scalars)

    def members(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Member]:
        """Return the models of a batch, of each client in turn."""
        members = []
        for name in clients:
            for ask in self.asked(exchange, inbox, name, turn):
                local = stackable(ask.exchange.local, ask.model)
                members.append(Member(ask.model, local, self.clients[name], ask.inbox, ask.turn))
        return members

    def asked(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn) -> list[Ask]:
        """Return what an exchange asks of a client: one model, or one of each federation."""
        memory = self.memories.before(name, (turn.round, turn.order))
        local, turn = exchange.local, replace(turn, client=name)
        if isinstance(local, Several):
            if any(method.adapt is not None for method in local.methods):
                refuse("they are of different networks")
            return local.asked(self.model, inbox, memory, turn)
        return [Ask(exchange, self.model, inbox, memory, turn)]

    def pool(self) -> Pool:
        if self._pool is None:
            self._pool = pool_of([self])
        return self._pool

    def replies(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn,
        matrix: Tensor, scalars: Sequence[Mapping[str, float]],
    ) -> list[Reply]:  # fmt: skip
        """Return what the clients send of their trained rows; their memories stay as they were."""
        replies, trained = [], zip(matrix, scalars, strict=True)
        for name in clients:
            asks, answers = self.asked(exchange, inbox, name, turn), list[tuple[Reply, Memory]]()
            for ask in asks:
                row, numbers = next(trained)
                rows = {"model": row, "buffers": ask.model.buffers.clone()}
                reply = finished(Reply(rows, dict(numbers)), ask.exchange, ask.inbox, rows)
                answers.append((reply, ask.memory))
            label = (turn.round, turn.order)
            before, local = self.memories.before(name, label), exchange.local
            self.memories.write(name, label, before)
            if isinstance(local, Several):
                own = replace(turn, client=name)
                answers = [local.answered(self.model, inbox, before, own, answers)]
            replies.append(answers[0][0])
        return replies

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        return self.one_by_one.rows(slot, replies, reference)


@dataclass
class Run:
    """One federation of a sweep: a method of any learning rate or μ, its own clients and seed.

    Attributes:
        method: What is played.
        state: Where it stands.
        backend: Where its clients run.
        clients: The roster, by name.
        fraction: The share of the clients that takes part in a round, or how many.
    """

    method: Method
    state: State
    backend: Stacked
    clients: Sequence[str]
    fraction: float | int = 1.0


def play_together(runs: Sequence[Run], rounds: int) -> list[list[Outcome]]:
    """Play every run to `rounds`, all of their clients as one batch of models; move their states.

    Args:
        runs: All of one network; every method has one training exchange in every round.
        rounds: How far.

    Returns:
        Per run the outcomes that `play` would return.
    """
    outcomes: list[list[Outcome]] = [[] for _ in runs]
    pool = pooled(runs)
    while runs and runs[0].state.round < rounds:
        train_together(runs, rounds, pool)
        for run, own in zip(runs, outcomes, strict=True):
            run.state, new = play_round(
                run.method, run.state, run.backend, run.clients, rounds, run.fraction
            )
            own += new
    return outcomes


def pooled(runs: Sequence[Run]) -> Pool | None:
    """Return the training data of all runs' clients; None without runs."""
    return pool_of([run.backend for run in runs]) if runs else None


def pool_of(backends: Sequence[Stacked]) -> Pool:
    """Return the training data of all clients of backends of one device."""
    splits = [c.train for b in backends for c in b.clients.values() if c.train is not None]
    return Pool(splits, backends[0].model.device)


def train_together(runs: Sequence[Run], rounds: int, pool: Pool | None) -> None:
    """Train the clients of every run's next round as one batch; each backend has its replies."""
    if pool is None:
        return
    asked = [_training(run, rounds) for run in runs]
    batches = [run.backend.members(*call) for run, call in zip(runs, asked, strict=True)]
    members = [member for batch in batches for member in batch]
    matrix, scalars = train(members, pool, runs[0].backend.graph)
    at = 0
    for run, call, batch in zip(runs, asked, batches, strict=True):
        part = slice(at, at := at + len(batch))
        replies = run.backend.replies(*call, matrix[part], scalars[part])
        run.backend.ready[call[0].name] = replies


def _training(run: Run, rounds: int) -> tuple[Exchange, Inbox, list[str], Turn]:
    """Return what a run's next round asks of its clients, as `Backend.map` is asked."""
    state, roster, exchanges = run.state, sorted(run.clients), enumerate(run.method.exchanges)
    training = [(i, e) for i, e in exchanges if e.slots and due(e, state.round, rounds)]
    if len(training) != 1:
        refuse(f"{run.method.name} has {len(training)} training exchanges in round {state.round}")
    order, exchange = training[0]
    turn = Turn(state.seed, state.round, rounds, roster=tuple(roster))
    names = recipients(exchange, roster, sample(roster, run.fraction, turn))
    return exchange, state.inbox, names, replace(turn, exchange=exchange.name, order=order)


def unstackable(method: Method, model: Model, clients: Mapping[str, Client]) -> str:
    """Return why the method's models cannot train in a batch with those of other jobs, or ""."""
    training = [exchange for exchange in method.exchanges if exchange.slots]
    if len(training) == 1 and isinstance(local := training[0].local, Several):
        reasons = (
            CHANGES if member.adapt is not None else unstackable(member, model, clients)
            for member in local.methods
        )  # fmt: skip
        ends = "it ends by itself" if method.rounds is not None else ""
        return next(filter(None, reasons), ends)
    if method.adapt is not None:
        return CHANGES
    if len(training) != 1 or training[0].rounds != (0, 1):
        return "it does not have one training exchange in every round"
    if not set(training[0].slots) <= {"model", "buffers"}:
        return "its clients send more than their model"
    module = model.module
    if len(model.buffers) or not all(p.requires_grad for p in module.parameters()):
        return "statistics or frozen weights differ from model to model"
    if any(not isinstance(c.train.x, Tensor) for c in clients.values() if c.train is not None):
        return "the images stay on disk"
    try:
        stackable(training[0].local, model)
    except UnseenError as error:
        return error.what.removeprefix(PREFIX).removesuffix(".")
    return ""


def models_of(method: Method) -> int:
    """Return how many models a client trains in a round of a method that can be stacked."""
    locals = (exchange.local for exchange in method.exchanges if exchange.slots)
    return max(len(local.methods) if isinstance(local, Several) else 1 for local in locals)


def stackable(local: Local, model: Model) -> Train:
    """Return the local, if a batch of models can do its work; else raise the reason."""
    if not able(local, "stackable"):
        refuse(f"{type(local).__name__} does more than train")
    assert isinstance(local, Train)
    for part in layers(local.gradient):
        if not able(part, "stackable"):
            refuse(f"{type(part).__name__} reads or changes one model at a time")
    last, recipe, loss = innermost(local.gradient), local.training, local.training.loss
    assert isinstance(last, Backprop)
    if last.loss != loss:
        refuse("the gradient has a loss of its own")
    if not able(recipe.optimiser, "stackable"):
        refuse(f"its optimiser is {type(recipe.optimiser).__name__}, neither SGD nor Adam")
    if not able(loss, "stackable") or (isinstance(loss, CrossEntropy) and loss.balanced):
        refuse("its loss is weighted by each client's own counts")
    for name in ("keep_optimiser", "augment", "sampling"):
        if getattr(recipe, name):
            refuse(f"training.{name} is set")
    for layer in model.module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            refuse("BatchNorm writes into its statistics")
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            refuse("Dropout draws for one model at a time")
    return local
