"""Penalties inside each client: spectral decoupling, and IRM with clients as environments."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from unseen.core import ONE_LABEL, Client, Inbox, Memory, Method, Model, Turn
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.anchor import residuals
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.options import options_from
from unseen.ranges import Natural, NotNegative, log


@dataclass(frozen=True)
class Decoupled(Around, named="sd"):
    """g ← g + ∇ (λ/2) mean_n ‖f(x_n)‖², f(x) being the logits.

    Attributes:
        inner: the gradient of the loss.
        lam: λ ≥ 0; 0 is the loss alone. DomainBed's default for its mean over classes too, and
            without 1/2, is 0.1, which is 0.2/C here.

    Source:
        Pezeshki et al. 2021, "Gradient Starvation: A Learning Proclivity in Neural Networks",
        spectral decoupling.
    """

    inner: Gradient
    lam: Annotated[NotNegative, log(0.0001, 1)] = 0.1

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            if self.lam:
                penalty = self.lam / 2 * model(x).square().sum(1).mean()
                penalty.backward()  # type: ignore[no-untyped-call]
                value = value + penalty.detach()
            return value

        return step


@dataclass(frozen=True)
class InvariantRisk(Around, named="irm"):
    """g ← g + ∇ λ D²,   D = ∂/∂s mean_n ℓ(s f(x_n), y_n) at s = 1: the batch's slope along a scale.

    D is mean_n Σ_c (p_nc − 1[c = y_n]) f_c(x_n) for classes.

    Attributes:
        inner: the gradient of the loss.
        lam: λ ≥ 0; 0 is the loss alone. 0.1 goes with FedAvg's recipe: the penalty's curvature
            grows with the square of the outputs, and SGD with momentum can diverge at 1.
            DomainBed's default is 100, with Adam; the paper takes up to 10⁵ for whole training
            sets, and divides loss and penalty by it.
        warmup: rounds whose λ is at most 1, as released.
        estimate: of D², the `"square"`, as in the paper's formula, which on batches adds their
            variance, or by the `"halves"` of a batch, D₁ D₂ of the even and the odd rows, as in the
            paper's appendix and in DomainBed: that is right on average, but can fall below 0
            without end as the outputs grow, so it is not the default.

    Note:
        ℓ is the plain loss: label smoothing and weights of classes are not in D.

    Source:
        Arjovsky, Bottou, Gulrajani, Lopez-Paz 2019, "Invariant Risk Minimization", IRMv1.
    """

    inner: Gradient
    lam: Annotated[NotNegative, log(0.001, 100)] = 0.1
    warmup: Natural = 0
    estimate: Literal["square", "halves"] = "square"

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        lam = self.lam if turn.round >= self.warmup else min(self.lam, 1.0)

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            if lam and len(y) > 1:
                slope = slopes(model(x), y)
                if self.estimate == "halves":
                    penalty = lam * slope[::2].mean() * slope[1::2].mean()
                else:
                    penalty = lam * slope.mean().square()
                penalty.backward()  # type: ignore[no-untyped-call]
                value = value + penalty.detach()
            return value

        return step


def slopes(outputs: Tensor, y: Tensor) -> Tensor:
    """Return ∂ℓ(s f, y)/∂s at s = 1 [N], for the cross-entropy, or the squared error of numbers."""
    each = (residuals(outputs, y) * outputs).sum(1)
    return 2 * each if y.is_floating_point() else each


@options_from(Decoupled)
def add_sd(method: Method, **options: Any) -> Method:
    """Keep logits small: minimise F_i(w) + (λ/2) mean_n ‖f(x_n)‖².

    A sum over examples, so that the clients' means are the pooled penalty's.

    Departs from:
        the paper in that the penalty takes a pass of its own, in which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: Decoupled(g, **options), "pezeshki2021gradient")
    return asking(changed, "classes")


@options_from(InvariantRisk)
def add_irm(method: Method, **options: Any) -> Method:
    """Add IRM's penalty, the clients being its environments.

        Σ_i p_i (F_i(w) + λ D_i(w)²),   D_i = ∂/∂s of its loss of the outputs s f(x) at s = 1

    A representation is invariant if no client would rather have its outputs scaled. IRMv1's
    objective is a sum over environments, so that each client has its own part of it and nothing
    more is sent: `fedsgd+irm` descends exactly the pooled objective.

    Departs from:
        the paper in that clients train alone between two averages, except in `fedsgd+irm`; that its
        sum over environments is a mean here, and a λ above 1 divides neither loss nor penalty; and
        that the penalty takes a pass of its own, in which Dropout draws again.
    """
    changed = with_gradient(method, lambda g: InvariantRisk(g, **options), "arjovsky2019irm")
    return asking(changed, ONE_LABEL)
