"""CORAL between clients: features whose means and covariances are alike everywhere."""

from dataclasses import dataclass
from typing import Annotated, Any

from unseen.core import ONE_LABEL, Method
from unseen.methods.base import asking, citing, incompatible, local_training
from unseen.methods.between import Penalty
from unseen.methods.gradient.fishr import FeatureMoments
from unseen.methods.local.train import FullGradient
from unseen.methods.options import options_from
from unseen.ranges import Checked, Natural, NotNegative, log

SHARES = (
    "the mean and the covariance over examples of the features",
    "CORAL's penalty and its gradient",
)


@dataclass(frozen=True)
class Aligned(Checked, named="coral"):
    """The penalty λ ∇L between clients that `coral` describes.

    Attributes:
        lam: λ; DomainBed's γ, 1 by default, is the mean over pairs: λ = 2γE / (E − 1).
        warmup: rounds before λ sets in.
        head: the layer that the features enter, by default the last linear one.
    """

    lam: Annotated[NotNegative, log(0.01, 100)] = 1.0
    warmup: Natural = 0
    head: str | None = None

    def on(self, method: Method) -> Method:
        """Return the method with the penalty."""
        penalty = Penalty(FeatureMoments(self.head), self.lam, self.warmup)
        return asking(penalty.on(method, "coral", SHARES), ONE_LABEL)


@options_from(Aligned)
def add_coral(method: Method, **options: Any) -> Method:
    """Penalise differences of the clients' means and covariances of features.

        x ← optimiser(x, (1/E) Σ_e ∇F_e + λ ∇L),   L = (1/E) Σ_e (‖m_e − m̄‖²/d + ‖C_e − C̄‖²/d²)

    m_e [d], C_e [d, d]: mean and covariance (its sum divided by n_e − 1) of what enters the head on
    client e's whole training split; m̄, C̄: their means over clients. 2E² L is the sum over all
    ordered pairs of clients of their distance, which is CORAL's.

    Note:
        A round is two exchanges: clients send m_e and C_e, and differentiate their own term with m̄
        and C̄ held fixed, which is exact, as in `+fishr`. It is so only where all take their
        gradient at one model.

    Departs from:
        the paper in its two domains, of which one has no labels: as in DomainBed, all clients have
        labels, and means are aligned too.
    """
    if not isinstance(local_training(method), FullGradient):
        why = (
            "does not take all clients' gradients at one model, where alone CORAL's penalty is "
            "exact, as in fedsgd+coral."
        )
        raise incompatible(method, "coral", why)
    return citing(Aligned(**options).on(method), "sun2016coral")
