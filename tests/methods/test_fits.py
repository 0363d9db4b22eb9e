"""What a method says it fits in place of the study's network."""

from __future__ import annotations

import pytest
import torch
from support.alone import blueprint

from unseen import Client, Split, Training, method
from unseen.methods import METHODS

#: Methods and members that need an option to be small, or have several forms.
MORE = (
    "bag(of='glm')", "bag(of='fedavg')", "trees(kind='forest')", "forest(trees=3)",
    "boost(trees=2)", "stack(members=['glm', 'boost(trees=1)'], groups=2)",
    "stack(members=['glm', 'fedavg'], groups=2)", "portfolio(members=['fedavg', 'glm'], groups=2)",
)  # fmt: skip


def clients() -> dict[str, Client]:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 20, 6, generator=random), torch.arange(20) % 3
    return {f"site {k}": Client(f"site {k}", Split(x[k], y), None, 3) for k in range(3)}


def size(expression: str, width: int) -> int:
    """The numbers of the network that a method makes of a study's network of a width."""
    plan = blueprint(clients(), f"mlp(widths=[{width}])")
    chosen = method(expression, Training(batch_size=8))
    network = chosen.adapt(plan) if chosen.adapt is not None else plan.network
    return sum(p.numel() for p in network.parameters()) + sum(b.numel() for b in network.buffers())


@pytest.mark.parametrize("expression", [*METHODS, *MORE])
def test_a_method_says_so_exactly_where_the_network_of_the_study_has_no_part_in_it(
    expression: str,
) -> None:
    chosen = method(expression, Training(batch_size=8))
    if {"images", "convolutions", "batchnorm"} & set(chosen.asks):
        assert not chosen.fits
    else:
        assert bool(chosen.fits) == (size(expression, 4) == size(expression, 9))
