"""Ranks and corrected tests against R's figures, scipy, and by hand."""

from __future__ import annotations

import pytest
import scipy.stats

from unseen.errors import UnseenError
from unseen.studies.results.comparison import EXACT, agree, compare, holm, wilcoxon
from unseen.studies.results.published_rows import Printed
from unseen.studies.results.selection import Selected
from unseen.studies.results.statistics import mean
from unseen.studies.results.table_of_runs import table
from unseen.studies.settings.published import Figure

TASKS, SEEDS = ("0", "15", "30"), (0, 1)


def test_p_is_scipys_on_the_pairs() -> None:
    a = {
        ("a", t, s): 0.5 + 0.01 * i for i, (t, s) in enumerate((t, s) for t in TASKS for s in SEEDS)
    }
    b = {
        ("b", t, s): x + 0.1 * (-0.3) ** s + 0.003 * i for i, ((_, t, s), x) in enumerate(a.items())
    }
    found = compare(a | b, ("a", "b"), TASKS, SEEDS, "a")
    expected = scipy.stats.wilcoxon(list(b.values()), list(a.values())).pvalue
    assert found.p == {"b": pytest.approx(expected)}
    student = scipy.stats.ttest_rel(list(b.values()), list(a.values())).pvalue
    assert found.raw["t"] == {"b": pytest.approx(student)}
    assert compare(a | b, ("a", "b"), TASKS, SEEDS, "a", test="t").p == found.corrected["t"]
    assert found.ranks == {"a": 2.0, "b": 1.0}
    assert compare(a | b, ("a", "b"), TASKS, SEEDS, "a", lower=True).ranks == {"a": 1.0, "b": 2.0}


def test_a_method_that_lacks_a_figure_has_neither_rank_nor_p() -> None:
    figures = {(m, t, s): 0.5 for m in "ab" for t in TASKS for s in SEEDS}
    del figures["b", "30", 1]
    found = compare(figures, ("a", "b"), TASKS, SEEDS, "a")
    assert found.fields("b") == ("", "")
    assert found.fields("a") == ("1.0", "")


def test_an_unknown_reference_is_named() -> None:
    with pytest.raises(UnseenError, match="fedavg"):
        compare({}, ("fedavg",), TASKS, SEEDS, "fedavgg")


def test_equal_differences_are_tied_whatever_their_last_bits() -> None:
    # 0.9 - 0.8 and 0.3 - 0.2 are not the same float; the shares differ by a tenth each time.
    pairs = {
        (t, s): 0.1 * (2 * i + 2) for i, (t, s) in enumerate((t, s) for t in TASKS for s in (0,))
    }
    figures = {("a", *k): x for k, x in pairs.items()} | {
        ("b", *k): x + 0.1 for k, x in pairs.items()
    }
    found = compare(figures, ("a", "b"), TASKS, (0,), "a")
    assert found.raw["wilcoxon"] == {"b": scipy.stats.wilcoxon([1, 1, 1]).pvalue}
    assert found.raw["t"] == {"b": 0.0}


def test_equal_means_are_of_one_rank_whatever_their_last_bits() -> None:
    """Of 60 examples 5 and 1, or 3 twice, are right: a twentieth in both cases."""
    figures = {("a", "t", 0): 5 / 60, ("a", "t", 1): 1 / 60, ("b", "t", 0): 3 / 60}
    figures |= {("b", "t", 1): 3 / 60, ("c", "t", 0): 0.5, ("c", "t", 1): 0.5}
    assert mean([5 / 60, 1 / 60]) != mean([3 / 60, 3 / 60])  # else this shows nothing
    assert compare(figures, ["a", "b", "c"], ["t"], [0, 1], "c").ranks == {
        "c": 1,
        "a": 2.5,
        "b": 2.5,
    }


def test_both_tests_are_corrected_and_one_pair_has_no_t() -> None:
    figures = {(m, t, s): v + 0.01 * i * s for i, (m, v) in enumerate(
        [("a", 0.5), ("b", 0.6), ("c", 0.55)]) for t in TASKS for s in (1, 2)}  # fmt: skip
    found = compare(figures, ("a", "b", "c"), TASKS, (1, 2), "a")
    for test in ("wilcoxon", "t"):
        raw = list(found.raw[test].values())
        assert list(found.corrected[test].values()) == holm(raw)
    one = compare(figures, ("a", "b"), ("0",), (1,), "a", test="t")
    assert (one.raw["t"], one.fields("b"), one.pairs) == ({}, ("1.0", ""), 1)
    with pytest.raises(UnseenError, match="test must be one of 'wilcoxon', 't'"):
        compare(figures, ("a", "b"), TASKS, (1,), "a", test="student")


def test_p_of_fifteen_tied_pairs_is_exact_and_the_note_says_so() -> None:
    """Accuracies in hundredths: 210 of 2¹³ signs are as far out on either side."""
    gains, tasks, seeds = [0, 1, 2, 3, 0, -2, -1, 1, 1, 3, 2, 1, 1, -1, 4], "xyz", range(5)
    keys = [(t, s) for t in tasks for s in seeds]
    figures = {("a", *k): 0.8 + s / 100 for k, s in zip(keys, [3, 1, 4] * 5, strict=True)}
    figures |= {("b", *k): figures["a", *k] + g / 100 for k, g in zip(keys, gains, strict=True)}
    found = compare(figures, ("a", "b"), tasks, seeds, "a")
    assert found.p == {"b": 2 * 210 / 2**13}
    assert "two-sided, exact with mean ranks" in found.notes[-1]
    assert "exact" not in compare(figures, ("a", "b"), tasks, seeds, "a", test="t").notes[-1]


def test_the_note_says_where_p_is_normal() -> None:
    seeds = range(EXACT + 1)
    figures = {(m, "t", s): float(m == "b") for m in "ab" for s in seeds}
    found = compare(figures, ("a", "b"), ("t",), seeds, "a")
    assert f"exact up to {EXACT} of them and normal beyond" in found.notes[-1]


def runs_of(*methods: str) -> list[Selected]:
    return [
        Selected(m, t, s, 0, {"accuracy": 0.5 + 0.1 * (m == "b") + 0.01 * s + 0.02 * (t == "15")})
        for m in methods
        for t in TASKS
        for s in SEEDS
    ]


def test_the_table_has_the_columns_and_the_published_rows_in_every_format() -> None:
    paper = Printed({"A": {"0": Figure("82.60", "0.44"), "average": Figure("92.65")}})
    made = table(runs_of("a", "b"), metric="accuracy", reference="a", published=paper)
    assert "rank  p (a)" in str(made).splitlines()[0]
    p = 2 / 2**6  # six equal signs
    line = next(line for line in str(made).splitlines() if line.startswith("b"))
    assert line.split()[-2:] == ["1.0", f"{p:.3f}"]
    assert "exact with mean ranks for ties and without differences of 0" in str(made)
    assert "A (published)" in str(made)
    assert "| A (published) | 82.60 ± 0.44 |" in made.to_markdown()
    assert r"82.60 $\pm$ 0.44" in made.to_latex()
    header, first, second, *_ = made.to_csv().splitlines()
    tail = ["rank", "wilcoxon p (a)", "wilcoxon Holm p (a)", "t p (a)", "t Holm p (a)"]
    assert header.split(",")[-5:] == tail
    assert first.split(",")[-5:] == ["2.0", "", "", "", ""]
    assert [float(x) for x in second.split(",")[-5:]] == pytest.approx([1.0, p, p, 0.0, 0.0])
    assert "published" not in made.to_csv()


def test_a_verdict_stands_after_p_and_beside_the_papers() -> None:
    paper = Printed(tests={"B": "0.043/1"}, notes=("ppdg/table7: pairs unsaid",))
    made = table(
        runs_of("a", "b", "c"), metric="accuracy", reference="a", test="t", published=paper
    )
    fields = {row[0]: row[-1] for row in made.rows(lambda text, _: text)}
    # b is a tenth above a in every pair, c the same as a.
    assert fields == {
        "method": "p/h (a)", "a": "", "b": "< 0.001/1", "c": "1.000/0", "B (published)": "0.043/1",
    }  # fmt: skip
    notes = "\n".join(made.notes)
    assert "p: paired t-test against a on 6 pairs (target, seed)" in notes
    assert "h = 1 where this p is below 0.05" in notes
    assert "ppdg/table7: pairs unsaid" in notes
    without = table(runs_of("a", "b"), metric="accuracy", published=paper)
    assert without.published == {}


def test_a_test_whose_ranks_lean_away_from_the_mean_is_not_for_it() -> None:
    """Worse at eleven of twelve sites, and ahead on average by one alone: W⁺ = 12, W⁻ = 66."""
    d = [-0.001 * k for k in range(1, 12)] + [0.15]
    assert sum(d) > 0 and wilcoxon(d) < 0.05 and not agree(d)
    assert agree([-x for x in d[:11]]) and not agree([0.0, 0.0])
