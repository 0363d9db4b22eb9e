"""CSAC: fusion by semantic divergence, and calibration with each client's own model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unseen.combine import SemanticDivergence
from unseen.core.client import Client
from unseen.core.exchange import Exchange, Local, Method, Reference, Reply, Turn
from unseen.core.losses import CrossEntropy
from unseen.core.metrics import plain
from unseen.core.parts import Wrapper
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Blocks, Model
from unseen.errors import UnseenError, choice, number
from unseen.gradient import Backprop, Calibration
from unseen.local.train import Train
from unseen.methods.base import TRAIN, slots
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Yuan, Ma, Chen, Kuang, Wu, Lin. Collaborative Semantic Aggregation and Calibration for "
    "Separated Domain Generalization. 2021. Eqs. 1-11.",
    """@article{yuan2021collaborative,
  title   = {Collaborative Semantic Aggregation and Calibration for Separated Domain
             Generalization},
  author  = {Yuan, Junkun and Ma, Xu and Chen, Defang and Kuang, Kun and Wu, Fei and
             Lin, Lanfen},
  journal = {arXiv preprint arXiv:2110.06736},
  year    = {2021}
}""",
)


def csac(
    training: Training,
    *,
    acquisition: int = 30,
    smoothing: float = 0.1,
    lam: float = 0.6,
    layers: Sequence[str] | None = None,
    strategy: Literal["cross-layer", "same-layer", "none"] = "cross-layer",
    attention: Literal["both", "position", "channel", "none"] = "both",
    metric: Literal["mmd", "mse"] = "mmd",
    estimator: Literal["unbiased", "biased"] = "unbiased",
    cross_entropy: bool = True,
    logits: bool = False,
    local: Literal["acquired", "latest"] = "acquired",
    channels: int | Literal["smallest"] = 32,
    projections: Literal["trained", "fixed"] = "trained",
    attention_gradient: bool = False,
    distance: Literal["l2", "l1", "cosine"] = "l2",
    favour: Literal["divergent", "similar", "uniform"] = "divergent",
    blocks: Blocks = "tensor",
) -> Method:
    """Fuse layers by their distance from the average; align the fused model with local ones.

        round 0:  G_i ← argmin CE with smoothed labels, from x        every client, and it keeps G_i
        server:   x_l ← Σ_i c_il y_il,   c_il ∝ dist(y_il, ȳ_l)                       Eqs. 3-4
        round r:  y_i ← argmin CE(y) + λ Σ_l Σ_m α_lm MMD(Proj y_l(D_i), Proj G_i,m(D_i))  Eq. 11

    y_l, G_m: feature maps of layers in R; α: attention, Eqs. 7-9; c: of each tensor.

    Stage 1. acquisition: epochs of round 0, 30 in the paper, whatever the training sets for the
    later rounds, of which the paper has 40 (so rounds = 41) with 5 epochs (RotatedMNIST) or 10.
    smoothing: α of its labels, α/C for each of C classes (0: the ablation); the later rounds take
    the training's own loss. The paper trains with sgd(lr=0.01, momentum=0.5), AlexNet at 0.001.

    Stage 2. lam: λ. layers: R, by the names of the model's parts; none for its last two
    convolutions (MNIST); the paper takes the last three convolutions of AlexNet and the last
    three blocks of ResNet-18, ["layer2", "layer3", "layer4"]. strategy: `same-layer` has α_lm =
    1[l = m], `none` no alignment. attention: `channel` is the paper's "without (position)",
    `position` its "without (channel)", `none` has α = 1/|R|. metric: `mse` compares example by
    example. estimator: see `unseen.gradient.discrepancy.mmd`. cross_entropy=False leaves the
    alignment alone; the sum does not raise the rate of the cross-entropy's part, it adds λ
    times the alignment's own gradient, 0 where the maps agree. logits: also λ MMD of the two
    models' logits. local: G_i stays what round 0 made of it, or is the client's `latest` model.
    channels: c of the projections, or that of the `smallest` map; they are drawn anew each round,
    trained with the model unless `fixed`, and never sent. attention_gradient: let the gradient
    through α.

    Server. distance, favour, blocks: see `unseen.combine.SemanticDivergence`.

    Departs from the released code, which always adds the logits' term, parses label smoothing
    without using it, sends features through random 1×1 convolutions before position attention,
    sums all pairs with weight 1 where attention is off, counts epochs of 60 and 20 batches, and
    fuses BatchNorm statistics by distances of their own where here they are averaged. As
    released: G_i is never updated (the paper's Remark can be read either way), gradients stop at
    α, α is one number per batch, 32 channels, kernels of the projections and of the MMD. The
    paper's appendix, which describes Proj, was not to be had.
    """
    number("csac(acquisition)", acquisition, 1, whole=True)
    choice("csac(local)", local, ("acquired", "latest"))
    calibration = Calibration(
        training=training, lam=lam, layers=named(layers), strategy=strategy, attention=attention,
        metric=metric, estimator=estimator, cross_entropy=cross_entropy, logits=logits,
        channels=channels, projections=projections, attention_gradient=attention_gradient,
    )  # fmt: skip
    first = replace(training, loss=smoothed(training, smoothing), epochs=acquisition, steps=None)
    acquire: Local = Train(Backprop(first.loss), first)
    calibrate: Local = Train(calibration, training)
    if calibration.aligns:
        acquire = Keep(acquire, calibration)
        calibrate = Keep(calibrate, calibration) if local == "latest" else calibrate
    server = slots(SemanticDivergence(distance, favour, blocks), training.server, training)
    exchanges = (
        Exchange("acquire", acquire, server, rounds=(0, 0), who="all"),
        Exchange(TRAIN, calibrate, server, rounds=(1, 1)),
    )
    asks: tuple[str, ...] = ("classes", "images") if calibration.aligns else ("classes",)
    if calibration.aligns and layers is None:
        asks = (*asks, "convolutions")
    return Method("csac", exchanges, (REFERENCE,), plain, asks=asks)


@dataclass(frozen=True)
class Keep(Wrapper):
    """Runs another local and keeps the model that it leaves in the client's memory.

    What calibration would refuse is refused before the first epoch.
    """

    inner: Local
    calibration: Calibration

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The other local's reply, and its memory with `own.model` and `own.buffers`."""
        self.calibration.prepare(model, client)
        reply, memory = self.inner(model, inbox, client, memory, turn)
        own = {"own.model": model.vector.clone(), "own.buffers": model.buffers.clone()}
        return reply, {**memory, **own}


def named(layers: Sequence[str] | None) -> tuple[str, ...] | None:
    """Layer names as a tuple; one name may stand alone."""
    return (layers,) if isinstance(layers, str) else None if layers is None else tuple(layers)


def smoothed(training: Training, smoothing: float) -> CrossEntropy:
    """The training's loss with smoothed labels (Eq. 2)."""
    if not isinstance(training.loss, CrossEntropy):
        raise UnseenError(
            "csac is for classes, whose labels it smooths; the loss of this training is "
            f"{type(training.loss).__name__}."
        )
    return replace(training.loss, smoothing=smoothing)


def add_csac(
    method: Method,
    *,
    distance: Literal["l2", "l1", "cosine"] = "l2",
    favour: Literal["divergent", "similar", "uniform"] = "divergent",
    blocks: Blocks = "tensor",
) -> Method:
    """CSAC's aggregation alone on any method that averages; its weights become the prior.

    The options are those of `unseen.combine.SemanticDivergence`. Eq. 4 as printed is
    `fedavg(weights="uniform")+csac`.
    """
    return replace_rule(
        method, "csac", REFERENCE, lambda prior: SemanticDivergence(distance, favour, blocks, prior)
    )
