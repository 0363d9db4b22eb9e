"""CSAC: fusion by semantic divergence, and calibration with each client's own model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from unseen.core import Client, Exchange, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.losses import CrossEntropy
from unseen.core.metrics.evaluation import plain
from unseen.core.parts import Wrapper
from unseen.errors import UnseenError, number
from unseen.methods.base import TRAIN, cited, slots
from unseen.methods.combine import SemanticDivergence
from unseen.methods.gradient.alignment import Projections, attention
from unseen.methods.gradient.backprop import Backprop, Step
from unseen.methods.gradient.discrepancy import mmd, mse
from unseen.methods.images.features import frozen, layer_names, recorded
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Acts, Checked, Count, NotNegative, log, uniform, whole

ALIGNS = Acts(
    "a strategy other than 'none' and lam > 0", lambda o: o["strategy"] != "none" and o["lam"] != 0
)
COMPARES = Acts(
    "a strategy other than 'none', or logits=True", lambda o: o["strategy"] != "none" or o["logits"]
)
ATTENDS = Acts("strategy='cross-layer'", lambda o: o["strategy"] == "cross-layer")
ESTIMATES = Acts("metric='mmd'", lambda o: o["metric"] == "mmd")
SCALED = Acts("lam > 0", lambda o: o["lam"] != 0)


@dataclass(frozen=True)
class Calibration(Checked, named="csac"):
    """g = ∇ [CE + λ Σ_l Σ_m α_lm D(Proj M_l(x), Proj L_m(x))], CSAC's Eqs. 5-11.

    M: the model that is trained, in training mode; L: the client's own model, frozen and in
    evaluation mode, read from its memory (`own.model`, `own.buffers`) and run in the same module.

    Attributes:
        training: the recipe, for its loss, its optimiser and its batches.
        lam: λ.
        layers: R, see `unseen.methods.csac.csac`.
        strategy: `same-layer` has α_lm = 1[l = m], `none` no alignment of maps; `none` with
            `logits=True` leaves λ MMD of the logits, as the released commands do.
        attention: `channel` is the paper's "without (position)", `position` its "without
            (channel)", `none` has α = 1/|R|.
        metric: `mse` compares example by example.
        estimator: see `unseen.methods.gradient.discrepancy.mmd`.
        cross_entropy: False leaves the alignment alone. The sum does not raise the rate of the
            cross-entropy's part: it adds λ times the alignment's own gradient, 0 where the maps
            agree.
        logits: also λ MMD of the two models' logits, whatever the strategy.
        channels: c of the projections, or that of the `smallest` map.
        projections: drawn each round and never sent; trained with the model, or `fixed`.
        attention_gradient: let the gradient through α.

    Note:
        An option that another one switches off is refused where it is not at its default; but
        `layers` may stand beside `strategy="none"`, so that the rows of an ablation read alike.

        The projections are convolutions that are drawn for each client and round, take the steps
        of the training's optimiser and rate on the same loss, weight decay included, and end with
        the exchange.
    """

    training: Training = field(default_factory=Training)
    lam: Annotated[NotNegative, log(0.01, 10), COMPARES] = 0.6
    layers: tuple[str, ...] | None = None
    strategy: Literal["cross-layer", "same-layer", "none"] = "cross-layer"
    attention: Annotated[Literal["both", "position", "channel", "none"], ATTENDS, SCALED] = "both"
    metric: Annotated[Literal["mmd", "mse"], COMPARES, SCALED] = "mmd"
    estimator: Annotated[Literal["unbiased", "biased"], COMPARES, SCALED, ESTIMATES] = "unbiased"
    cross_entropy: bool = True
    logits: Annotated[bool, SCALED] = False
    channels: Annotated[int | Literal["smallest"], ALIGNS] = 32
    projections: Annotated[Literal["trained", "fixed"], ALIGNS] = "trained"
    attention_gradient: Annotated[bool, ATTENDS, SCALED] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels != "smallest":
            number("csac(channels), if not 'smallest',", self.channels, 1, whole=True)
        if not self.compares and not self.cross_entropy:
            raise UnseenError(
                "csac without alignment and without cross-entropy leaves nothing to descend.",
                remedy="Keep cross_entropy=True, or a strategy and lam > 0.",
            )

    @property
    def compares(self) -> bool:
        """Whether the local model plays a part: without, this is plain back-propagation."""
        return self.lam > 0 and (self.strategy != "none" or self.logits)

    @property
    def aligns(self) -> bool:
        """Whether the two models' maps are aligned."""
        return self.lam > 0 and self.strategy != "none"

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        if not self.compares:
            plain = Backprop(self.training.loss)
            with plain.open(model, inbox, client, memory, turn) as step:
                yield step
            return
        optimiser = self.training.optimiser
        rate = optimiser.lr * self.training.schedule(turn.round, turn.rounds)
        loss = self.training.loss.open(model, inbox, client, memory, turn)
        layers, project = self.prepare(model, client)
        weights = model.vector.new_zeros(0)
        if project is not None:
            weights = project.draw(turn.generator("projections"), model.vector)
            weights.requires_grad_(self.projections == "trained")
        moments: dict[str, Tensor] = {}
        own = _own(memory, client)
        with recorded(model.module, (*layers, "")) as take:

            def step(x: Tensor, y: Tensor) -> Tensor:
                nonlocal moments
                model.gradient.zero_()
                weights.grad = None
                theirs = frozen(model, own, x, take)
                value = loss(model, x, y)  # the pass that `take` reads
                align = self.discrepancy(project, weights, take(), theirs)
                value = self.lam * align + (value if self.cross_entropy else 0)
                value.backward()
                if weights.grad is not None:
                    with torch.no_grad():
                        moments = dict(optimiser.step(weights, weights.grad, moments, rate))
                return value.detach()

            yield step

    def discrepancy(
        self,
        project: Projections | None,
        weights: Tensor,
        fused: Sequence[Tensor],
        own: Sequence[Tensor],
    ) -> Tensor:
        """Return what λ multiplies; each list holds the maps of a model and ends in its logits."""
        logits = fused[-1][None], own[-1][None]
        if project is None:
            return self.distance(*logits).sum()
        A = project(weights, "fused", fused[:-1])
        B = project(weights, "own", own[:-1])
        if self.strategy == "same-layer":
            alpha = torch.eye(len(A)).to(A)
        else:
            with torch.set_grad_enabled(self.attention_gradient):
                alpha = attention(A, B, self.attention)
        total = (alpha * self.distance(A.flatten(2), B.flatten(2))).sum()
        if self.logits:
            total = total + self.distance(*logits).sum()
        return total

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D [R, R] of every pair of layers, for features [R, N, D]."""
        return mmd(x, y, self.estimator) if self.metric == "mmd" else mse(x, y)

    def prepare(self, model: Model, client: Client) -> tuple[list[str], Projections | None]:
        """Return the layers and their projections; refuse what could not be calibrated.

        Without alignment of maps there are no layers, and None in place of projections.
        """
        layers = layer_names(model.module, self.layers) if self.aligns else []
        split = client.split("train")
        n, batch = len(split), self.training.batch_size
        rest = 0 if self.training.drop_last else n % batch
        if self.metric == "mmd" and 1 in (n, batch, rest):
            raise UnseenError(
                f"client {client.name!r} has {n} training examples, so that with batch_size = "
                f"{batch} a batch of one occurs, on which CSAC cannot compare distributions.",
                remedy="Set training.drop_last = true, or another batch size.",
            )
        if not self.aligns:
            return [], None
        with recorded(model.module, layers) as take:
            own = model.vector, model.buffers
            maps = frozen(model, own, split.batch(slice(0, 2))[0], take)
        return layers, Projections.of(maps, self.channels)


def _own(memory: Memory, client: Client) -> tuple[Tensor, Tensor]:
    """Return the client's own model, in memory aligned the same way wherever it was read from."""
    if "own.model" not in memory:
        raise UnseenError(
            f"client {client.name!r} has no own model to calibrate with: it took no part in "
            "the first exchange, semantic acquisition, or its memory was lost."
        )
    return memory["own.model"].clone(), memory["own.buffers"].clone()


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
