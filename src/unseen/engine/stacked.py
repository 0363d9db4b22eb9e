"""Perceptrons of many clients, members and jobs trained as one batch of models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from unseen.core import Client, Exchange, Inbox, Memories, Memory, Model, Reply, Turn
from unseen.core.exchange import Local, Method
from unseen.core.joint import Ask, OneOf, Several
from unseen.core.losses import CrossEntropy
from unseen.core.parts import Part, Wrapper, able, innermost, layers
from unseen.engine.batch_plan import Answer, Member
from unseen.engine.inprocess import InProcess, Key, key_of, locals_of, single
from unseen.engine.model_batch import Trainer
from unseen.engine.perceptrons import Chain
from unseen.methods.gradient import Backprop, Gradient
from unseen.methods.local.train import FullGradient, Train
from unseen.methods.recipe import Training

#: Why a method has nothing to train in a batch.
NO_STEPS = "its clients do not train by steps"


class Stacked(InProcess):
    """Clients in this process, of whose models those that can train as one batch.

    Note:
        Perceptrons in float32 with parts that are `stackable`, by SGD or Adam. All else runs one
        client after the other.

    Args:
        model: The module that all clients share.
        clients: The clients by name.
        memories: What they remember, from a checkpoint.
        memory_limit: See `InProcess`.
        trainer: Trains the models: a `Trainer` of its own, or one where jobs meet (`Meeting`).
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        memories: Memories | None = None,
        memory_limit: int | None = None,
        trainer: Callable[[Sequence[Member]], list[Answer]] | None = None,
    ) -> None:
        super().__init__(model, clients, memories, memory_limit)
        self.trainer = trainer if trainer is not None else Trainer()

    def _ready(self, exchange: Exchange, asks: Callable[[], list[Ask]]) -> dict[Key, Local]:
        batched: dict[Key, Local] = {}
        if any(isinstance(innermost(one), Train) for one in single(exchange.local)):
            batched = self._batched(asks())
        # Last, since other jobs take their turns while this one waits for its batch: what is large
        # and made before would be held meanwhile.
        return super()._ready(exchange, asks) | batched

    def _batched(self, asks: Sequence[Ask]) -> dict[Key, Local]:
        """Return what stands for the locals that a batch has done the work of."""
        reasons: dict[tuple[int, int], str] = {}
        batch: list[tuple[Ask, Member]] = []
        for ask in asks:
            local, client = ask.exchange.local, self.clients[ask.turn.client]
            key = id(local), id(ask.model)
            if key not in reasons:
                reasons[key] = unbatched(local, ask.model, client)
            if not reasons[key]:
                chain = Chain.of(ask.model.module)
                assert chain is not None  # else there is a reason
                own = ask.model, client, ask.inbox, ask.memory, ask.turn
                batch.append((ask, Member(*own, innermost(local), chain)))
        answers = self.trainer([member for _, member in batch]) if batch else []
        return {
            key_of(ask): replayed(ask.exchange.local, answer)
            for (ask, _), answer in zip(batch, answers, strict=True)
        }


@dataclass(frozen=True)
class Replayed(Part):
    """A training that has happened in a batch, inside the wrappers that look at it.

    Attributes:
        vector: What became of the model [P].
        scalars: What it reports.
        gradient, training: Those of the local that it stands for.
    """

    vector: Tensor
    scalars: Mapping[str, float]
    gradient: Gradient
    training: Training

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        model.vector.copy_(self.vector)
        rows = {"model": model.vector, "buffers": model.buffers}
        rest = {name: v for name, v in memory.items() if not name.startswith("optimiser.")}
        if self.training.buffers == "local":
            rest["buffers"] = model.buffers.clone()
        return Reply(rows, dict(self.scalars)), rest


def replayed(local: Local, answer: Answer) -> Local:
    """Return the local around what has happened."""
    if isinstance(local, Wrapper):
        return cast(Local, local.around(replayed(local.inner, answer)))
    assert isinstance(local, Train)
    return Replayed(*answer, local.gradient, local.training)


def unbatched(local: Local, model: Model, client: Client) -> str:
    """Return why a local cannot train its model in a batch of models, or "".

    Args:
        local: The local, with its wrappers.
        model: What it trains.
        client: Whose data.
    """
    last = innermost(local)
    for part in layers(local):
        if not able(part, "stackable"):
            does = "does not train by steps" if part is last else "does more than train"
            return f"{type(part).__name__} {does}"
    for part in layers(last.gradient):
        if not able(part, "stackable"):
            return f"{type(part).__name__} reads or changes one model at a time"
    if why := unfit(last) or unfit_network(model):
        return why
    if client.train is not None and not isinstance(client.train.x, Tensor):
        return "the images stay on disk"
    return ""


def unfit(train: Train) -> str:
    """Return what of a recipe a batch of models cannot do, or ""."""
    last, recipe, loss = innermost(train.gradient), train.training, train.training.loss
    if not isinstance(last, Backprop) or last.loss != loss:
        return "the gradient has a loss of its own"
    if not able(recipe.optimiser, "stackable"):
        return f"its optimiser is {type(recipe.optimiser).__name__}, neither SGD nor Adam"
    if not able(loss, "stackable") or (isinstance(loss, CrossEntropy) and loss.balanced):
        return "its loss is weighted by each client's own counts"
    for name in ("augment", "keep_optimiser", "sampling"):
        if getattr(recipe, name):
            return f"training.{name} is set"
    return ""


def unfit_network(model: Model) -> str:
    """Return what of a network keeps it from training in a batch, or ""."""
    if not all(parameter.requires_grad for parameter in model.module.parameters()):
        return "frozen weights differ from model to model"
    if Chain.of(model.module) is None or model.precision != "float32" or len(model.buffers):
        return "its network is not a perceptron in float32"
    return ""


def unstackable(method: Method, model: Model, clients: Mapping[str, Client]) -> str:
    """Return why none of a method's models trains in a batch, or "".

    Args:
        method: The method, completed for its network or not.
        model: The study's network.
        clients: Who trains.
    """
    client = next(c for c in clients.values() if c.train is not None)
    trains = [
        local for local in locals_of(method) if isinstance(innermost(local), Train | FullGradient)
    ]
    if not trains:
        return NO_STEPS
    reasons = [unbatched(local, model, client) for local in trains]
    return "" if "" in reasons else reasons[0]


def models_of(method: Method) -> int:
    """Return the most models that a client trains in an exchange of a method."""
    return max(models_in(exchange.local) for exchange in method.exchanges if exchange.slots)


def models_in(local: Local) -> int:
    """Return how many models a local trains at most."""
    if isinstance(local, OneOf):
        return max(map(models_in, local.locals))
    return sum(map(models_of, local.methods)) if isinstance(local, Several) else 1
