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
    """Return a Flower strategy that combines the clients' updates by `rule`.

    Example:
        from unseen.methods.combine import PPDG
        from unseen.flower import strategy
        strategy(PPDG(lam=0.1), fraction_evaluate=1.0).start(grid, arrays, num_rounds=3)

    Note:
        An update is what a client sent minus what it received; BatchNorm statistics are combined by
        the mean that the rule starts from. Every number of a client's MetricRecord is a column of
        the rule's table, `weighted_by_key` as `examples`.

    Args:
        rule: A `Weighted`, `Gram` or `Elementwise` rule.
        clients: How many will ever take part, for rules that remember each; by default those of the
            first round.
        seed: Seed of rules that draw.
        options: Those of Flower's FedAvg, which does all the rest.
    """
    needs_flower("a strategy of Flower needs")
    from unseen.sites.flower.strategy import Ruled

    return Ruled(rule, clients, seed, **options)
