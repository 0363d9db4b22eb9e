"""Means, standard errors, ranks and cells against scipy and by hand."""

from __future__ import annotations

import math
import random
import statistics
from itertools import product

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.studies.results.statistics import Cell, interval, mean, ranks, standard_error

numbers = st.floats(-1e3, 1e3)
few = st.sampled_from([0.1, 0.2, 0.2, 0.5])


@given(st.lists(numbers, min_size=2, max_size=30))
def test_standard_error_is_scipys(values: list[float]) -> None:
    assert standard_error(values) == pytest.approx(scipy.stats.sem(values), rel=1e-6, abs=1e-9)


@given(st.lists(numbers, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_mean_is_numpys_in_any_order(values: list[float], shuffler: random.Random) -> None:
    shuffled = values.copy()
    shuffler.shuffle(shuffled)
    assert mean(shuffled) == mean(values)
    assert mean(values) == pytest.approx(scipy.stats.tmean(values), rel=1e-9, abs=1e-9)


def test_equal_values_have_that_mean_and_no_error() -> None:
    assert mean([0.8] * 3) == 0.8
    assert standard_error([0.8] * 3) == 0.0


def test_one_value_has_no_standard_error() -> None:
    assert mean([0.7]) == 0.7
    assert standard_error([0.7]) is None


def test_no_values() -> None:
    with pytest.raises(UnseenError, match="mean of no values"):
        mean([])
    with pytest.raises(UnseenError, match="standard error of no values"):
        standard_error([])


def exact(values: list[float], level: float) -> tuple[float, float]:
    """The same quantiles of all n^n samples, which the drawn ones stand for."""
    means = sorted(statistics.mean(sample) for sample in product(values, repeat=len(values)))
    low, high = (means[math.ceil((1 + side * level) / 2 * len(means)) - 1] for side in (-1, 1))
    return low, high


@pytest.mark.parametrize("level", [0.4, 0.9, 0.95])
@pytest.mark.parametrize("values", [[0.1, 0.4], [0.1, 0.2, 0.4], [0.5, 0.7, 0.71, 0.9, 0.95]])
def test_the_interval_is_that_of_all_samples(values: list[float], level: float) -> None:
    assert interval(values, level) == pytest.approx(exact(values, level), abs=0.01)


def test_the_interval_is_scipys() -> None:
    values = scipy.stats.norm.rvs(size=25, random_state=4)
    expected = scipy.stats.bootstrap(
        (values,), lambda x, axis: x.mean(axis=axis), method="percentile", n_resamples=9999,
        random_state=5,
    ).confidence_interval  # fmt: skip
    assert interval(list(values)) == pytest.approx(tuple(expected), abs=0.02)


def test_of_two_or_three_seeds_the_interval_is_their_range() -> None:
    # All samples but one in 4, or one in 27, are within; 2.5% are left out on either side.
    assert interval([0.7, 0.5]) == (0.5, 0.7)
    assert interval([0.7, 0.5, 0.55]) == (0.5, 0.7)
    low, high = interval([0.5, 0.6, 0.7, 0.8]) or (0, 0)
    assert 0.5 < low < high < 0.8


@given(st.lists(numbers, min_size=2, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_intervals_are_within_the_range_in_any_order(
    values: list[float], shuffler: random.Random
) -> None:
    shuffled = values.copy()
    shuffler.shuffle(shuffled)
    low, high = interval(values) or (math.nan, math.nan)
    assert min(values) <= low <= high <= max(values)
    assert interval(shuffled) == (low, high)


def test_one_value_has_no_interval_and_equal_ones_have_none_to_speak_of() -> None:
    assert interval([0.7]) is None
    assert interval([0.1, 0.1, 0.1]) == (0.1, 0.1)
    assert Cell((0.86,), 0, 3).interval() == (None, None)
    assert Cell((0.1, 0.2), 0, 2, applies=False).interval() == (None, None)
    with pytest.raises(UnseenError, match=r"level must be a number in \(0, 1\]"):
        interval([0.1, 0.2], 0.0)


@given(st.lists(st.one_of(few, numbers), min_size=1, max_size=12))
def test_ranks_are_scipys(values: list[float]) -> None:
    assert ranks(values, lower=True) == list(scipy.stats.rankdata(values))
    assert ranks(values) == list(scipy.stats.rankdata([-x for x in values]))


def shown(value: float) -> str:
    return f"{100 * value:.1f}"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        # Mean of 86, 88, 90; s = 2, s/√3 = 1.1547.
        (Cell((0.86, 0.88, 0.90), 0, 3), "88.0 ± 1.2"),
        (Cell((0.86,), 0, 1), "86.0"),
        (Cell((0.86, 0.88), 0, 3), "87.0 ± 1.0 (2/3 seeds)"),
        (Cell((0.86, 0.88), 1, 3), "87.0 ± 1.0 (1 undefined)"),
        (Cell((0.86, 0.88), 1, 4), "87.0 ± 1.0 (3/4 seeds, 1 undefined)"),
        (Cell((0.86,), 0, 3), "86.0 (1/3 seeds)"),
        (Cell((), 0, 3), "0/3 seeds"),
        (Cell((), 3, 3), "undefined"),
        (Cell((), 2, 3), "undefined (2/3 seeds)"),
        (Cell((), 0, 3, applies=False), "n/a"),
        (Cell((0.86, 0.88, 0.90), 0, 3, applies=False), "n/a"),
    ],
)
def test_a_cell_says_what_it_lacks(cell: Cell, text: str) -> None:
    assert cell.text(shown) == text


def test_only_whole_cells_are_complete() -> None:
    assert Cell((0.1, 0.2), 0, 2).complete
    assert not Cell((0.1,), 1, 2).complete
    assert not Cell((0.1,), 0, 2).complete
    assert not Cell((0.1, 0.2), 0, 2, applies=False).complete
    assert not Cell((), 0, 0).complete


def test_the_raw_fields_of_a_cell() -> None:
    value, error, n = Cell((0.5, 0.7), 0, 2).fields()
    assert (value, n) == (pytest.approx(0.6), 2)
    assert error == pytest.approx(math.sqrt(0.02) / math.sqrt(2))
    assert Cell((0.5,), 0, 1).fields() == (0.5, None, 1)
    assert Cell((), 2, 2).fields() == ("undefined", None, 0)
    assert Cell((), 0, 2).fields() == ("", None, 0)
    assert Cell((), 0, 2, applies=False).fields() == ("n/a", None, 0)
    assert Cell((0.5, 0.7), 0, 2).raw_fields() == [value, error, 0.5, 0.7, 2]
    assert Cell((), 2, 2).raw_fields() == [None, None, None, None, 0]
