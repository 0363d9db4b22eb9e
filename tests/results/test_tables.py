"""Tables from results made by hand; the numbers are means and scipy's standard errors."""

from __future__ import annotations

import csv
import io
import random
import re
from dataclasses import replace
from itertools import product

import pytest
import scipy.stats
from rich.console import Console

from unseen.errors import UnseenError
from unseen.studies.results.formats import LEGEND
from unseen.studies.results.selection import Selected, beside_constant
from unseen.studies.results.table_of_runs import Layout, table
from unseen.studies.results.tables import Table

#: Accuracies per method, task and seed.
ACCURACY = {
    "fedavg": {"0": [0.80, 0.82, 0.84], "15": [0.90, 0.91, 0.92]},
    "ppdg(lam=0.2)": {"0": [0.85, 0.85, 0.88], "15": [0.89, 0.90, 0.91]},
    "pcgrad": {"0": [0.70, 0.72, 0.71], "15": [0.60, 0.75, 0.60]},
}


def results(values: dict[str, dict[str, list[float | None]]], metric: str) -> list[Selected]:
    return [
        Selected(method, task, seed, 7, {metric: x})
        for method, tasks in values.items()
        for task, xs in tasks.items()
        for seed, x in enumerate(xs)
    ]


def cells(made: Table) -> dict[tuple[str, str], str]:
    """The texts as a reader of the plain table sees them."""
    return {
        (method, column): cell.text(made.number_text)
        for method, row in zip(made.methods, made.cells, strict=True)
        for column, cell in zip(made.columns, row, strict=True)
    }


def rows_of(text: str) -> list[list[str]]:
    """The rows as Python's csv module reads them, all of one length."""
    rows = list(csv.reader(io.StringIO(text), strict=True))
    assert {len(row) for row in rows} == {len(rows[0])}
    return rows


@pytest.fixture
def made() -> Table:
    return table(results(ACCURACY, "accuracy"), metric="accuracy")


def test_cells_are_means_and_scipys_standard_errors(made: Table) -> None:
    assert made.methods == ("fedavg", "ppdg(lam=0.2)", "pcgrad")
    assert made.columns == ("0", "15", "average", "worst")
    for method, tasks in ACCURACY.items():
        a, b = tasks["0"], tasks["15"]
        expected = {
            "0": a,
            "15": b,
            "average": [(x + y) / 2 for x, y in zip(a, b, strict=True)],
            "worst": [min(x, y) for x, y in zip(a, b, strict=True)],
        }
        row = made.cells[made.methods.index(method)]
        for column, cell in zip(made.columns, row, strict=True):
            value, error, n = cell.fields()
            assert value == pytest.approx(sum(expected[column]) / 3)
            assert error == pytest.approx(scipy.stats.sem(expected[column]))
            assert n == 3


def test_the_average_is_taken_per_seed_first() -> None:
    # The tasks move against each other: per seed both averages are 0.75, so the error is 0.
    values = {"fedavg": {"0": [0.7, 0.8], "15": [0.8, 0.7]}}
    made = table(results(values, "accuracy"), metric="accuracy")
    assert cells(made) == {
        ("fedavg", "0"): "75.0 ± 5.0",
        ("fedavg", "15"): "75.0 ± 5.0",
        ("fedavg", "average"): "75.0 ± 0.0",
        ("fedavg", "worst"): "70.0 ± 0.0",
    }


def test_of_losses_the_worst_is_the_highest_and_three_decimals_are_shown() -> None:
    values = {"fedavg": {"0": [0.7, 0.8], "15": [0.8123, 0.7]}}
    made = table(results(values, "loss"), metric="loss")
    shown = cells(made)
    assert shown["fedavg", "worst"] == "0.806 ± 0.006"
    assert shown["fedavg", "0"] == "0.750 ± 0.050"
    assert made.notes[0] == "loss, mean ± standard error over 2 seeds; lower is better"


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("accuracy", "12.3"),
        ("balanced-accuracy", "12.3"),
        ("worst accuracy@region", "12.3"),
        ("auroc", "0.123"),
        ("pearson", "0.123"),
        ("loss", "0.123"),
    ],
)
def test_accuracies_are_shown_in_percent(metric: str, text: str) -> None:
    made = table([Selected("fedavg", "0", 0, 1, {metric: 0.1234})], metric=metric)
    assert made.cells[0][0].text(made.number_text) == text
    assert ("percent" in made.notes[0]) == ("accuracy" in metric)
    assert "one seed: no standard error, differences may be noise" in made.notes[0]


def test_no_negative_zero() -> None:
    made = table([Selected("fedavg", "0", 0, 1, {"pearson": -0.0001})], metric="pearson")
    assert made.cells[0][0].text(made.number_text) == "0.000"


def test_missing_jobs_are_counted_not_averaged_over() -> None:
    done = [
        r
        for r in results(ACCURACY, "accuracy")
        if (r.method, r.task, r.seed) != ("fedavg", "15", 1)
    ]
    done = [r for r in done if r.method != "pcgrad"]
    made = table(
        done, "accuracy", Layout(methods=list(ACCURACY), tasks=["0", "15"], seeds=[0, 1, 2])
    )
    shown = cells(made)
    assert shown["fedavg", "0"] == "82.0 ± 1.2"
    assert shown["fedavg", "15"] == "91.0 ± 1.0 (2/3 seeds)"
    # Seeds 0 and 2 have both tasks: (0.80 + 0.90) / 2 and (0.84 + 0.92) / 2.
    assert shown["fedavg", "average"] == "86.5 ± 1.5 (2/3 seeds)"
    assert shown["pcgrad", "0"] == shown["pcgrad", "average"] == "0/3 seeds"
    # A cell with fewer seeds is not compared, and one alone is not compared either.
    assert made.marks(0) == {0: "second", 1: "best"}
    assert made.marks(1) == {1: ""}
    fields = rows_of(made.to_csv())
    assert fields[3] == ["pcgrad", *["", "", "", "", "0"] * 4]


def test_undefined_is_written_out_and_never_averaged() -> None:
    values = {
        "fedavg": {"0": [0.8, 0.7], "15": [None, None]},
        "ppdg": {"0": [0.8, None], "15": [0.5, 0.6]},
    }
    made = table(results(values, "auroc"), metric="auroc", layout=Layout(protocol=["rounds: 20"]))
    assert cells(made) == {
        ("fedavg", "0"): "0.750 ± 0.050",
        ("fedavg", "15"): "undefined",
        ("fedavg", "average"): "undefined",
        ("fedavg", "worst"): "undefined",
        ("ppdg", "0"): "0.800 (1 undefined)",
        ("ppdg", "15"): "0.550 ± 0.050",
        ("ppdg", "average"): "0.650 (1 undefined)",
        ("ppdg", "worst"): "0.500 (1 undefined)",
    }
    assert made.marks(0) == {0: ""}
    assert [row[6] for row in rows_of(made.to_csv())] == ["15 mean", "", "0.55"]
    assert [row[4] for row in rows_of(made.runs_csv())].count("") == 3


def test_a_domain_left_out_of_a_tasks_mean_is_named() -> None:
    run = Selected("fedavg", "sites", 0, 3, {"auroc": 0.7, "loss": 1.0}, {"auroc": ("h7",)})
    made = table([run], metric="auroc")
    why = "its examples are of one class; the task's mean leaves it out"
    assert made.notes[1] == f"auroc is undefined at h7 (task sites): {why}"
    assert len(table([run], metric="loss").notes) == 1


def test_a_task_without_a_value_says_what_the_summaries_do() -> None:
    runs = [
        Selected("fedavg", "a", 0, 3, {"pearson": None}, {"pearson": ("a",)}),
        Selected("fedavg", "b", 0, 3, {"pearson": 0.5}),
    ]
    made = table(runs, metric="pearson")
    over = "average and worst over the 1 of 2 targets where pearson is defined; not at: a"
    assert made.notes[1:] == (f"{over} (equal labels or predictions)",)
    assert made.rows(lambda t, _: t)[1][1:] == ["undefined", "0.500", "0.500", "0.500"]
    runs.append(Selected("ppdg", "a", 0, 3, {"pearson": 0.25}))
    made = table(runs, metric="pearson")  # not the data's doing
    why = "its labels or the predictions are all equal"
    then = "that seed is in no average or worst of fedavg"
    assert made.notes[1:] == (f"pearson of fedavg is undefined at a (task a): {why}; {then}",)
    assert made.rows(lambda t, _: t)[1][1:] == ["undefined", "0.500", "undefined", "undefined"]


def one_class(sites: int, seeds: int = 2) -> list[Selected]:
    """Two methods with AUROC everywhere but at site3; a diverged job of ppdg there."""
    runs = []
    for s, (m, shift) in product(range(seeds), (("fedavg", 0.0), ("ppdg", 0.05))):
        for k in range(sites):
            value = 0.5 + shift + k / 50 + s / 100
            runs.append(Selected(m, f"site{k}", s, 3, {"auroc": value}))
    lost = {"metrics": {"auroc": None}, "undefined": {"auroc": ("site3",)}}
    return [replace(r, **lost) if r.task == "site3" else r for r in runs]


def test_a_site_of_one_class_leaves_summaries_and_ranks_of_the_others() -> None:
    runs = one_class(20)
    made = table(runs, metric="auroc", reference="fedavg")
    whole = table([r for r in runs if r.task != "site3"], metric="auroc", reference="fedavg")
    assert [row[20:] for row in made.cells] == [row[19:] for row in whole.cells]
    assert made.tail == whole.tail and made.comparison == whole.comparison
    assert made.ranking() == whole.ranking() and made.ranking().targets == 19
    assert made.comparison is not None and made.comparison.ranks == {"ppdg": 1.0, "fedavg": 2.0}
    assert made.notes[1] == (
        "average, worst, 10th percentile, rank and p over the 19 of 20 targets where auroc is "
        "defined; not at: site3 (one class)"
    )
    assert sum("undefined" in note for note in made.notes) == 0
    assert "over the 19 targets within each seed" in made.tail_note
    for text in (made.to_csv(), made.runs_csv()):
        assert "undefined" not in text


def test_a_diverged_job_is_not_the_datas_doing() -> None:
    runs = [
        replace(r, round=-1, metrics={"auroc": None}) if (r.task, r.seed) == ("site1", 0) else r
        for r in one_class(3)
    ]
    made = table(runs, metric="auroc")
    assert made.counted == made.tasks
    assert [cell.undefined for cell in made.cells[0]] == [0, 1, 0, 1, 1]
    line = "a seed with a job that diverged is in no average or worst of its method"
    assert made.notes[1:] == (line,)


def test_where_a_constant_would_be_better_is_told_in_one_line() -> None:
    def run(method: str, task: str, seed: int, *worse: str) -> Selected:
        return Selected(method, task, seed, 0, {"rmse": 1.0}, {}, {"rmse": worse})

    runs = [run("fedavg", "a", 0, "a"), run("fedavg", "a", 1, "a"), run("fedavg", "b", 0)]
    runs += [run("fedavg", "b", 1, "b"), *(run("ppdg", t, s) for t in "ab" for s in (0, 1))]
    line = "worse than a constant: fedavg at a, b (1 of 2 seeds)"
    made = table(runs, metric="rmse")
    assert made.notes[1] == line
    for text in (made.to_markdown(), made.to_latex(), str(made), made.to_notes()):
        assert line in text
    good = [replace(r, worse={}) for r in runs]
    level = [replace(r, level={"rmse": (r.task,)} if r.method == "ppdg" else {}) for r in good]
    assert table(level, metric="rmse").notes[1] == "level with a constant: ppdg at a, b"
    assert not any("constant" in note for note in table(good, metric="rmse").notes)


def test_all_targets_are_all_domains_of_all_tasks() -> None:
    """Tasks of several targets: 3 of 6 are not all, and all 6 are."""
    sites = {"a": ("a", "d"), "b": ("b", "e"), "c": ("c", "f")}

    def runs(*worse: str) -> list[Selected]:
        return [
            Selected(
                "fedavg", task, 0, 0, {"rmse": 1.0}, {},
                {"rmse": tuple(site for site in own if site in worse)}, {}, own,
            )
            for task, own in sites.items()
        ]  # fmt: skip

    assert table(runs("a", "d", "b"), metric="rmse").notes[1] == (
        "worse than a constant: fedavg at a, d (task a), b"
    )
    assert table(runs("a", "b", "c"), metric="rmse").notes[1].endswith("fedavg at a, b, c")
    assert table(runs(*"abcdef"), metric="rmse").notes[1].endswith("fedavg at all 6 targets")


def test_of_many_targets_a_note_names_the_first_and_counts_the_others() -> None:
    runs = [
        Selected("fedavg", f"t{k}", 0, 0, {"rmse": 1.0}, {}, {"rmse": (f"t{k}",) * (k < 20)})
        for k in range(21)
    ]
    named = ", ".join(f"t{k}" for k in range(8))
    line = f"worse than a constant: fedavg at {named}, 12 more"
    assert table(runs, metric="rmse").notes[1] == line


@pytest.mark.parametrize(
    ("metric", "best"), [("calibration-slope", 1), ("calibration-intercept", 0)]
)
def test_what_is_best_at_a_value_has_no_winner(metric: str, best: int) -> None:
    figures = {"good": (1.0, 1.0), "bad": (3.0, 0.2)}
    runs = [
        Selected(method, task, seed, 0, {metric: value})
        for method, own in figures.items()
        for task, value in zip("ab", own, strict=True)
        for seed in (0, 1)
    ]
    made = table(runs, metric=metric, reference="good")
    assert made.columns == ("a", "b", "average") and made.comparison is None
    assert made.notes[0].endswith(f"over 2 seeds; best at {best}")
    assert "**" not in made.to_markdown() and "<ins>" not in made.to_markdown()
    assert not any(beside_constant([{"domain": "a", metric: 0.0}], [{"domain": "a", metric: 0.9}]))


@pytest.mark.parametrize(
    ("value", "text"), [(4.25, "4.250"), (1234.5, "1234.5"), (2e8, "200000000")]
)
def test_large_numbers_need_few_decimals(value: float, text: str) -> None:
    made = table([Selected("fedavg", "0", 0, 1, {"rmse": value})], metric="rmse")
    assert made.rows(lambda t, _: t)[1][1] == text


def test_methods_that_do_not_apply_say_why() -> None:
    made = table(
        results(ACCURACY, "accuracy"),
        "accuracy",
        Layout(
            not_applicable={"harmofl": "needs images"}, protocol=["selection: source-validation"]
        ),
    )
    assert [cells(made)["harmofl", column] for column in made.columns] == ["n/a"] * 4
    assert made.notes[1:] == ("n/a: harmofl needs images", "selection: source-validation")


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_equal_numbers_share_a_mark(metric: str) -> None:
    values = {"a": [0.5], "b": [0.7001], "c": [0.7002], "d": [0.9], "e": [0.5]}
    made = table(results({m: {"t": x} for m, x in values.items()}, metric), metric=metric)
    # b and c are both shown as 70.0, or as 0.700.
    best, second = ({0, 4}, {1, 2}) if metric == "loss" else ({3}, {1, 2})
    assert {i for i, mark in made.marks(0).items() if mark == "best"} == best
    assert {i for i, mark in made.marks(0).items() if mark == "second"} == second


def test_order_of_results_changes_nothing(made: Table) -> None:
    shuffled = results(ACCURACY, "accuracy")
    random.Random(3).shuffle(shuffled)
    again = table(shuffled, "accuracy", Layout(methods=made.methods, tasks=["0", "15"]))
    assert again == made
    assert again.runs_csv() == made.runs_csv()


def test_a_table_of_some_methods_and_tasks_only(made: Table) -> None:
    some = table(
        results(ACCURACY, "accuracy"),
        "accuracy",
        Layout(methods=["pcgrad"], tasks=["15"], seeds=[1]),
    )
    assert cells(some) == {("pcgrad", "15"): "75.0", ("pcgrad", "average"): "75.0"}
    assert len(some.runs) == 1
    names = ["pcgrad", "fedavg", "pcgrad"]
    twice = table(results(ACCURACY, "accuracy"), metric="accuracy", layout=Layout(methods=names))
    assert twice.methods == ("pcgrad", "fedavg")  # one row each, in the order given


def test_wrong_input() -> None:
    run = Selected("fedavg", "0", 0, 1, {"accuracy": 0.5})
    with pytest.raises(UnseenError, match="found two of"):
        table([run, run], metric="accuracy")
    with pytest.raises(UnseenError, match="did you mean 'accuracy'"):
        table([run], metric="acuracy")
    with pytest.raises(UnseenError, match="no job is finished"):
        table([], metric="accuracy")


AWKWARD = r"a_b|c*d & 5% $x^2~\{z}#<i>"


@pytest.fixture
def awkward() -> Table:
    runs = [Selected(AWKWARD, "t_1|x", s, 4, {"accuracy": 0.5 + s / 10}) for s in range(2)] + [
        Selected("[bold]b[/bold]", "t_1|x", s, 5, {"accuracy": 0.7}) for s in range(2)
    ]
    return table(
        runs,
        "accuracy",
        Layout(
            protocol=["selection: last", "buffers: a_b\nversions: 1 × 2"], title="Digits & more"
        ),
    )


def test_markdown(made: Table, awkward: Table) -> None:
    lines = made.to_markdown().splitlines()
    assert lines[:5] == [
        "| method | 0 | 15 | average | worst |",
        "| :-- | --: | --: | --: | --: |",
        "| fedavg | <ins>82.0 ± 1.2</ins> | **91.0 ± 0.6** | <ins>86.5 ± 0.9</ins> "
        "| <ins>82.0 ± 1.2</ins> |",
        "| ppdg(lam=0.2) | **86.0 ± 1.0** | <ins>90.0 ± 0.6</ins> | **88.0 ± 0.8** "
        "| **86.0 ± 1.0** |",
        "| pcgrad | 71.0 ± 0.6 | 65.0 ± 5.0 | 68.0 ± 2.8 | 64.0 ± 4.0 |",
    ]
    text = awkward.to_markdown()
    assert text.startswith("**Digits & more**\n\n| method | t\\_1\\|x | average |\n")
    assert "| a\\_b\\|c\\*d & 5% $x^2\\~\\\\{z}#\\<i> | <ins>55.0 ± 5.0</ins> |" in text
    assert text.endswith(f"\n- selection: last\n- buffers: a\\_b versions: 1 × 2\n- {LEGEND}\n")


def test_latex(awkward: Table) -> None:
    assert awkward.to_latex().splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Digits \& more: accuracy in percent, mean $\pm$ standard error over 2 seeds; "
        r"higher is better}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & t\_1\textbar{}x & average \\",
        r"\midrule",
        r"a\_b\textbar{}c*d \& 5\% \$x\textasciicircum{}2\textasciitilde{}\textbackslash{}"
        r"\{z\}\#$<$i$>$ & \underline{55.0 $\pm$ 5.0} & \underline{55.0 $\pm$ 5.0} \\",
        r"[bold]b[/bold] & \textbf{70.0 $\pm$ 0.0} & \textbf{70.0 $\pm$ 0.0} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        r"{\footnotesize\raggedright selection: last\par}",
        r"{\footnotesize\raggedright buffers: a\_b versions: 1 $\times$ 2\par}",
        rf"{{\footnotesize\raggedright {LEGEND}\par}}",
        r"\end{table}",
    ]


def test_csv_holds_raw_numbers_and_the_protocol_lies_beside_it(awkward: Table) -> None:
    text = awkward.to_csv()
    assert rows_of(text)[0] == [
        "method", "t_1|x mean", "t_1|x se", "t_1|x low", "t_1|x high", "t_1|x n",
        "average mean", "average se", "average low", "average high", "average n",
    ]  # fmt: skip
    name, value, error, low, high, n, *_ = rows_of(text)[1]
    assert (name, float(value), low, high, n) == (AWKWARD, 0.55, "0.5", "0.6", "2")
    assert float(error) == pytest.approx(scipy.stats.sem([0.5, 0.6]))
    assert len(rows_of(text)) == 3
    assert awkward.to_notes().splitlines()[-3:] == [
        "accuracy in percent, mean ± standard error over 2 seeds; higher is better",
        "selection: last",
        "buffers: a_b versions: 1 × 2",
    ]
    assert rows_of(awkward.runs_csv()) == [
        ["method", "task", "seed", "round", "accuracy"],
        [AWKWARD, "t_1|x", "0", "4", "0.5"],
        [AWKWARD, "t_1|x", "1", "4", "0.6"],
        ["[bold]b[/bold]", "t_1|x", "0", "5", "0.7"],
        ["[bold]b[/bold]", "t_1|x", "1", "5", "0.7"],
    ]


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_number_of_seeds_stands_in_every_caption(seeds: int) -> None:
    runs = [Selected("a", "0", s, 1, {"accuracy": 0.5 + s / 10}) for s in range(seeds)]
    said = "over 2 seeds" if seeds == 2 else "one seed: no standard error, differences may be noise"
    for title in ("", "Digits"):
        made = table(runs, metric="accuracy", layout=Layout(title=title))
        out = io.StringIO()
        Console(file=out, width=120).print(made.to_rich())
        captions = [line for line in made.to_latex().splitlines() if line.startswith(r"\caption")]
        for text in (str(made), made.to_markdown(), made.to_notes(), out.getvalue(), *captions):
            assert said in text
        assert said in made.caption and len(captions) == 1


def test_a_tables_ranking_leaves_out_summaries_and_what_lacks_a_seed(made: Table) -> None:
    # ppdg, fedavg, pcgrad on "0"; fedavg, ppdg, pcgrad on "15".
    assert made.ranking().ranks == {"fedavg": 1.5, "ppdg(lam=0.2)": 1.5, "pcgrad": 3.0}
    assert made.ranking().targets == 2
    some = [r for r in results(ACCURACY, "accuracy") if (r.method, r.seed) != ("pcgrad", 1)]
    assert set(table(some, metric="accuracy").ranking().ranks) == {"fedavg", "ppdg(lam=0.2)"}


def test_plain_text(made: Table) -> None:
    assert str(made) == "\n".join([
        "method                  0          15     average       worst",
        "-------------------------------------------------------------",
        "fedavg         82.0 ± 1.2  91.0 ± 0.6  86.5 ± 0.9  82.0 ± 1.2",
        "ppdg(lam=0.2)  86.0 ± 1.0  90.0 ± 0.6  88.0 ± 0.8  86.0 ± 1.0",
        "pcgrad         71.0 ± 0.6  65.0 ± 5.0  68.0 ± 2.8  64.0 ± 4.0",
        "accuracy in percent, mean ± standard error over 3 seeds; higher is better",
    ])  # fmt: skip


def test_rich(awkward: Table) -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system="standard")
    console.print(awkward.to_rich())
    text = out.getvalue()
    assert "Digits & more" in text
    assert "[bold]b[/bold]" in text  # names are no markup
    assert re.search(r"\x1b\[1m *70\.0 ± 0\.0", text)  # bold
    assert re.search(r"\x1b\[4m *55\.0 ± 5\.0", text)  # underlined
    assert "selection: last" in text
