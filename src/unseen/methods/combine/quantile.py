"""EQRM: average by the gradient of a quantile of the clients' losses."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Draws, RuleState, Table, Weighted, WithState
from unseen.methods.combine.mean import Mean
from unseen.ranges import Range, Share, uniform

#: Of the Gaussian rule for the width of a kernel, h = 1.06 s K^(-1/5), as released.
WIDTH = 1.06
#: Halvings of the bracket around the quantile: all digits of a float64.
HALVINGS = 80
#: A quantile strictly between 0 and 1.
Quantile = Annotated[float, Range(0.001, 0.999), uniform(0.5, 0.99)]


@dataclass(frozen=True)
class QuantileOfRisks(Weighted, named="eqrm"):
    """Average by the weights that lower a quantile of the distribution of risks over clients.

        x ← x + Σ_i w_i u_i,   w_i = ∂q/∂L_i,   (1/K) Σ_j Φ((q − L_j) / h) = α

    L_i (`received_loss`): the loss of the received model on client i's training split; u_i: its
    update; q: the α-quantile of the losses' kernel density, Φ being the normal distribution
    function and h = 1.06 s K^(−1/5) with the losses' standard deviation s. Where u_i is client i's
    gradient (`fedsgd+eqrm`), a step descends q, the risk that a new site exceeds with probability
    1 − α. The weights sum to 1; those of low losses can be negative.

    Attributes:
        alpha: α; 0.75 is DomainBed's default, which searches from 0.5 to 0.99.
        start: the share of the rounds that take the prior's mean first; DomainBed takes 2,500 steps
            of 5,001 by default, here there are none.
        prior: what comes before `start`, and where all losses are equal.

    Note:
        Where clients train, a weight multiplies what a client's steps made, not one gradient.
        BatchNorm's statistics are averaged by the prior.

    Source:
        Eastwood et al. 2022, "Probable Domain Generalization via Quantile Risk Minimization",
        Algorithm 1; its released code, and DomainBed's.

    Departs from:
        the released code, which differentiates the ends of its bisection instead of q, so that
        only the smallest and the largest loss and the width have a gradient; and which lowers the
        learning rate at `start`.

    Example:
        >>> table = {"received_loss": torch.tensor([1.0, 1.0, 4.0]).double()}
        >>> rule = QuantileOfRisks(alpha=0.9)
        >>> w = rule.weights(table, rule.init(3, 1))[0]
        >>> round(float(w.sum()), 9), bool(w[2] > 1)
        (1.0, True)
    """

    averages: ClassVar[bool] = False

    alpha: Quantile = 0.75
    start: Share = 0.0
    prior: Weighted = Mean("uniform")
    needs = ("received_loss",)

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        loss = table["received_loss"].double()
        early = "progress" in table and float(table["progress"][0]) < self.start
        spread = loss.std() if len(loss) > 1 else loss.new_zeros(())
        if early or not bool(spread > torch.finfo(loss.dtype).eps * loss.abs().max()):
            return table["prior"], state
        return quantile_gradient(loss, self.alpha), state


def quantile_gradient(loss: Tensor, alpha: float) -> Tensor:
    """Return ∂q/∂L [K] of the α-quantile q of the losses' kernel density."""
    K = len(loss)
    scale = WIDTH * K**-0.2
    h = scale * loss.std()
    reach = torch.special.ndtri(torch.tensor(alpha, dtype=loss.dtype))
    low, high = loss.min() + h * reach, loss.max() + h * reach
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - loss) / h).mean() < alpha
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    z = ((low + high) / 2 - loss) / h
    # Φ'(z), in units of its largest value.
    density = ((z.square().min() - z.square()) / 2).exp()
    width = scale * (loss - loss.mean()) / ((K - 1) * loss.std())
    weights: Tensor = (density + (density * z).sum() * width) / density.sum()
    return weights
