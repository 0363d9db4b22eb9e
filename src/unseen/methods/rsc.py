"""RSC: training that takes away the features the prediction leans on most."""

from __future__ import annotations

from typing import Any, Literal

from unseen.combine import Mean
from unseen.core.exchange import Method, Reference
from unseen.core.losses import SquaredError
from unseen.core.parts import Wrapper
from unseen.errors import Incompatible, UnseenError
from unseen.gradient import Backprop, CrossClient, Gradient, Perturbed, SelfChallenging
from unseen.methods.base import asking, citing, federated, with_gradient
from unseen.recipe import Training

REFERENCE = Reference(
    "Huang, Wang, Xing, Huang. Self-Challenging Improves Cross-Domain Generalization. ECCV 2020. "
    "Algorithm 1.",
    """@inproceedings{huang2020rsc,
  title     = {Self-Challenging Improves Cross-Domain Generalization},
  author    = {Huang, Zeyi and Wang, Haohan and Xing, Eric P. and Huang, Dong},
  booktitle = {European Conference on Computer Vision},
  year      = {2020}
}""",
)


def rsc(
    training: Training,
    *,
    drop: float = 1 / 3,
    batch: float = 1 / 3,
    layer: str | None = None,
    score: Literal["gradient", "activation"] = "gradient",
    weights: Literal["examples", "uniform"] = "examples",
) -> Method:
    """FedAvg whose clients mute the features with the largest gradients, and learn without them.

        z ← z ∘ m,   m = 0 on the top `drop` of  G = ∂(logit of y) / ∂z  by pixels or by channels

    for the top `batch` of the examples, those whose probability of y falls most. drop, batch: 1/3
    each as in the paper. Its released code raises the share of the batch from 0.3 over the epochs
    and takes 1/3.2 of the channels, which GA's copy keeps. layer: whose output z is; none for the
    last that gives maps of more than one pixel (a ResNet's last block, or the last pooling of the
    nets for digits), or, in nets without maps, for the head's input, of which only channels can
    go. score: a pixel's, the mean of G over channels, as the paper has it, or the `"activation"`
    Σ_c z_c mean(G_c), as in its released code. weights: see `fedavg`. drop=0 or batch=0 is FedAvg.

    GA's released code never sets the flag that switches its masks on, so that its row RSC is
    FedAvg: this one masks. Which of pixels and channels is drawn once per batch, in equal shares.
    Departs from the released code in that the doubled, flipped batch is left out.
    """
    method = federated("rsc", training, Mean(weights), REFERENCE)
    return challenged(method, drop, batch, layer, score)


def add_rsc(
    method: Method,
    *,
    drop: float = 1 / 3,
    batch: float = 1 / 3,
    layer: str | None = None,
    score: Literal["gradient", "activation"] = "gradient",
) -> Method:
    """Mute features under any method's loss; options as for `rsc`.

    Whatever else the method does to its gradient (a proximal term, mixed images, a mean over
    environments) stays around it; both gradients of a sharpness-aware step are under one mask. Of
    CSAC it is the calibration that is under masks, and not its first round.
    """
    if REFERENCE in method.references:
        raise Incompatible(
            f"{method.name}+rsc", f"{method.name} mutes features already; set its own drop."
        )
    try:
        return citing(challenged(method, drop, batch, layer, score), REFERENCE)
    except UnseenError as error:
        raise Incompatible(f"{method.name}+rsc", f"{error}") from error


def challenged(
    method: Method,
    drop: float,
    batch: float,
    layer: str | None,
    score: Literal["gradient", "activation"],
) -> Method:
    """The method with its innermost loss under RSC's masks."""

    def inside(gradient: Any) -> Gradient:
        if isinstance(gradient, CrossClient):
            raise UnseenError(
                f"a step of {method.name} takes each image in three views, and a mask belongs to "
                "one."
            )
        if isinstance(gradient, Backprop) and isinstance(gradient.loss, SquaredError):
            raise UnseenError("rsc is for classes: it mutes what speaks for an example's own.")
        if not isinstance(gradient, Wrapper) or isinstance(gradient, Perturbed):
            return SelfChallenging(gradient, drop, batch, layer, score)
        around: Gradient = gradient.around(inside(gradient.inner))
        return around

    return asking(with_gradient(method, inside), "classes")
