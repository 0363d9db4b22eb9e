"""RSC: training that takes away the features the prediction leans on most."""

from typing import Any

from unseen.core import Method
from unseen.core.losses import SquaredError
from unseen.core.parts import Wrapper
from unseen.errors import Incompatible, UnseenError
from unseen.methods.base import asking, cited, citing, incompatible, with_gradient
from unseen.methods.gradient import Backprop, CrossClient, Gradient, Perturbed, SelfChallenging
from unseen.methods.options import options_from


@options_from(SelfChallenging)
def add_rsc(method: Method, **options: Any) -> Method:
    """Mute the features with the largest gradients while clients learn.

        z ← z ∘ m,   m = 0 on the top `drop` of  G = ∂(logit of y) / ∂z  by pixels or by channels

    for the top `batch` of the examples, those whose probability of y falls most. drop=0 or batch=0
    is FedAvg.

    Note:
        GA's released code never sets the flag that switches its masks on, so that its row RSC is
        FedAvg: this one masks. Which of pixels and channels is drawn once per batch, in equal
        shares.

        Whatever else the method does to its gradient (a proximal term, mixed images, a mean over
        environments) stays around it; both gradients of a sharpness-aware step are under one mask.
        Of CSAC it is the calibration that is under masks, and not its first round.

    Departs from:
        the released code in that the doubled, flipped batch is left out.
    """
    if cited("huang2020rsc") in method.references:
        raise incompatible(method, "rsc", "mutes features already.", "Set its own drop.")
    try:
        return citing(challenged(method, options), "huang2020rsc")
    except Incompatible:
        raise
    except UnseenError as error:
        raise Incompatible(f"{method.name}+rsc", f"{error}") from error


def challenged(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with its innermost loss under RSC's masks."""

    def inside(gradient: Any) -> Gradient:
        if isinstance(gradient, CrossClient):
            step = f"a step of {method.name} takes each image in three views"
            raise UnseenError(f"{step}, and a mask belongs to one.")
        if isinstance(gradient, Backprop) and isinstance(gradient.loss, SquaredError):
            raise UnseenError("rsc is for classes: it mutes what speaks for an example's own.")
        if not isinstance(gradient, Wrapper) or isinstance(gradient, Perturbed):
            return SelfChallenging(gradient, **options)
        around: Gradient = gradient.around(inside(gradient.inner))
        return around

    return asking(with_gradient(method, inside), "classes")
