"""Figures by their data: every number follows from the records that were written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.finished_studies import DOMAINS, write_study

from unseen.core import record_lines
from unseen.studies.report import curves, outcome
from unseen.studies.report.figures import Dots, Figure, Lines
from unseen.studies.report.read import Choice, read
from unseen.studies.report.study_report import StudyReport
from unseen.studies.results import records
from unseen.studies.results.records import Job


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> StudyReport:
    out = tmp_path_factory.mktemp("study")
    write_study(out)
    return read(out, Choice())


def panel(figure: Figure, at: int = 0) -> Lines:
    found = figure.panels[at]
    assert isinstance(found, Lines)
    return found


def by_key(figures: tuple[Figure, ...], key: str) -> Figure:
    return next(figure for figure in figures if figure.key == key)


def test_curves_are_means_over_seeds_with_their_range(part: StudyReport) -> None:
    figures = curves.section(part).figures
    first = panel(by_key(figures, "curves-accuracy-fedavg"))
    lines = {line.name: line for line in first.lines}
    assert list(lines) == ["d1", "d2", "d3", "target"]
    target = lines["target"]
    assert target.kind == "strong" and target.x == tuple(range(6))
    assert target.y == pytest.approx([0.5 * (r + 1) / 6 + 0.0005 for r in range(6)])
    assert target.high[0] - target.low[0] == pytest.approx(0.001)
    assert lines["d2"].y[-1] == pytest.approx(0.6005)
    assert first.marks == (5.0,) and first.percent
    loss = panel(by_key(figures, "curves-loss-fedavg"))
    training = next(line for line in loss.lines if line.name == "in training")
    assert training.y == pytest.approx([1 / (r + 1) for r in range(6)])


def test_all_methods_at_each_target(part: StudyReport) -> None:
    figure = by_key(curves.section(part).figures, "compare-accuracy")
    assert [p.title for p in figure.panels] == ["d0", "d1"]
    assert [line.name for line in panel(figure, 1).lines] == list(part.methods)
    assert panel(figure, 1).lines[2].y[-1] == pytest.approx(0.5 + 0.02 + 0.02 + 0.0005)
    assert panel(figure, 0).limits == panel(figure, 1).limits


def test_many_methods_keep_their_names_behind_one_legend(tmp_path: Path) -> None:
    names = tuple(f"fedprox(mu={i / 10})" for i in range(12))
    write_study(tmp_path, methods=names, tasks=("d0",), seeds=1, settings={"reference": None})
    made = curves.compared(read(tmp_path, Choice()), "accuracy")
    assert {line.name for line in panel(made).lines} == set(names)
    assert made.legend[-1].name == "other methods" and len(made.legend) == 7


def test_weights_only_where_they_move(part: StudyReport) -> None:
    (figure,) = curves.weight_curves(part).figures
    assert figure.fold == "fedavg+ga"
    lines = panel(figure).lines
    assert [line.name for line in lines] == ["d1", "d2", "d3"]
    assert lines[2].y == pytest.approx([1 / 3 + 0.01 * r for r in range(6)])


def test_weights_by_block_have_a_panel_each(tmp_path: Path) -> None:
    write_study(tmp_path, methods=("csac",), tasks=("d0",), seeds=1, settings={"reference": None})
    folder = Job("csac", "d0", 0).folder(tmp_path)
    lines = record_lines.read_lines(folder / "rounds.jsonl")
    for r, line in enumerate(lines):
        line["weights"] = {"model": [[0.2, 0.3, 0.5], [0.1 * r, 0.4, 0.5]]}
    (folder / "rounds.jsonl").write_bytes(b"".join(map(record_lines.to_line, lines)))
    records.mark_done(folder, {}, 1.0, 1.0)
    (figure,) = curves.weight_curves(read(tmp_path, Choice())).figures
    assert [p.title for p in figure.panels] == ["d0, block 1", "d0, block 2"]
    assert panel(figure, 1).lines[0].y == pytest.approx([0.1 * r for r in range(6)])


def test_curves_from_cross_evaluation(tmp_path: Path) -> None:
    write_study(tmp_path, methods=("fedavg",), tasks=("d0",), seeds=1)
    folder = Job("fedavg", "d0", 0).folder(tmp_path)
    rows = record_lines.read_lines(folder / "source.jsonl")
    rows += record_lines.read_lines(folder / "target.jsonl")
    crossed = [
        {"client": client, **row, "loss": row["loss"] - 0.25, "accuracy": 0.75}
        for row in rows
        for client in DOMAINS[1:]
    ]
    (folder / "cross.jsonl").write_bytes(b"".join(map(record_lines.to_line, crossed)))
    records.mark_done(folder, {}, 1.0, 1.0)
    part = read(tmp_path, Choice())
    assert part.runs[0].raw.cross
    local = by_key(curves.section(part).figures, "locals-fedavg")
    assert [p.title for p in local.panels] == [f"d0: local model of {c}" for c in DOMAINS[1:]]
    assert {line.name for line in panel(local).lines} == {"d1", "d2", "d3", "target"}


def test_fairness_and_cost(part: StudyReport) -> None:
    row = outcome.fair(part).grids[0].rows[0]
    # Both targets: sources all at 0.6005 or 0.6205, so even.
    assert row[1:] == pytest.approx((61.05, 61.05, 0, math.log(3), 0), abs=1e-9)
    grid = outcome.cost(part).grids[0]
    assert grid.header[1:] == (
        "seconds per round", "peak memory, MiB", "MB up per round", "MB down per round",
    )  # fmt: skip
    assert grid.rows[0] == ("fedavg", 2.0, 300.0, pytest.approx(0.0015), pytest.approx(0.003))


def test_critical_differences(part: StudyReport) -> None:
    figure = outcome.ranked(part)
    assert figure is not None and isinstance(figure.panels[0], Dots)
    assert [row.name for row in figure.panels[0].rows] == ["fedavg+ga", "ppdg(lam=0.2)", "fedavg"]
    assert figure.panels[0].spans == ((0, 2),)  # two targets: 2.34 ranks apart are needed


def test_averages_best_above(part: StudyReport) -> None:
    first = outcome.averages(part).panels[0]
    assert isinstance(first, Dots) and first.title == "average"
    assert [row.name for row in first.rows] == ["fedavg+ga", "ppdg(lam=0.2)", "fedavg"]
    assert first.rows[0].value == pytest.approx(53.05)
    assert first.rows[0].high == pytest.approx(53.1)


def test_a_figure_as_csv(part: StudyReport) -> None:
    figure = by_key(curves.section(part).figures, "curves-accuracy-fedavg")
    rows = figure.to_csv().splitlines()
    assert rows[0] == "panel,name,x,y,low,high"
    assert len(rows) == 1 + 2 * 4 * 6
    assert json.loads("[" + ",".join(rows[-1].split(",")[2:]) + "]")[0] == 5.0
