"""Tables of many targets and methods: nothing is broken, nothing is lost, at any width."""

from __future__ import annotations

import csv
import io
import random
import re
from collections import Counter
from functools import cache

import numpy
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from unseen.studies.results.formats import BLOCK, LEGEND, LIMIT, LINES
from unseen.studies.results.selection import Selected
from unseen.studies.results.statistics import quantile
from unseen.studies.results.table_of_runs import Layout, table
from unseen.studies.results.tables import FEW, Table

NAMES = ("fedavg", "ppdg(lam=0.2)+ga", "scaffold", "fedavg(weights='uniform')",
         "fedilc-inter(lam=15.0, scale='released', zeros='released')")  # fmt: skip


@cache
def made(targets: int, methods: int) -> Table:
    """Figures that all differ, so that each can be looked for."""
    names = [f"{NAMES[i % 5]}{i // 5 or ''}" for i in range(methods)]
    number = iter(random.Random(targets * 50 + methods).sample(range(100_000), targets * methods))
    runs = [
        Selected(m, f"school {t}", s, 3, {"auroc": value + s / 500})
        for m in names
        for t in range(targets)
        for value in [next(number) / 100]
        for s in range(2)
    ]
    return table(runs, "auroc", Layout(title="Schools"), names[0])


def printed(made: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(made.to_rich())
    return out.getvalue()


def figures(made: Table) -> list[str]:
    """Every cell at a target, as text; all differ."""
    n = len(made.tasks)
    return [c.text(made.number_text) for row in made.cells for c in row[:n]]


@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])
@given(
    targets=st.integers(1, 80), methods=st.integers(1, 41), width=st.integers(60, 200)
)  # fmt: skip
def test_nothing_is_broken_and_nothing_is_lost(targets: int, methods: int, width: int) -> None:
    one = made(targets, methods)
    text = printed(one, width)
    assert max(map(len, text.splitlines())) <= width
    head, _, foot = text.partition("\n\n[1]: " if "\n[1]: " in text else "\n\nauroc, mean")
    fields = [field for line in head.splitlines() for field in re.split(r"  +", line.strip())]
    foot = " ".join(f"[1]: {foot}".split())
    for name in one.methods:
        number = re.search(rf"(\[\d+\]): {re.escape(name)} ", foot)
        assert (number[1] if number else name) in fields, f"{name} is broken"
    if "would take more than" in " ".join(text.split()):
        assert targets * methods > LINES
        assert len(next(csv.reader(io.StringIO(one.to_csv())))) > 5 * targets
        return
    assert set(one.tasks) <= set(fields)
    found = Counter(fields)
    others = [*one.tail, *(c for row in one.cells for c in row[targets:])]
    summaries = Counter(c.text(one.number_text) for c in others)
    for figure in figures(one):
        assert found[figure] == 1 + summaries[figure], figure


@pytest.mark.parametrize("targets", [LIMIT, LIMIT + 1, 74])
def test_documents_turn_the_table_beyond_a_limit(targets: int) -> None:
    one = made(targets, 11)
    markdown, latex, plain = one.to_markdown(), one.to_latex(), str(one)
    widest = max(line.count(" | ") for line in markdown.splitlines())
    if targets <= LIMIT:
        assert widest == LIMIT + 4 and "percentile" not in markdown + latex + plain
        assert latex.count(r"\begin{table}") == 1
    else:
        assert widest == BLOCK and "| method | average | worst | 10th percentile |" in markdown
        assert "| target | fedavg |" in markdown
        assert latex.count(r"\begin{table}") == 1 + 2 * (1 + targets // 40)
        assert max(line.count(" & ") for line in latex.splitlines()) == BLOCK
        assert one.tail_note in "\n".join(one.footnotes)
    others = [*one.tail, *(c for row in one.cells for c in row[targets:])]
    summaries = Counter(c.text(one.number_text) for c in others)
    fields = Counter(re.split(r" *\| *|\n", re.sub(r"<ins>|</ins>|\*\*", "", markdown)))
    columns = Counter(re.split(r"  +|\n", plain))
    for figure in figures(one):
        assert fields[figure] == columns[figure] == 1 + summaries[figure]
    header, *rows = csv.reader(line for line in one.to_csv().splitlines() if line[0] != "#")
    assert len(rows) == 11 and sum(name.endswith(" mean") for name in header) == (
        targets + 2 + (targets > LIMIT)
    )


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.floats(0, 1)
)  # fmt: skip
def test_the_quantile_is_numpys(values: list[float], share: float) -> None:
    expected = float(numpy.quantile(values, share, method="linear"))
    assert quantile(values, share) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(("metric", "lower"), [("auroc", False), ("loss", True)])
def test_the_percentile_is_of_each_seed_and_at_the_bad_end(metric: str, lower: bool) -> None:
    values = {s: [random.Random(s).random() for _ in range(20)] for s in range(3)}
    runs = [
        Selected("a", str(t), s, 0, {metric: x}) for s, xs in values.items()
        for t, x in enumerate(xs)
    ]  # fmt: skip
    one = table(runs, metric=metric)
    expected = [numpy.percentile(xs, 90 if lower else 10) for xs in values.values()]
    assert one.tail[0].values == pytest.approx(expected)
    assert one.tail_name == ("90th percentile" if lower else "10th percentile")
    assert table(runs[: FEW - 1], metric=metric).tail == ()


def test_the_legend_says_what_bold_does_not_mean() -> None:
    one = made(3, 3)
    wide = printed(one, 200)
    for text in (wide, one.to_markdown(), one.to_latex()):
        assert LEGEND in text
    assert "significance" in LEGEND
    assert LEGEND not in made(3, 1).to_markdown()  # nothing is bold in a table of one method
