"""FedSAM: local steps that look for flat minima."""

from __future__ import annotations

from typing import Any, Literal

from unseen.combine import Mean
from unseen.core.exchange import Method, Reference
from unseen.core.parts import Wrapper
from unseen.errors import Incompatible, UnseenError
from unseen.gradient import Backprop, Gradient, Perturbed
from unseen.local.train import Train
from unseen.methods.base import citing, federated, with_gradient
from unseen.recipe import Training

REFERENCE = Reference(
    "Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. "
    "ICML 2022. Algorithm 1.",
    """@inproceedings{qu2022fedsam,
  title     = {Generalized Federated Learning via Sharpness Aware Minimization},
  author    = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  booktitle = {International Conference on Machine Learning},
  year      = {2022}
}""",
)


def fedsam(
    training: Training, *, rho: float = 0.05, statistics: Literal["first", "both"] = "first"
) -> Method:
    """FedAvg whose clients step by the gradient at the worst point nearby.

        ε = ρ ∇L(w) / ‖∇L(w)‖,   w ← w − η ∇L(w + ε)          on each batch, two passes

    rho: ρ ≥ 0, the norm being that of the whole gradient; 0 is FedAvg. The default is ours, the
    value that Foret et al. 2021 recommend for SAM: GA's paper does not give its own. statistics:
    whether those of BatchNorm are updated on the `"first"` pass only (ours, since w is the model
    that is kept) or on `"both"`, as codes do that take no care of it. Momentum and weight decay
    act on ∇L(w + ε). Twice the cost of FedAvg on the clients.
    """
    local = Train(Perturbed(Backprop(training.loss), rho, statistics), training)
    return federated("fedsam", training, Mean("examples"), REFERENCE, local)


def add_fedsam(
    method: Method, *, rho: float = 0.05, statistics: Literal["first", "both"] = "first"
) -> Method:
    """Take the gradient of any method's loss where a step of length ρ uphill leads.

    The loss alone is perturbed: what a method adds to its gradient, such as a proximal term or
    SCAFFOLD's correction, stays as it is at w.
    """

    def inside(gradient: Any) -> Gradient:
        if isinstance(gradient, Perturbed):
            raise Incompatible(
                f"{method.name}+fedsam",
                f"{method.name} perturbs its weights already; set its own radius.",
            )
        if isinstance(gradient, Backprop):
            return Perturbed(gradient, rho, statistics)
        if not isinstance(gradient, Wrapper):
            raise Incompatible(
                f"{method.name}+fedsam",
                f"a step of {method.name} does more than take the "
                "gradient of a loss, and FedSAM would do it twice per batch.",
            )
        try:
            changed: Gradient = gradient.around(inside(gradient.inner))
        except Incompatible:
            raise
        except UnseenError as error:
            raise Incompatible(f"{method.name}+fedsam", f"{error}") from error
        return changed

    return citing(with_gradient(method, inside), REFERENCE)
