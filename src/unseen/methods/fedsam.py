"""FedSAM: local steps that look for flat minima."""

from typing import Any

from unseen.core import Method
from unseen.core.parts import Wrapper
from unseen.errors import Incompatible, UnseenError
from unseen.methods.base import incompatible, with_gradient
from unseen.methods.gradient import Backprop, Gradient, Perturbed
from unseen.methods.options import options_from


@options_from(Perturbed)
def add_fedsam(method: Method, **options: Any) -> Method:
    """Step by the gradient at the worst point nearby.

    ε = ρ ∇L(w) / ‖∇L(w)‖,   w ← w − η ∇L(w + ε)          on each batch, two passes

    Note:
        Momentum and weight decay act on ∇L(w + ε). Twice the cost of FedAvg on the clients.

        The loss alone is perturbed: what a method adds to its gradient, such as a proximal term or
        SCAFFOLD's correction, stays as it is at w.
    """
    name = f"{method.name}+fedsam"

    def inside(gradient: Any) -> Gradient:
        if isinstance(gradient, Perturbed):
            why = "perturbs its weights already."
            raise incompatible(method, "fedsam", why, "Set its own radius.")
        if isinstance(gradient, Backprop):
            return Perturbed(gradient, **options)
        if not isinstance(gradient, Wrapper):
            raise Incompatible(
                name,
                f"a step of {method.name} does more than take the gradient of a loss, and FedSAM "
                "would do it twice per batch.",
            )
        try:
            changed: Gradient = gradient.around(inside(gradient.inner))
        except Incompatible:
            raise
        except UnseenError as error:
            raise Incompatible(name, f"{error}") from error
        return changed

    return with_gradient(method, inside, "qu2022fedsam")
