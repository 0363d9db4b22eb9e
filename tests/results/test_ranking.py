"""Ranks, Friedman's test and Nemenyi's difference against Demšar's paper and scipy."""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.studies.results.statistics import critical_difference, friedman, rank

#: Ranks of four methods on 14 data sets with the averages that Demšar 2006 prints in section 3.2
#: (C4.5 as it is, with m tuned, with cf tuned, with both).
FOURTEEN = {
    "C4.5": [4, 1, 4, 4, 4, 1, 3, 2.5, 4, 2.5, 4, 3, 4, 3],
    "C4.5+m": [3, 2, 1, 1, 2, 2.5, 2, 2.5, 3, 2.5, 2.5, 2, 1, 1],
    "C4.5+cf": [2, 3, 2, 3, 3, 4, 4, 4, 2, 2.5, 1, 4, 2, 4],
    "C4.5+m+cf": [1, 4, 3, 2, 1, 2.5, 1, 1, 1, 2.5, 2.5, 1, 3, 2],
}


def test_demsars_worked_example() -> None:
    found = rank(FOURTEEN, lower=True)
    ranks = {"C4.5+m+cf": 1.964, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5": 3.143}
    assert list(found.ranks) == list(ranks)
    assert found.ranks == pytest.approx(ranks, abs=5e-4)
    assert found.chi2 == pytest.approx(9.28, abs=5e-3)
    assert found.f == pytest.approx(3.69, abs=5e-3)
    assert found.f > 2.85  # his critical value of F(3, 39)
    assert found.p is not None and found.p < 0.05
    # 3.143 - 1.964 = 1.18: no difference at 0.05. At 0.10 that one counts, and 3.143 - 2.000.
    assert found.difference == pytest.approx(1.25, abs=5e-3)
    assert found.groups == (tuple(ranks),)
    weaker = rank(FOURTEEN, lower=True, alpha=0.1)
    assert weaker.difference == pytest.approx(1.12, abs=5e-3)
    assert weaker.groups == (tuple(ranks)[:3], tuple(ranks)[2:])


#: Demšar 2006, Table 5a: of the two-tailed Nemenyi test.
Q05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]


@pytest.mark.parametrize(("k", "q"), list(enumerate(Q05, start=2)))
def test_critical_values_are_demsars(k: int, q: float) -> None:
    assert critical_difference(k, 10) == pytest.approx(q * math.sqrt(k * (k + 1) / 60), abs=2e-3)


distinct = st.lists(st.integers(0, 10**6), min_size=3, max_size=3, unique=True)


@given(st.lists(distinct, min_size=2, max_size=9))
def test_friedman_is_scipys_without_ties(rows: list[list[int]]) -> None:
    columns = [list(scipy.stats.rankdata(row)) for row in rows]
    chi2, F, p = friedman(columns)
    expected = scipy.stats.friedmanchisquare(*zip(*rows, strict=True))
    assert chi2 == pytest.approx(expected.statistic)
    assert 0 <= p <= 1 and F >= 0


def test_friedman_where_all_targets_agree_and_where_all_methods_tie() -> None:
    chi2, F, p = friedman([[1.0, 2.0, 3.0]] * 4)
    assert (chi2, F) == (8.0, math.inf)  # N (k − 1) is the most that there is
    orders = list(permutations((1.0, 2.0, 3.0)))
    alike = [set(rows) for rows in product(orders, repeat=4) if len(set(rows)) == 1]
    assert p == pytest.approx(len(alike) / len(orders) ** 4)
    assert friedman([[2.0, 2.0, 2.0]] * 4) == (0.0, 0.0, 1.0)


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3),
        st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.9]), min_size=4, max_size=4),
        min_size=1,
        max_size=7,
    )
)
def test_groups_are_the_longest_runs_within_the_difference(values: dict[str, list[float]]) -> None:
    found = rank(values)
    assert sum(found.ranks.values()) == pytest.approx(len(values) * (len(values) + 1) / 2)
    order = list(found.ranks)
    assert all(found.ranks[a] <= found.ranks[b] for a, b in pairwise(order))
    if found.difference is None:
        assert len(values) == 1 and found.groups == () and found.note == ""
        return
    for a, first in enumerate(order):
        for last in order[a + 1 :]:
            together = any({first, last} <= set(group) for group in found.groups)
            assert together == (found.ranks[last] - found.ranks[first] < found.difference)
    assert not any(set(a) <= set(b) for a in found.groups for b in found.groups if a is not b)


@given(st.lists(distinct, min_size=1, max_size=7))
def test_mean_ranks_are_means_of_scipys(rows: list[list[int]]) -> None:
    expected = scipy.stats.rankdata(rows, axis=0).mean(axis=1)
    found = rank({str(i): [float(x) for x in row] for i, row in enumerate(rows)}, lower=True).ranks
    assert [found[str(i)] for i in range(len(rows))] == pytest.approx(list(expected))


def test_less_is_better() -> None:
    values = {"a": [0.1, 0.2], "b": [0.3, 0.4]}
    assert rank(values, lower=True).ranks == {"a": 1.0, "b": 2.0}
    assert rank(values).ranks == {"b": 1.0, "a": 2.0}


def test_one_target_ranks_and_tells_no_difference() -> None:
    found = rank({"a": [0.9], "b": [0.8]})
    assert (found.ranks, found.difference, found.p) == ({"a": 1.0, "b": 2.0}, None, None)
    assert rank({}).ranks == {}


def test_few_targets_are_weak() -> None:
    """Of four methods on four targets nearly the whole range of ranks is needed, as is said."""
    assert critical_difference(4, 4) == pytest.approx(2.569 * math.sqrt(20 / 24), abs=2e-3)
    assert rank({m: [x] * 4 for m, x in zip("abcd", [4, 3, 2, 1], strict=True)}).groups == (
        ("a", "b", "c"), ("b", "c", "d"),
    )  # fmt: skip


def test_wrong_input() -> None:
    with pytest.raises(UnseenError, match="one number per target"):
        rank({"a": [0.1], "b": [0.1, 0.2]})
    with pytest.raises(UnseenError, match="alpha must be a number"):
        rank({"a": [0.1]}, alpha=5)
