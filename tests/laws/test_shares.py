"""Decimal shares of counts are those of whole-number arithmetic, wherever a share is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unseen.core.losses import CrossEntropy
from unseen.core.round import sample
from unseen.core.schedule import Step, ceil_share, floor_share, round_share
from unseen.core.turn import Turn, keyed
from unseen.data.dataset import Domain
from unseen.methods.combine import TrimmedMean
from unseen.methods.gradient import Backprop
from unseen.methods.images.frequency import Window
from unseen.methods.rsc import SelfChallenging
from unseen.studies.execution.prepare import rows_of

COUNTS = range(301)


def half_even(k: int, n: int) -> int:
    """k·n / 100 to the nearest whole number, to the even one from the middle."""
    whole, rest = divmod(k * n, 100)
    return whole + (rest > 50 or (rest == 50 and whole % 2 == 1))


@pytest.mark.parametrize("k", range(101))
def test_hundredths_of_counts(k: int) -> None:
    for n in COUNTS:
        assert floor_share(k / 100, n) == k * n // 100
        assert ceil_share(k / 100, n) == -(-k * n // 100)
        assert round_share(k / 100, n) == half_even(k, n)


@pytest.mark.parametrize("q", range(1, 50))
def test_fractions_that_are_not_decimals(q: int) -> None:
    for n in COUNTS:
        for p in (1, q - 1):
            assert floor_share(p / q, n) == p * n // q
            assert ceil_share(p / q, n) == -(-p * n // q)


def test_a_share_just_below_stays_below() -> None:
    assert floor_share(0.289999, 100) == 28
    assert ceil_share(0.290001, 100) == 30
    assert round_share(0.344999, 100) == 34


def first_step(share: float, n: int) -> int:
    return next((r for r in range(n) if Step(at=share, factor=0.5)(r, n) == 0.5), n)


def cut(share: float, n: int) -> int:
    """How many of the squares 0 .. (n − 1)² go at either end: the mean of the others tells."""
    values = torch.arange(n, dtype=torch.float64)[:, None].square()
    rule = TrimmedMean(share)
    found = float(rule(values, {}, rule.init(n, 1))[0])
    expected = {c: float(values[c : n - c].mean()) for c in range((n - 1) // 2 + 1)}
    return min(expected, key=lambda c: abs(expected[c] - found))


def half_window(share: float, n: int) -> int:
    return len(Window(share).index((n, n))[1]) - 1


FLOORS = {"step": first_step, "trimmed-mean": cut, "window": half_window}


@pytest.mark.parametrize("which", FLOORS)
@pytest.mark.parametrize(("k", "n"), [(29, 100), (29, 200), (35, 180), (41, 300), (20, 50)])
def test_floors(which: str, k: int, n: int) -> None:
    found: Callable[[float, int], int] = FLOORS[which]
    assert found(k / 100, n) == k * n // 100


@pytest.mark.parametrize(("k", "n"), [(57, 100), (58, 50), (58, 200), (70, 90), (80, 10)])
def test_a_step_above_one_half(k: int, n: int) -> None:
    assert first_step(k / 100, n) == k * n // 100


@pytest.mark.parametrize(("k", "n"), [(35, 90), (55, 110), (7, 150), (41, 150), (10, 105)])
def test_who_takes_part_and_what_is_held_back(k: int, n: int) -> None:
    names = [f"site-{i:03}" for i in range(n)]
    assert len(sample(names, k / 100, Turn(0, 0, 1))) == half_even(k, n)
    domain = Domain("a", torch.zeros(n, 1), torch.zeros(n, dtype=torch.long))
    train, held = rows_of(domain, k / 100, 0, False)
    assert (len(train), len(held)) == (n - half_even(k, n), half_even(k, n))


@pytest.mark.parametrize(("k", "n"), [(7, 100), (14, 50), (28, 25), (33, 100)])
def test_what_is_challenged(k: int, n: int) -> None:
    challenge = SelfChallenging(Backprop(CrossEntropy()), drop=k / 100)
    slope = torch.rand(3, n, generator=keyed("slope"))
    assert challenge.dropped(slope, slope, False).sum(1).tolist() == [-(-k * n // 100)] * 3
