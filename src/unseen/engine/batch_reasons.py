"""Why a model cannot take part in a batch of models: said where a study starts."""

import math

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Model
from unseen.core.exchange import Local
from unseen.core.losses import CrossEntropy, Loss
from unseen.core.parts import able, innermost, layers
from unseen.engine.batch_layers import traced, unfit_layers
from unseen.engine.batch_plan import example_of
from unseen.engine.perceptrons import Chain
from unseen.methods.gradient import Backprop, Fishr
from unseen.methods.gradient.amplitude import AmplitudeMix
from unseen.methods.gradient.fishr import HeadCovariance
from unseen.methods.gradient.heads import head_layer
from unseen.methods.gradient.mixup import Mixup
from unseen.methods.gradient.shift import Shifted
from unseen.methods.local.in_parts import LARGE
from unseen.methods.local.train import FullGradient, Measure, Penalised, Train


def unbatched(local: Local, model: Model, client: Client, always: bool = False) -> str:
    """Return why a local cannot meet its model in a batch of models, or should not, or "".

    Args:
        local: The local, with its wrappers.
        model: What it trains or measures.
        client: Whose data.
        always: Whether a batch is made where it takes longer, too.
    """
    last = innermost(local)
    for part in layers(local):
        if not able(part, "stackable"):
            if part is last:
                return f"{type(part).__name__} does not train by steps"
            return f"{type(part).__name__} does more than train"
    if isinstance(last, Train | FullGradient):
        for part in layers(last.gradient):
            if not able(part, "stackable"):
                return f"{type(part).__name__} reads or changes one model at a time"
    unable = (unfit(last, model) if isinstance(last, Train) else "") or unfit_network(model)
    if not unable and not isinstance(last, Train):
        unable = unfit_whole(local, model)
    if not unable and not always and slower(model):
        return "on a CPU its network trains faster alone"
    if unable or client.train is None:
        return unable
    if not isinstance(client.train.x, Tensor):
        return "the images stay on disk"
    if isinstance(last, Train) and Chain.of(model.module) is None:
        return traced(model, example_of(client, last.training)).unfit
    return ""


def slower(model: Model) -> bool:
    """Return whether a batch of such models takes longer than one after the other."""
    perceptron = model.precision == "float32" and Chain.of(model.module) is not None
    return model.device.type == "cpu" and not perceptron


def unfit(train: Train, model: Model) -> str:
    """Return what of a recipe a batch of models cannot do, or ""."""
    last, recipe, loss = innermost(train.gradient), train.training, train.training.loss
    if not isinstance(last, Backprop) or last.loss != loss:
        return "the gradient has a loss of its own"
    if not able(recipe.optimiser, "stackable"):
        return f"its optimiser is {type(recipe.optimiser).__name__}, neither SGD nor Adam"
    if unable := unfit_loss(loss):
        return unable
    kinds = list(map(type, layers(train.gradient)))
    if Mixup in kinds and not isinstance(loss, CrossEntropy):
        return "mixup of numbers mixes losses, not targets"
    if Mixup in kinds and contains(model, _BatchNorm, nn.modules.dropout._DropoutNd):
        return "mixup passes every batch twice, of which BatchNorm and Dropout take notice"
    if Mixup in kinds and {Shifted, AmplitudeMix} & {*kinds[kinds.index(Mixup) :]}:
        return "mixup takes two steps of the shift or of AM inside it, of which each draws"
    if any(getattr(part, "bank", None) is not None for part in layers(train.gradient)):
        return "the amplitudes of a bank are mixed into one model's images at a time"
    if recipe.augment is not None and not getattr(recipe.augment, "stackable", False):
        return "training.augment changes the images of one model at a time"
    for name in ("keep_optimiser", "sampling"):
        if getattr(recipe, name):
            return f"training.{name} is set"
    return ""


def unfit_loss(loss: Loss) -> str:
    """Return why a batch of models cannot have a loss, or ""."""
    if not able(loss, "stackable") or (isinstance(loss, CrossEntropy) and loss.balanced):
        return "its loss is weighted by each client's own counts"
    return ""


def unfit_whole(local: Local, model: Model) -> str:
    """Return what keeps a gradient or a statistic of whole splits out of a batch, or ""."""
    last, penalties = innermost(local), penalties_of(local)
    chain = Chain.of(model.module)
    if chain is None or chain.drops or model.precision != "float32":
        return "its network is no perceptron in float32"
    if any(one.chunk is not None for one in (last, *penalties)):
        return "chunk is set"
    if isinstance(last, Measure):
        return unfit_statistic(last.statistic, model)
    assert isinstance(last, FullGradient)
    if not isinstance(last.gradient, Backprop):
        return f"{type(last.gradient).__name__} changes steps of training"
    if len(penalties) > 1:
        return "it has two penalties"
    for penalty in (one.penalty for one in penalties):
        if not isinstance(penalty, Fishr):
            return f"{type(penalty).__name__} is a penalty of one model at a time"
        if unable := unfit_statistic(penalty.statistic, model, last.gradient.loss):
            return unable
    return unfit_loss(last.gradient.loss)


def unfit_statistic(statistic: object, model: Model, loss: Loss | None = None) -> str:
    """Return why a batch of perceptrons cannot have a statistic, or "".

    Args:
        statistic: What is measured.
        model: A perceptron.
        loss: That of the gradient beside it.
    """
    if not isinstance(statistic, HeadCovariance):
        return f"{type(statistic).__name__} is measured of one model at a time"
    if statistic.covariance != "diagonal":
        return f"covariance is {statistic.covariance!r}"
    chain = Chain.of(model.module)
    assert chain is not None
    head = chain.layers[-1]
    if head.rectified or head.weight != f"{head_layer(model, statistic.head)[0]}.weight".lstrip(
        "."
    ):
        return "the head is not the last layer"
    if loss is not None and statistic.loss != loss:
        return "the statistic has a loss of its own"
    return unfit_loss(statistic.loss)


def penalties_of(local: Local) -> list[Penalised]:
    """Return the wrappers that add a penalty's gradient."""
    return [part for part in layers(local) if isinstance(part, Penalised)]


def unfit_network(model: Model) -> str:
    """Return what of a network keeps it from training in a batch, or ""."""
    if not all(parameter.requires_grad for parameter in model.module.parameters()):
        return "frozen weights differ from model to model"
    return unfit_layers(model.module)


def contains(model: Model, *kinds: type[nn.Module]) -> bool:
    """Return whether a network has a layer of one of these kinds."""
    return any(isinstance(layer, kinds) for layer in model.module.modules())


def in_one_pass(client: Client) -> bool:
    """Return whether a client's training split is small enough to pass as a whole."""
    return math.prod(client.split("train").x.shape) <= LARGE
