"""Selection rules on records made by hand."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.studies.results.selection import SELECTIONS, Selected, rule, select, selected, value

Record = dict[str, Any]


def record(round: int, domain: str, role: str = "source", **metrics: Any) -> Record:
    job = {"method": "fedavg", "task": "0", "seed": 0}
    return job | {"round": round, "role": role, "domain": domain, "examples": 10} | metrics


def records(metric: str, role: str = "source", **domains: list[float | None]) -> list[Record]:
    """One list of values per domain, one value per round."""
    return [
        record(r, domain, role, **{metric: x})
        for domain, values in domains.items()
        for r, x in enumerate(values)
    ]


class Poison(Sequence[Any]):
    """Records that nobody may look at."""

    def refuse(self, *_: object) -> NoReturn:
        raise AssertionError("the target was read")

    __getitem__ = __len__ = __iter__ = __bool__ = __contains__ = __reversed__ = refuse  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["source-validation", "ood-validation", "last"])
def test_no_rule_but_the_oracle_reads_the_target(name: str) -> None:
    source = records("accuracy", a=[0.5, 0.9, 0.6]) + records(
        "accuracy", "ood-validation", v=[0.7, 0.6, 0.5]
    )
    chosen = {"source-validation": 1, "ood-validation": 0, "last": 2}
    assert select(name, source, Poison(), "accuracy") == chosen[name]
    assert SELECTIONS[name](source, Poison(), "accuracy") == chosen[name]


def test_the_oracle_reads_the_target_and_no_source() -> None:
    assert set(SELECTIONS) == {"source-validation", "ood-validation", "last", "target-oracle"}
    target = records("accuracy", "target", t=[0.5, 0.9])
    assert select("target-oracle", Poison(), target, "accuracy") == 1
    with pytest.raises(AssertionError, match="the target was read"):
        select("target-oracle", [], Poison(), "accuracy")


def test_each_domain_counts_once_whatever_its_size() -> None:
    # Means by domain: (0.9 + 0.5) / 2 = 0.70 and (0.7 + 0.8) / 2 = 0.75. Weighted by examples,
    # round 0 would win: 0.88 against 0.705.
    source = [
        record(0, "big", accuracy=0.9) | {"examples": 950},
        record(0, "small", accuracy=0.5) | {"examples": 50},
        record(1, "big", accuracy=0.7) | {"examples": 950},
        record(1, "small", accuracy=0.8) | {"examples": 50},
    ]
    assert select("source-validation", source, [], "accuracy") == 1


def test_less_can_be_better() -> None:
    values = {"a": [0.4, 0.2, 0.3], "b": [0.1, 0.2, 0.4]}
    assert select("source-validation", records("loss", **values), [], "loss") == 1
    assert select("source-validation", records("accuracy", **values), [], "accuracy") == 2


def test_the_earliest_round_wins_ties() -> None:
    # The means tie though the domains swap places.
    source = records("accuracy", a=[0.1, 0.9, 0.7, 0.9], b=[0.2, 0.7, 0.9, 0.7])
    assert select("source-validation", source, [], "accuracy") == 1
    assert select("source-validation", source[::-1], [], "accuracy") == 1


def test_means_that_differ_by_rounding_alone_are_equal() -> None:
    """(1 + 5) / 2 and (2 + 4) / 2 tenths are both 3, and as floats a last digit apart."""
    rows = records("accuracy", a=[0.1, 0.2], b=[0.5, 0.4])
    assert (0.1 + 0.5) / 2 < (0.2 + 0.4) / 2
    assert select("source-validation(ties='first')", rows, [], "accuracy") == 0
    rows = [row | {"loss": loss} for row, loss in zip(rows, (2.0, 3.0, 2.0, 3.0), strict=True)]
    assert select("source-validation", rows, [], "accuracy") == 0


def test_of_equal_rounds_the_lowest_loss_wins() -> None:
    """Nine of ten examples are of one class: all rounds answer it, and only the loss falls."""
    accuracy = records("accuracy", a=[0.8, 0.9, 0.9, 0.9], b=[0.8, 0.9, 0.9, 0.9])
    losses = records("loss", a=[0.6, 0.5, 0.2, 0.4], b=[0.6, 0.5, 0.4, 0.2])
    source = [one | other for one, other in zip(accuracy, losses, strict=True)]
    assert select("source-validation", source, [], "accuracy") == 2
    assert select("source-validation(ties='first')", source, [], "accuracy") == 1
    with pytest.raises(UnseenError, match="ties"):
        select("source-validation(ties='last')", source, [], "accuracy")


def test_an_undefined_metric_leaves_its_domain_out() -> None:
    # Means: 0.6, 0.7 (b alone), undefined, 0.65.
    source = records("auroc", a=[0.5, None, None, 0.6], b=[0.7, 0.7, None, 0.7])
    assert select("source-validation", source, [], "auroc") == 1


def test_rounds_in_which_most_sources_answered_are_compared() -> None:
    # Without c, whose figures are low, rounds 2 and 3 have the higher means: 0.85 and 0.9.
    source = records("accuracy", a=[0.6, 0.7, 0.8, 0.9], b=[0.7, 0.8, 0.9, 0.9], c=[0.3, 0.2])
    assert select("source-validation", source, [], "accuracy") == 1  # 0.567 against 0.533
    source += [record(3, "c", accuracy=0.5)]
    assert select("source-validation", source, [], "accuracy") == 3
    # Whoever comes late counts as well, and an undefined figure is an answer.
    late = records("auroc", a=[0.9, 0.6, 0.7]) + [record(r, "b", auroc=None) for r in (1, 2)]
    assert select("source-validation", late, [], "auroc") == 2


def test_a_metric_that_is_defined_nowhere_is_an_error() -> None:
    source = records("auroc", a=[None, None], b=[None, None])
    with pytest.raises(UnseenError, match=r"undefined in all 4 evaluations \(at a, b\)"):
        select("source-validation", source, [], "auroc")


def test_roles_are_kept_apart() -> None:
    source = records("accuracy", a=[0.5, 0.9]) + records("accuracy", "ood-validation", v=[0.9, 0.1])
    assert select("source-validation", source, [], "accuracy") == 1
    assert select("ood_validation", source, [], "accuracy") == 0


def test_ood_validation_says_how_to_name_a_domain() -> None:
    with pytest.raises(UnseenError, match=r"\[holdout\].*validation = \['c'\]"):
        select("ood-validation", records("accuracy", a=[0.5]), [], "accuracy")


def test_last_is_the_last_round_evaluated() -> None:
    source = [record(9, "a", accuracy=None), record(4, "a", accuracy=0.9)]
    assert select("last", source, [], "accuracy") == 9
    with pytest.raises(UnseenError, match="no evaluations"):
        select("last", [], [], "accuracy")


def test_the_oracle_has_a_metric_and_a_start_of_its_own() -> None:
    target = [
        record(r, "t", "target", accuracy=a, loss=x)
        for r, (a, x) in enumerate([(0.6, 0.1), (0.9, 0.5), (0.7, 0.3), (0.8, 0.4)])
    ]
    for expression, chosen in {
        "target-oracle": 1,
        "target-oracle(metric='accuracy')": 1,
        "target-oracle(metric='loss')": 0,
        "target-oracle(metric='loss', after=1)": 2,
        "target-oracle(after=2)": 3,
        "target-oracle(metric='accuracy', after=0)": 1,
    }.items():
        assert select(expression, [], target, "accuracy") == chosen, expression
    # The study's own direction belongs to the study's own metric only.
    assert select("target-oracle(metric='accuracy')", [], target, "loss") == 1
    assert select("target-oracle", [], target, "loss") == 0


def test_the_oracle_takes_of_equal_rounds_the_one_of_the_lowest_loss() -> None:
    rounds = enumerate([(0.8, 0.5), (0.8, 0.3), (0.8, 0.3), (0.7, 0.1)])
    target = [record(r, "t", "target", accuracy=a, loss=x) for r, (a, x) in rounds]
    assert select("target-oracle", [], target, "accuracy") == 1
    assert select("target-oracle(ties='first')", [], target, "accuracy") == 0
    with pytest.raises(UnseenError, match="must be one of .loss., .first."):
        select("target-oracle(ties='last')", [], target, "accuracy")


def test_the_oracle_averages_over_target_domains() -> None:
    target = records("accuracy", "target", s=[0.9, 0.7], t=[0.1, 0.6])
    assert select("target-oracle", [], target, "accuracy") == 1


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("source-validaton", "did you mean 'source-validation'"),
        ("target-oracle(afer=5)", "did you mean 'after'"),
        ("last(after=5)", "no option 'after'"),
        ("target-oracle(source=5)", "no option 'source'"),
        ("last+last", "one rule; found 2"),
    ],
)
def test_a_wrong_rule_is_told_before_any_record_is_there(expression: str, message: str) -> None:
    with pytest.raises(UnseenError, match=message):
        rule(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("target-oracle(after=-1)", "after must be an integer"),
        ("target-oracle(after=1.5)", "after must be an integer"),
        ("target-oracle(after=2)", "no round is left after 2"),
        ("target-oracle(metric='acuracy')", "did you mean 'accuracy'"),
        ("target-oracle(metric=5)", "unknown metric '5'"),
    ],
)
def test_wrong_options_of_the_oracle(expression: str, message: str) -> None:
    with pytest.raises(UnseenError, match=message):
        select(expression, [], records("accuracy", "target", t=[0.5, 0.6]), "accuracy")


dyadic = st.integers(0, 64).map(lambda n: n / 64)  # sums of these are exact in float64
tables = st.lists(
    st.lists(st.one_of(st.none(), dyadic), min_size=3, max_size=3), min_size=1, max_size=6
).filter(lambda rows: any(x is not None for row in rows for x in row))


#: One of which more is better, and one of which less is.
metrics = st.sampled_from(["accuracy", "loss"])


def laid_out(rows: list[list[float | None]], metric: str, shift: float = 0.0) -> list[Record]:
    return [
        record(r, f"d{i}", **{metric: None if x is None else x + shift})
        for r, row in enumerate(rows)
        for i, x in enumerate(row)
    ]


@given(tables, metrics, st.randoms(use_true_random=False))
def test_the_order_of_records_changes_nothing(
    rows: list[list[float | None]], metric: str, shuffler: random.Random
) -> None:
    source = laid_out(rows, metric)
    shuffled = source.copy()
    shuffler.shuffle(shuffled)
    for name in ("source-validation", "last"):
        before = select(name, source, [], metric)
        assert select(name, shuffled, [], metric) == before
    oracle = select("target-oracle", [], source, metric)
    assert select("target-oracle", [], shuffled, metric) == oracle


@given(tables, metrics, st.integers(-64, 64))
def test_a_constant_added_to_all_values_changes_nothing(
    rows: list[list[float | None]], metric: str, shift: int
) -> None:
    before = select("source-validation", laid_out(rows, metric), [], metric)
    shifted = laid_out(rows, metric, shift / 64)
    assert select("source-validation", shifted, [], metric) == before


@given(tables, metrics)
def test_the_choice_is_the_best_by_exhaustion(rows: list[list[float | None]], metric: str) -> None:
    chosen = select("source-validation", laid_out(rows, metric), [], metric)
    found = [[x for x in row if x is not None] for row in rows]
    means = {r: sum(xs) / len(xs) for r, xs in enumerate(found) if xs}
    best = min(means.values()) if metric == "loss" else max(means.values())
    assert chosen == next(r for r, x in means.items() if x == best)


GROUPED = {
    "accuracy@region": {"West": 0.9, "East": 0.6, "South": None},
    "loss@region": {"West": 0.2, "East": 0.7, "South": 0.0},
    "examples@region": {"West": 10, "East": 5, "South": 0},
}


def test_the_worst_group_is_among_those_with_examples() -> None:
    found = record(0, "t", "target", accuracy=0.8, loss=0.4, **GROUPED)
    assert value(found, "accuracy") == 0.8
    assert value(found, "worst accuracy@region") == 0.6
    assert value(found, "worst loss@region") == 0.7  # of losses, the highest is the worst
    empty = GROUPED | {"examples@region": dict.fromkeys(["West", "East", "South"], 0)}
    assert value(record(0, "t", **empty), "worst accuracy@region") is None
    one_class = record(
        0, "t", **{"auroc@sex": {"f": None, "m": 0.8}, "examples@sex": {"f": 3, "m": 4}}
    )
    assert value(one_class, "worst auroc@sex") == 0.8


@pytest.mark.parametrize("name", ["accuracy@region", "examples", "examples@region", "round"])
def test_what_is_no_metric(name: str) -> None:
    with pytest.raises(UnseenError, match="unknown metric"):
        value(record(0, "t", accuracy=0.8, **GROUPED), name)


def test_sources_can_select_by_their_worst_group() -> None:
    def grouped(r: int, west: float, east: float) -> Record:
        return record(
            r, "a", accuracy=0.5,
            **{"accuracy@g": {"w": west, "e": east}, "examples@g": {"w": 5, "e": 5}},
        )  # fmt: skip

    source = [grouped(0, 1.0, 0.2), grouped(1, 0.5, 0.4)]
    assert select("source-validation", source, [], "worst accuracy@g") == 1


def test_selected_reads_the_target_at_the_chosen_round() -> None:
    source = records("accuracy", a=[0.5, 0.9, 0.6])
    target = [
        record(1, "t", "target", accuracy=0.9, auroc=None, **GROUPED),
        record(1, "s", "target", accuracy=0.4, auroc=0.7, **GROUPED),
        record(2, "t", "target", accuracy=1.0, auroc=1.0, **GROUPED),
        record(2, "s", "target", accuracy=1.0, auroc=1.0, **GROUPED),
    ]
    found = selected(source, target, "source-validation", "accuracy")
    assert found == Selected(
        "fedavg", "0", 0, 1,
        {
            "accuracy": pytest.approx(0.65),  # each target domain counts once
            "auroc": pytest.approx(0.7),
            "worst accuracy@region": pytest.approx(0.6),
            "worst loss@region": pytest.approx(0.7),
        },
        {"auroc": ("t",)}, domains=("s", "t"),
    )  # fmt: skip
    assert selected(source, target[::-1], "source-validation", "accuracy") == found


def test_selected_keeps_undefined_undefined() -> None:
    target = [record(0, "t", "target", accuracy=0.9, auroc=None)]
    found = selected(records("accuracy", a=[0.5]), target, "last", "accuracy")
    assert found.metrics == {"accuracy": 0.9, "auroc": None}
    assert found.undefined == {"auroc": ("t",)}


def test_selected_refuses_incomplete_and_mixed_records() -> None:
    source, target = records("accuracy", a=[0.5, 0.6]), records("accuracy", "target", t=[0.5])
    with pytest.raises(UnseenError, match="no record of round 1"):
        selected(source, target, "last", "accuracy")
    with pytest.raises(UnseenError, match="within one job"):
        selected([source[0], source[1] | {"seed": 1}], target, "last", "accuracy")


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, unseen.studies.results.selection, unseen.studies.results.statistics\n"
        "import unseen.studies.results.tables\n"
        "heavy = {'torch', 'scipy', 'sklearn', 'matplotlib', 'rich', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
