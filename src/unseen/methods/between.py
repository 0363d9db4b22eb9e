"""Penalties between clients without pooled data: each one's statistic is held to their mean."""

from dataclasses import dataclass, replace

from unseen.core import Exchange, Method, Replace, Slot
from unseen.methods.base import incompatible, trained
from unseen.methods.combine import Combine, Mean
from unseen.methods.gradient import Fishr
from unseen.methods.gradient.fishr import VARIANCE, FeatureMoments, HeadCovariance
from unseen.methods.local.train import Measure, Penalised


@dataclass(frozen=True)
class Penalty:
    """λ ∇ (1/E) Σ_e ‖C_e − C̄‖² for a statistic C_e of each client, C̄ = (1/E) Σ_e C_e.

    A round is two exchanges: each client sends C_e and receives C̄, then it differentiates its own
    term with C̄ held fixed, which is exact, since Σ_e (C_e − C̄) = 0.

    Attributes:
        statistic: what C_e is.
        lam: λ.
        warmup: rounds before λ sets in.
        scale: what the server makes of the clients' terms.
        chunk: the most examples that pass at a time.
    """

    statistic: HeadCovariance | FeatureMoments
    lam: float
    warmup: int = 0
    scale: Combine = Mean("uniform")
    chunk: int | None = None

    def on(self, method: Method, name: str, shares: tuple[str, ...]) -> Method:
        """Return the method with an exchange before the one that trains, and in that one a slot.

        Raises:
            Incompatible: the method has such a penalty, for the modifier of this name.
        """
        if VARIANCE in (e.name for e in method.exchanges):
            why = "has a penalty between its clients already, and one exchange for its statistic."
            raise incompatible(method, name, why, "Choose one, and set its own lam.")
        exchange, statistic = trained(method), self.statistic
        mean = Slot(Mean("uniform"), apply=Replace(), sends="value", start=statistic.zeros)
        rounds = (self.warmup, 1)
        measure = Measure(VARIANCE, statistic, self.chunk)
        first = Exchange(VARIANCE, measure, {VARIANCE: mean}, rounds)
        second = replace(
            exchange,
            local=Penalised(exchange.local, Fishr(statistic, self.lam), self.warmup, self.chunk),
            slots={**exchange.slots, "penalty": Slot(self.scale, sends="value", to="model")},
        )
        at = method.exchanges.index(exchange)
        return replace(
            method,
            exchanges=(*method.exchanges[:at], first, second, *method.exchanges[at + 1 :]),
            shares=(*method.shares, *shares),
        )
