"""Models of many clients, members and jobs trained as one batch of models.

Made for GPUs, where a small net's step is a matter of launches, and for perceptrons anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from unseen.core import Client, Exchange, Inbox, Memories, Memory, Model, Reply, Turn
from unseen.core.exchange import Local, Method
from unseen.core.joint import OneOf, Several
from unseen.core.losses import CrossEntropy
from unseen.core.parts import Part, able, innermost, layers, rewrapped
from unseen.engine.batch_plan import Member
from unseen.engine.inprocess import InProcess, Key, key_of, locals_of, single
from unseen.engine.model_batch import Trained, Trainer
from unseen.gradient import Backprop, Gradient
from unseen.gradient.mixup import Mixup
from unseen.gradient.shift import Shifted
from unseen.local.train import Train
from unseen.recipe import Training

#: Why a method has nothing to train in a batch.
NO_STEPS = "its clients do not train by steps"


class Stacked(InProcess):
    """Clients in this process, of whose models those that can train as one batch.

    Note:
        Back-propagation with FedProx's, SCAFFOLD's, the site shift's and mixup's changes of it, by
        SGD or Adam, on nets without BatchNorm and Dropout; also inside GA's probe and SCAFFOLD's
        controls. All else, evaluations among it, runs one client after the other.

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
        trainer: Callable[[Sequence[Member]], list[Trained]] | None = None,
    ) -> None:
        super().__init__(model, clients, memories, memory_limit)
        self.trainer = trainer if trainer is not None else Trainer()

    def _ready(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> dict[Key, Local]:
        trained: dict[Key, Local] = {}
        if any(isinstance(innermost(one), Train) for one in single(exchange.local)):
            trained = self._trained(exchange, inbox, clients, turn)
        # Last, since other jobs take their turns while this one waits for its batch: what is large
        # and made before would be held meanwhile.
        return super()._ready(exchange, inbox, clients, turn) | trained

    def _trained(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> dict[Key, Local]:
        """Return what stands for the trainings that were done in a batch."""
        reasons: dict[tuple[int, int], str] = {}
        asks = []
        for ask in self._leaves(exchange, inbox, clients, turn):
            key = id(ask.exchange.local), id(ask.model)
            if key not in reasons:
                client = self.clients[ask.turn.client]
                reasons[key] = unbatched(ask.exchange.local, ask.model, client)
            if not reasons[key]:
                asks.append(ask)
        members = [
            Member(
                ask.model, innermost(ask.exchange.local), self.clients[ask.turn.client], *ask[2:]
            )
            for ask in asks
        ]
        trained = self.trainer(members) if members else []
        return {
            key_of(ask): replayed(ask.exchange.local, after)
            for ask, after in zip(asks, trained, strict=True)
        }


@dataclass(frozen=True)
class Replayed(Part):
    """A training that has happened in a batch, inside the wrappers that look at it.

    Attributes:
        trained: What became of the model.
        gradient, training: Those of the local that it stands for.
    """

    trained: Trained
    gradient: Gradient
    training: Training

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        model.vector.copy_(self.trained.row)
        rows = {"model": model.vector, "buffers": model.buffers}
        return Reply(rows, dict(self.trained.scalars)), forgotten(memory)


def forgotten(memory: Memory) -> Memory:
    """Return the memory as `Train` leaves it where nothing of its optimiser is kept."""
    return {name: value for name, value in memory.items() if not name.startswith("optimiser.")}


def replayed(local: Local, trained: Trained) -> Local:
    """Return the local around a training that has happened."""
    train: Train = innermost(local)
    return rewrapped(local, lambda _: Replayed(trained, train.gradient, train.training))


def unstackable(method: Method, model: Model, clients: Mapping[str, Client]) -> str:
    """Return why none of a method's models trains in a batch, or "".

    Args:
        method: The method, completed for its network or not.
        model: The study's network.
        clients: Who trains.
    """
    client = next(c for c in clients.values() if c.train is not None)
    trains = [local for local in locals_of(method) if isinstance(innermost(local), Train)]
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


def unbatched(local: Local, model: Model, client: Client) -> str:
    """Return why a local cannot train its model in a batch of models, or ""."""
    train = innermost(local)
    for part in layers(local):
        if not able(part, "stackable"):
            return f"{type(part).__name__} does more than train"
    if not isinstance(train, Train):
        return f"{type(train).__name__} does not train by steps"
    for part in layers(train.gradient):
        if not able(part, "stackable"):
            return f"{type(part).__name__} reads or changes one model at a time"
    return unfit(train) or unfit_network(model) or (
        "" if client.train is None or isinstance(client.train.x, Tensor)
        else "the images stay on disk"
    )  # fmt: skip


def unfit(train: Train) -> str:
    """Return what of a recipe a batch of models cannot do, or ""."""
    last, recipe, loss = innermost(train.gradient), train.training, train.training.loss
    if not isinstance(last, Backprop) or last.loss != loss:
        return "the gradient has a loss of its own"
    if not able(recipe.optimiser, "stackable"):
        return f"its optimiser is {type(recipe.optimiser).__name__}, neither SGD nor Adam"
    if not able(loss, "stackable") or (isinstance(loss, CrossEntropy) and loss.balanced):
        return "its loss is weighted by each client's own counts"
    kinds = list(map(type, layers(train.gradient)))
    if Mixup in kinds and not isinstance(loss, CrossEntropy):
        return "mixup of numbers mixes losses, not targets"
    if Mixup in kinds and Shifted in kinds[kinds.index(Mixup) :]:
        return "mixup takes two steps of the shift inside it, of which each draws"
    if recipe.buffers == "local":
        return "training.buffers is 'local'"
    for name in ("keep_optimiser", "augment", "sampling"):
        if getattr(recipe, name):
            return f"training.{name} is set"
    return ""


def unfit_network(model: Model) -> str:
    """Return what of a network keeps it from training in a batch, or ""."""
    module = model.module
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return "BatchNorm writes into its statistics"
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            return "Dropout draws for one model at a time"
    if len(model.buffers) or not all(p.requires_grad for p in module.parameters()):
        return "statistics or frozen weights differ from model to model"
    return ""
