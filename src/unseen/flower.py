"""One of our server rules in your own Flower project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.engine.messages import needs_flower

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy

    from unseen.core.rule import Combine


def strategy(
    rule: Combine, *, clients: int | None = None, seed: int = 0, **options: Any
) -> Strategy:
    """A Flower strategy that combines the clients' updates by `rule`.

        from unseen.combine import PPDG
        from unseen.flower import strategy
        strategy(PPDG(lam=0.1), fraction_evaluate=1.0).start(grid, arrays, num_rounds=3)

    rule: `Weighted`, `Gram` or `Elementwise`; an update is what a client sent minus what it
    received, and BatchNorm statistics go by the mean that the rule starts from. clients: how many
    will ever take part (default: those of the first round), for rules that remember each. seed: of
    the draws of rules that draw. options: those of Flower's FedAvg, which does all the rest. Every
    number of a client's MetricRecord is a column of the rule's table, `weighted_by_key` as
    `examples`.
    """
    needs_flower()
    from unseen.federation.flower.strategy import Ruled

    return Ruled(rule, clients, seed, **options)
