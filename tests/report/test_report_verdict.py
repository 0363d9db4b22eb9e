"""What the page says first: only what a corrected test says, and many targets as rows."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from support.finished_studies import write_study

from unseen.studies.report.table_rows import cards
from unseen.studies.report.write import report
from unseen.studies.results.formats import LEGEND
from unseen.studies.results.selection import Selected
from unseen.studies.results.table_of_runs import table
from unseen.studies.results.tables import Table


def made(
    leads: dict[str, float], targets: int = 6, metric: str = "accuracy", reference: str | None = "a"
) -> Table:
    """Methods that are `leads` ahead of 0.5 on average, `noisy` within its noise."""
    draw, n = random.Random(1), 5 * targets
    runs = []
    for method, lead in leads.items():
        noise = [draw.gauss(0, 0.1 if method == "noisy" else 0.001) for _ in range(n)]
        for i, x in enumerate(noise):
            score = 0.5 + lead + x - sum(noise) / n
            runs.append(Selected(method, str(i // 5), i % 5, 1, {metric: score}))
    return table(runs, metric=metric, reference=reference)


def test_a_lead_that_is_noise_is_not_praised() -> None:
    one = made({"a": 0.0, "noisy": 0.004})
    assert one.comparison is not None and one.comparison.p["noisy"] > 0.05
    (first, why), (stands, _) = cards(one)
    assert first == "no method"
    p = f"{one.comparison.p['noisy']:.2g}"
    assert why == f"is significantly ahead of a (smallest corrected p {p})"
    assert stands == "a: 50.0\N{NO-BREAK SPACE}%"


def test_only_a_significant_lead_is_named() -> None:
    # `noisy` has the highest average and no significant lead; `b` has one.
    (first, why), _ = cards(made({"a": 0.0, "b": 0.01, "noisy": 0.02}))
    assert first.startswith("b: 51.0") and "significantly ahead of a (corrected p < 0.001)" in why
    (first, why), _ = cards(made({"a": 0.0, "b": 0.01, "c": 0.02, "d": 0.03}))
    assert first.startswith("d: 53.0") and "as are 2 more; these were not tested" in why
    (first, why), _ = cards(made({"a": 0.0, "b": -0.01}))
    assert (first, why) == ("no method", "is significantly ahead of a")


def test_of_losses_less_is_ahead() -> None:
    (first, _), _ = cards(made({"a": 0.0, "b": -0.01, "c": 0.01}, metric="loss"))
    assert first == "b: 0.490"


def test_without_a_test_nothing_is_named() -> None:
    assert cards(made({"a": 0.0, "b": 0.1}, reference=None))[0][0] == "not tested"
    assert cards(made({"a": 0.0})) == []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fifteen targets, three methods."""
    out, methods = tmp_path_factory.mktemp("many"), ("fedavg", "fedavg+ga", "ppdg")
    tasks = tuple(f"school-{i}" for i in range(15))
    paper = {"accuracy": {"fedavg": {"school-0": "50.0"}, "Old": {"school-0": "40.0"}}}
    write_study(out, methods, tasks, 2, 2, tasks[:4], {"published": paper})
    return report(out, out / "report", files=False).read_text()


def test_many_targets_are_rows_of_a_second_table(page: str) -> None:
    summaries, turned = re.findall(r'<table class="data" id="table-0.*?</table>', page, re.S)
    heads = [re.findall(r'<button type="button">(.*?)</button>', t) for t in (summaries, turned)]
    assert heads[0][:4] == ["method", "average", "worst", "10th percentile"]
    assert heads[1] == ["target", "fedavg", "fedavg+ga", "ppdg", "Old (published)"]
    rows = re.findall(r'<tr data-name="(.*?)"', turned)
    assert rows == [f"school-{i}" for i in range(15)]
    assert "paper 50.0" in turned and "paper" not in summaries and "Old" not in summaries
    # ppdg has 0.52, 0.54, 0.56, …, a thousandth more in seed 1: 0.5485 at position 1.4.
    assert re.search(r'<th scope="row" data-v="ppdg">.*?>54\.[89]<', summaries, re.S)
    assert LEGEND in page
    assert page.count("<svg") < 60  # no panel per target and method


def test_few_targets_stay_columns(tmp_path: Path) -> None:
    write_study(tmp_path)
    page = report(tmp_path, tmp_path / "report", files=False).read_text()
    assert "table-0-targets" not in page and "percentile" not in page
