"""FedILC: the weighted geometric mean across and inside clients, and Fishr between clients."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from unseen.core import ONE_LABEL, Method
from unseen.core.losses import Loss
from unseen.core.parts import innermost
from unseen.methods.base import (
    asking,
    cited,
    citing,
    gradient_method,
    incompatible,
    local_training,
)
from unseen.methods.between import Penalty
from unseen.methods.combine import Combine, Mean, Sum, WeightedGeometricMean
from unseen.methods.gradient import Backprop, Environments, Gradient
from unseen.methods.gradient.fishr import HeadCovariance
from unseen.methods.local.train import FullGradient
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Checked, Count, Natural, log

REFERENCE, FISHR = cited("zhu2022fedilc"), cited("rame2022fishr")
#: What the server makes of the clients' penalties, by the scale of the loss.
SCALES: dict[str, Combine] = {"paper": Mean("uniform"), "released": Sum()}
SHARES = {
    "diagonal": "the variance over examples of the head's gradients",
    "full": "the covariance over examples of the head's gradients",
}


@dataclass(frozen=True)
class FishrPenalty(Checked, named="fishr"):
    """The penalty λ ∇L between clients, L = (1/E) Σ_e ‖C_e − C̄‖², that `+fishr` describes.

    Attributes:
        lam: λ; FedILC takes 15 (Color-MNIST), 1 (Rotated-CIFAR10) and 0.1 (eICU), which is the
            default: with FedAvg's recipe on digits 0.1 is level with no penalty, and 1, the default
            before 0.2, outweighs the loss (33 % after 20 rounds, where `fedsgd` has 66 %).
        covariance: `"diagonal"`, the variances, as in FedILC's experiments, or `"full"`, as in its
            formula, for heads of up to 1,024 weights.
        scale: `"paper"` as above; `"released"` leaves out 1/E, as the code does, so that a λ there
            is as strong as λE here.
        warmup: rounds before λ sets in; 0 as released. Fishr's own code waits 1,500 steps.
        head: the layer's name, by default the last linear one.
        chunk: the most examples that pass the network at a time, see `fedsgd`; the variances are
            made of sums, and their derivative takes a second pass over the parts.
    """

    lam: Annotated[float, log(0.000001, 1)] = 0.1
    covariance: Literal["diagonal", "full"] = "diagonal"
    scale: Literal["paper", "released"] = "paper"
    warmup: Natural = 0
    head: str | None = None
    chunk: Count | None = None

    def on(self, method: Method, loss: Loss) -> Method:
        """Return the method with an exchange before the one that trains, and in that one a slot."""
        statistic = HeadCovariance(loss, self.covariance, self.head)
        penalty = Penalty(statistic, self.lam, self.warmup, SCALES[self.scale], self.chunk)
        shares = (SHARES[self.covariance], "Fishr's penalty and its gradient")
        return asking(penalty.on(method, "fishr", shares), ONE_LABEL)


@options_from(FishrPenalty)
def fishr(training: Training, **options: Any) -> Method:
    """Run FedSGD with a penalty on differences of the clients' gradient covariances.

        x ← optimiser(x, (1/E) Σ_e ∇F_e + λ ∇L),      L = (1/E) Σ_e ‖C_e − C̄‖²

    C_e: covariance over examples of the gradients of the last linear layer on client e's whole
    training split; C̄ = (1/E) Σ_e C_e.

    Note:
        FedILC's tables call this row FedCurv; that of Shoham et al. is `fedcurv`. How it is
        computed without pooled data: see `+fishr`.
    """
    rule, chunk = Mean("uniform"), options["chunk"]
    method = gradient_method("fishr", training, rule, REFERENCE, chunk=chunk)
    return citing(FishrPenalty(**options).on(method, training.loss), FISHR)


@options_from(FishrPenalty)
def add_fishr(method: Method, **options: Any) -> Method:
    """Add Fishr between the clients to any method that sends gradients at the received model.

        λ ∇L,   L = (1/E) Σ_e ‖C_e − C̄‖²,   C_e = (1/n_e) Σ_i (g_i − ḡ)(g_i − ḡ)ᵀ at the head

    A round is two exchanges. In the first each client sends C_e; the second returns C̄, and each
    client sends ∇_w ‖C_e(w) − C̄‖² with C̄ held fixed, by differentiating its own variances. The
    mean of these is exactly ∇L, since Σ_e (C_e − C̄) = 0.

    Note:
        As released, gradients of single examples are not scaled, and there is no moving average of
        C_e, unlike in Fishr's own code.

        The released code differentiates on the server, through the clients' data; with uploaded C_e
        alone, as printed, ∇L is undefined.

    Departs from:
        the released code in that variances are in float64, that the loss of C_e is the training's,
        and that the penalty's gradient travels as a separate vector, averaged uniformly whatever
        weights or rule the gradients meet.
    """
    local = local_training(method)
    if not isinstance(local, FullGradient):
        why = (
            "does not take all clients' gradients at one model, where alone Fishr's penalty is "
            "exact, as in fedsgd+fishr."
        )
        raise incompatible(method, "fishr", why)
    return citing(FishrPenalty(**options).on(method, innermost(local.gradient).loss), FISHR)


@options_from(WeightedGeometricMean, FishrPenalty, without=("of", "prior", "compiled"))
def fedilc_inter(training: Training, **options: Any) -> Method:
    """Apply Fishr and the weighted geometric mean across clients (Fishr+Inter-Geo, Algorithm 1).

        x ← optimiser(x, weightedgeo_e(∇F_e) + λ ∇L),      L = (1/E) Σ_e ‖C_e − C̄‖²

    Note:
        The geometric mean is of the gradients alone: ∇L is added to it on the server, before the
        one step of its optimiser, as printed and as released. See `geometric` and `+fishr`.

    Departs from:
        the paper and the released code in exact zeros, which `zeros` leaves out; Algorithm 1 in
        that C_e are by default not covariances but variances, as in its experiments; and the code
        as `+fishr` does.
    """
    rule = WeightedGeometricMean(of="updates", **picked(WeightedGeometricMean, options))
    return _fedilc("fedilc-inter", training, rule, Backprop(training.loss), options)


@options_from(Environments, FishrPenalty, without=("rule", "batch_size"))
def fedilc_intra_geo(training: Training, **options: Any) -> Method:
    """Apply Fishr, and the weighted geometric mean inside clients (Fishr+Intra-Geo, Algorithm 2).

        x ← optimiser(x, (1/E) Σ_e weightedgeo_ε(∇F_e^ε) + λ ∇L),    ε the environments inside e

    Note:
        With single examples `zeros="paper"` leaves hardly a coordinate, since a ReLU makes exact
        zeros; the released code's rule meets only mini-batches. §5 speaks of mini-batches for
        Inter-Geo; the code has them here only.

    Departs from:
        Algorithm 2, whose environments are single examples and whose C_e are covariances:
        mini-batches and variances, as in its experiments, are the defaults; the paper and the
        released code in exact zeros, which `zeros` leaves out; and the code as `+fishr` does.
    """
    own = picked(Environments, options)
    inner = Environments(Backprop(training.loss), batch_size=training.batch_size, **own)
    return _fedilc("fedilc-intra-geo", training, Mean("uniform"), inner, options)


@options_from(FishrPenalty)
def fedilc_intra_arith(
    training: Training, *, by: Literal["batch", "environment"] = "batch", **options: Any
) -> Method:
    """Apply Fishr, and the arithmetic mean over environments inside clients (Fishr+Intra-Arith).

        x ← optimiser(x, (1/E) Σ_e mean_ε ∇F_e^ε + λ ∇L)

    Args:
        training: The recipe.
        by: what an environment is: a mini-batch of the training's batch size, drawn each round, or
            the column "environment" of the data.
        **options: The other options of the page.

    Note:
        Where all environments are of one size this is `fishr`, but for rounding: on FedILC's
        Color-MNIST, 250 batches of 32, the gap that its tables print between the two is chance.

    Departs from:
        the paper's formula in that C_e are by default not covariances but variances, as in its
        experiments; and the released code as `+fishr` does.
    """
    inner = Environments(Backprop(training.loss), by, "mean", batch_size=training.batch_size)
    return _fedilc("fedilc-intra-arith", training, Mean("uniform"), inner, options)


def _fedilc(
    name: str, training: Training, rule: Combine, gradient: Gradient, options: dict[str, Any]
) -> Method:
    method = gradient_method(name, training, rule, REFERENCE, gradient, options["chunk"])
    method = FishrPenalty(**picked(FishrPenalty, options)).on(method, training.loss)
    return replace(method, references=(FISHR, REFERENCE))
