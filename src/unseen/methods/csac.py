"""CSAC: fusion by semantic divergence, and calibration with each client's own model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from unseen.core import Client, Exchange, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.losses import CrossEntropy
from unseen.core.metrics.evaluation import plain
from unseen.core.parts import Wrapper
from unseen.errors import UnseenError
from unseen.methods.base import TRAIN, cited, slots
from unseen.methods.combine import SemanticDivergence
from unseen.methods.gradient import Backprop, Calibration
from unseen.methods.gradient.calibration import COMPARES, SCALED
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Count, uniform, whole


@options_from(Calibration, SemanticDivergence, without=("training", "prior"))
def csac(
    training: Training,
    *,
    acquisition: Annotated[Count, whole(5, 30)] = 30,
    smoothing: Annotated[float, uniform(0, 0.2)] = 0.1,
    layers: Sequence[str] | None = None,
    local: Annotated[Literal["acquired", "latest"], COMPARES, SCALED] = "acquired",
    **options: Any,
) -> Method:
    """Fuse layers by their distance from the average; align the fused model with local ones.

        round 0:  G_i ← argmin CE with smoothed labels, from x        every client, and it keeps G_i
        server:   x_l ← Σ_i c_il y_il,   c_il ∝ dist(y_il, ȳ_l)                       Eqs. 3-4
        round r:  y_i ← argmin CE(y) + λ Σ_l Σ_m α_lm MMD(Proj y_l(D_i), Proj G_{i,m}(D_i))  Eq. 11

    y_l, G_m: feature maps of layers in R; α: attention, Eqs. 7-9; c: of each tensor.

    Args:
        training: The recipe.
        acquisition: epochs of round 0, 30 in the paper, whatever the training sets for the later
            rounds, of which the paper has 40 (so rounds = 41) with 5 epochs (RotatedMNIST) or 10.
        smoothing: α of round 0's labels, α/C for each of C classes; 0 is the ablation. The later
            rounds take the training's own loss.
        layers: R, by the names of the model's parts; none for its last two convolutions (MNIST);
            the paper takes the last three convolutions of AlexNet and the last three blocks of
            ResNet-18, ["layer2", "layer3", "layer4"].
        local: G_i stays what round 0 made of it, or is the client's `latest` model.
        **options: The other options of the page.

    Note:
        The released commands compute no cross-layer alignment. In their mode, "alpha", the
        attention module returns an empty list of target maps, and the loss sums over that list: no
        feature map is aligned, and projections and attention receive no gradient. What those
        commands run is the fusion by distance, the cross-entropy and λ MMD of the logits: here
        `csac(strategy="none", logits=True, smoothing=0)`. The default computes Eq. 11 as printed.

        Where the paper is silent, choices follow the code that would run in the other modes: G_i is
        never updated (the paper's Remark can be read either way), gradients stop at α, α is one
        number per batch, and the projections have 32 channels. The paper's appendix, which
        describes Proj, was not available.

        The paper trains with sgd(lr=0.01, momentum=0.5), AlexNet at 0.001.

    Departs from:
        the released code, which sums no aligned maps (see the note), always adds the logits' term,
        parses label smoothing without using it, sends features through random 1×1 convolutions
        before position attention, sums all pairs with weight 1 where attention is off, counts
        epochs of 60 and 20 batches, lets a client at distance 0 replace the whole sum of a layer,
        and fuses BatchNorm statistics by distances of their own where here they are averaged.
    """
    calibration = Calibration(training, layers=named(layers), **picked(Calibration, options))
    first = replace(training, loss=smoothed(training, smoothing), epochs=acquisition, steps=None)
    acquire: Local = Train(Backprop(first.loss), first)
    calibrate: Local = Train(calibration, training)
    if calibration.compares:
        acquire = Keep(acquire, calibration)
        calibrate = Keep(calibrate, calibration) if local == "latest" else calibrate
    rule = SemanticDivergence(**picked(SemanticDivergence, options))
    server = slots(rule, training.server)
    exchanges = (
        Exchange("acquire", acquire, server, rounds=(0, 0), who="all"),
        Exchange(TRAIN, calibrate, server, rounds=(1, 1)),
    )
    asks: tuple[str, ...] = ("classes", "images") if calibration.aligns else ("classes",)
    if calibration.aligns and layers is None:
        asks = (*asks, "convolutions")
    return Method("csac", exchanges, (cited("yuan2021collaborative"),), plain, asks=asks)


@dataclass(frozen=True)
class Keep(Wrapper):
    """Runs another local and keeps the model that it leaves in the client's memory.

    Note:
        What calibration would refuse is refused before the first epoch.
    """

    inner: Local
    calibration: Calibration

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        self.calibration.prepare(model, client)
        reply, memory = self.inner(model, inbox, client, memory, turn)
        own = {"own.model": model.vector.clone(), "own.buffers": model.buffers.clone()}
        return reply, {**memory, **own}


def named(layers: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return layer names as a tuple; a single name may be given as it is."""
    return (layers,) if isinstance(layers, str) else None if layers is None else tuple(layers)


def smoothed(training: Training, smoothing: float) -> CrossEntropy:
    """Return the training's loss with smoothed labels (Eq. 2)."""
    if not isinstance(training.loss, CrossEntropy):
        raise UnseenError(
            "csac is for classes, whose labels it smooths; the loss of this training is "
            f"{type(training.loss).__name__}."
        )
    return replace(training.loss, smoothing=smoothing)


@options_from(SemanticDivergence, without=("prior",))
def add_csac(method: Method, **options: Any) -> Method:
    """Put CSAC's aggregation alone on any method that averages; its weights become the prior.

    Note:
        Eq. 4 as printed is `fedavg(weights="uniform")+csac`.
    """
    return replace_rule(method, "csac", "yuan2021collaborative", SemanticDivergence, options)
