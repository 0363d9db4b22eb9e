"""Bootstrap samples and the intervals from them."""

from __future__ import annotations

import pytest
import torch

from unseen.core.metrics import bootstrap
from unseen.core.metrics.bootstrap import ends, resamples, weights
from unseen.core.turn import keyed


def mean_of(values: torch.Tensor) -> bootstrap.Statistic:
    return lambda counts: counts @ values / counts.sum(1)


def interval(
    statistic: bootstrap.Statistic, n: int, count: int = 1000
) -> tuple[float, float] | None:
    return bootstrap.interval(bootstrap.bootstrap({"": statistic}, n, count, keyed("a"))[""])


def test_parts_draw_what_one_part_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = resamples(7, 50, keyed("bootstrap"))
    monkeypatch.setattr(bootstrap, "IN_MEMORY", 21)
    parts = list(resamples(7, 50, keyed("bootstrap")))
    assert [len(part) for part in parts] == [3] * 16 + [2]
    assert torch.equal(torch.cat(parts), whole)
    assert weights(whole).sum(1).eq(7).all()


def test_an_interval_is_that_of_the_sorted_means() -> None:
    values = torch.linspace(0, 1, 20, dtype=torch.float64) ** 2
    (index,) = resamples(20, 1000, keyed("a"))
    means = values[index].mean(1).sort().values
    low, high = ends(1000)
    expected = (float(means[low]), float(means[high]))
    assert interval(mean_of(values), 20) == pytest.approx(expected)
    assert (low, high) == (25, 974)


def test_where_there_is_no_interval() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert interval(mean_of(one), 1, 0) is None

    def often_undefined(counts: torch.Tensor) -> torch.Tensor:
        return counts[:, 0].where(counts[:, 0] > 1, torch.nan)  # 1/4 of samples for n = 3

    assert interval(often_undefined, 3) is None

    def seldom_undefined(counts: torch.Tensor) -> torch.Tensor:
        return counts[:, 0].where(counts[:, 0] < 3, torch.nan)

    assert interval(seldom_undefined, 3) == (0.0, 2.0)
