"""Numbers to predict: standardised in training, in their own units everywhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unseen.core.metrics.evaluation import FOR_NUMBERS
from unseen.core.record_lines import read_lines
from unseen.core.turn import keyed
from unseen.data import DataSet, Domain, check, load
from unseen.data.dataset import Totals
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.checks import check_columns
from unseen.studies.execution.constant_answer import constants
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.setting import digest_of
from unseen.studies.report.write import report
from unseen.studies.results.records import CONSTANT, Job
from unseen.studies.results.selection import selected
from unseen.studies.settings.holdout import Task

SITES = ("east", "north", "south")
TASK = Task("south", ("east", "north"), ("south",))
OPTIONS = "domain='site', label='price', task='regression'"


def write(path: Path, slope: float = 50.0, offset: float = 1000.0, rows: int = 60) -> Path:
    """price = offset + slope · x, exactly; x from a law that differs a little from site to site."""
    lines = ["site,x,noise,price"]
    for k, site in enumerate(SITES):
        draws = torch.randn(rows, 2, generator=keyed(f"regression/{site}")).double()
        x = (draws[:, 0] + 0.3 * k).tolist()
        rest = draws[:, 1].tolist()
        lines += [
            f"{site},{a!r},{b!r},{offset + slope * a!r}" for a, b in zip(x, rest, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def dataset(path: Path, more: str = "") -> str:
    return f"table(path='{path}', {OPTIONS}{more})"


def small(text: str, **settings: Any) -> Study:
    base = {"model": "logistic", "rounds": 3, "seeds": 1, "training": {"batch_size": 8}}
    return Study(**{"dataset": text} | base | settings)


def evaluations(out: Path, task: str, name: str = "target.jsonl") -> list[dict[str, Any]]:
    return read_lines(Job("fedavg", task, 0).folder(out) / name)


def loaded(path: Path, **options: Any) -> DataSet:
    named = {"domain": "site", "label": "price", "task": "regression"}
    return load("table", path=path, **named | options)


# --- the path of the README -------------------------------------------------------------------


def test_a_table_of_numbers_needs_no_further_option(tmp_path: Path) -> None:
    text = dataset(write(tmp_path / "prices.csv"))
    changed = {"dataset": text, "methods": ["fedavg"], "seeds": 1, "rounds": 12}
    results = Study.read("table", changed).run(tmp_path / "out")
    assert results.metrics == FOR_NUMBERS
    assert results.metric == "rmse"
    for site in SITES:
        last = evaluations(tmp_path / "out", site)[-1]
        (constant,) = evaluations(tmp_path / "out", site, CONSTANT)
        assert last["rmse"] < 15 < 40 < constant["rmse"]  # of a label that spreads by 50
        assert last["loss"] == pytest.approx(last["rmse"] ** 2)
        assert last["r2"] > 0.9
        assert last["pearson"] > 0.95
    assert not any("worse than a constant" in note for note in results.table().notes)
    before = json.loads((tmp_path / "out" / "study.json").read_text())["identity"]["metrics"]
    assert before == list(FOR_NUMBERS)


def test_metrics_of_classes_are_as_they_were(tmp_path: Path) -> None:
    lines = ["site,x,y", *(f"{s},{i % 5},{i % 2}" for s in SITES for i in range(30))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    text = f"table(path='{tmp_path / 't.csv'}', domain='site', label='y')"
    data = load("table", path=tmp_path / "t.csv", domain="site", label="y")
    study = Study.read("table", {"dataset": text})
    usual = ("loss", "accuracy")
    assert chosen_metrics(study, data, usual) == ("loss", "accuracy", "balanced-accuracy")
    assert chosen_metrics(Study(dataset=text), data, usual) == usual


def test_a_folder_whose_study_named_its_metrics_goes_on(tmp_path: Path) -> None:
    """What is recorded decides, not how the study asks for it."""
    text = dataset(write(tmp_path / "prices.csv"))
    small(text, metrics=["loss", "rmse"], targets=["south"]).run(tmp_path / "out")
    before = (tmp_path / "out" / "study.json").read_text()
    small(text, metrics={"numbers": ["loss", "rmse"]}, targets=["south"]).run(tmp_path / "out")
    with pytest.raises(UnseenError, match="metrics was"):
        small(text, metrics=["loss", "mae"], targets=["south"]).run(tmp_path / "out")
    assert '"metrics"' in before


def test_data_sets_with_protocols_of_their_own_keep_their_metrics() -> None:
    numbers = DataSet("made", (), None, "", "", "")
    assert chosen_metrics(Study(), numbers, ("loss", "pearson")) == ("loss", "pearson")
    assert chosen_metrics(Study(), numbers, ("loss", "accuracy")) == FOR_NUMBERS


# --- standardised in training -----------------------------------------------------------------


@pytest.mark.parametrize(("slope", "offset"), [(50.0, 1000.0), (1e-3, 0.0), (3e4, 2e6)])
def test_the_unit_of_the_label_changes_nothing_but_the_unit(
    tmp_path: Path, slope: float, offset: float
) -> None:
    """Labels a·y + b are learnt as y is: errors are a times as large, shares explained equal."""
    found = []
    for name, law in (("plain", (1.0, 0.0)), ("other", (slope, offset))):
        path = write(tmp_path / f"{name}.csv", *law)
        small(dataset(path), targets=["south"]).run(tmp_path / name)
        found.append(evaluations(tmp_path / name, "south")[-1])
    plain, other = found
    assert other["rmse"] == pytest.approx(slope * plain["rmse"], rel=1e-3)
    assert other["mae"] == pytest.approx(slope * plain["mae"], rel=1e-3)
    assert other["r2"] == pytest.approx(plain["r2"], abs=1e-3)
    assert other["r2"] > 0.9


def test_labels_are_standardised_by_the_sources_training_rows_alone(tmp_path: Path) -> None:
    data = loaded(write(tmp_path / "prices.csv"))
    prepared = prepare(data, TASK, Study(validation=0.2), 0)
    raw = prepare(replace(data, standardise=None), TASK, Study(validation=0.2), 0)
    y = np.concatenate([raw.sources[n].split("train").y.double().numpy() for n in TASK.sources])
    assert prepared.scale is not None
    assert prepared.scale.mean == pytest.approx(y.mean())
    assert prepared.scale.deviation == pytest.approx(y.std())
    for name, client in prepared.everyone.items():
        found = client.split("validation").y
        expected = (raw.everyone[name].split("validation").y.double() - y.mean()) / y.std()
        torch.testing.assert_close(found, expected.float())
        assert client.split("validation").x.equal(raw.everyone[name].split("validation").x)
    target = data["south"]
    other = replace(data, domains=(*data.domains[:2], replace(target, y=target.y + 1e6)))
    assert prepare(other, TASK, Study(validation=0.2), 0).scale == prepared.scale


def test_equal_labels_are_only_moved() -> None:
    scale = Totals(None, "y").scale(torch.tensor([5.0, 0.0, 35.0, 245.0], dtype=torch.float64))
    assert (scale.mean, scale.deviation) == (7.0, 1.0)  # type: ignore[union-attr]


def test_labels_may_be_taken_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "prices.csv")
    plain = loaded(path, standardise=False)
    prepared = prepare(plain, TASK, Study(), 0)
    assert prepared.scale is None
    assert prepared.targets["south"].split("validation").y.equal(plain["south"].y)
    assert digest_of(plain) != digest_of(loaded(path))


def test_data_that_are_no_table_may_ask_for_it(tmp_path: Path) -> None:
    def domain(name: str) -> Domain:
        x = torch.randn(20, 3, generator=keyed(name))
        return Domain(name, x, 500 + 20 * x[:, 0])

    made = DataSet("made", tuple(map(domain, SITES)), None, "", "", "", standardise="weight")
    prepared = prepare(check(made), TASK, Study(), 0)
    assert prepared.scale is not None
    assert prepared.statistics is None
    assert prepared.scale.mean == pytest.approx(500, abs=20)
    as_they_are = prepare(replace(made, standardise=None), TASK, Study(), 0)
    assert as_they_are.scale is None and as_they_are.sums is None


# --- privacy ----------------------------------------------------------------------------------

RANGES = {"x": (-5.0, 5.0), "noise": (-5.0, 5.0)}


def test_a_public_range_of_the_label_takes_the_place_of_sums(tmp_path: Path) -> None:
    data = loaded(write(tmp_path / "prices.csv"))
    study = Study(privacy={"columns": {**RANGES, "price": (800, 1300)}})
    scale = prepare(data, TASK, study, 0).scale
    assert scale is not None
    assert (scale.mean, scale.deviation) == pytest.approx((1050, 250))
    check_columns(study, data)
    with pytest.raises(UnseenError, match="missing: price"):
        check_columns(Study(privacy={"columns": RANGES}), data)
    check_columns(Study(privacy={"columns": RANGES}), replace(data, standardise=None))


def test_noise_needs_the_range_of_the_label(tmp_path: Path) -> None:
    noise = {"examples": "dp(clip=1.0, noise=1.0, delta=1e-5)"}
    with pytest.raises(UnseenError, match=r"the label 'price'.*price = \[0, 100\]"):
        check_columns(Study(privacy=noise), loaded(write(tmp_path / "prices.csv")))


def test_the_ledger_counts_the_sums_of_the_label(tmp_path: Path) -> None:
    """Four float64 for each of two columns and the label."""
    path = write(tmp_path / "prices.csv")
    small(dataset(path), targets=["south"], rounds=1).run(tmp_path / "out")
    first = evaluations(tmp_path / "out", "south", "ledger.jsonl")[0]
    assert first["left"] == [{"slot": "statistics", "form": "plain", "bytes": [96, 96]}]


@pytest.mark.parametrize("privacy", [{"columns": {**RANGES, "price": (800, 1300)}}, {}])
def test_what_must_not_leave_is_not_in_the_records(tmp_path: Path, privacy: dict[str, Any]) -> None:
    text = dataset(write(tmp_path / "prices.csv"))
    small(text, targets=["south"], rounds=1, privacy=privacy).run(tmp_path / "out")
    assert bool(evaluations(tmp_path / "out", "south", CONSTANT)) == (not privacy)


# --- worse than a constant --------------------------------------------------------------------


def test_what_a_constant_number_scores(tmp_path: Path) -> None:
    data = loaded(write(tmp_path / "prices.csv"))
    prepared = prepare(data, TASK, Study(validation=0.2), 0)
    raw = prepare(replace(data, standardise=None), TASK, Study(validation=0.2), 0)
    y = np.concatenate([raw.sources[n].split("train").y.double().numpy() for n in TASK.sources])
    error = float(((data["south"].y.double().numpy() - y.mean()) ** 2).mean())
    for made in (prepared, raw):
        (found,) = constants(made, FOR_NUMBERS)
        assert found == {"domain": "south", "loss": pytest.approx(error),
                         "rmse": pytest.approx(error**0.5)}  # fmt: skip


def test_what_a_constant_class_scores() -> None:
    """Sources: 15 of 20 of class 1. Target: 3 of 4 of class 0."""

    def domain(name: str, y: list[int]) -> Domain:
        held = torch.arange(len(y) // 2)
        labels = torch.tensor(y)
        return Domain(name, torch.zeros(len(y), 1), labels, validation=held)

    sources = [domain(n, [0, 1, 1, 1] * 5) for n in ("east", "north")]
    target = Domain("south", torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))
    made = DataSet("made", (*sources, target), ("a", "b", "c"), "", "", "")
    two = replace(made, classes=("a", "b"))
    metrics = ("loss", "accuracy", "balanced-accuracy", "auroc", "auprc")
    prepared = prepare(check(two), TASK, Study(), 0)
    share = float(
        torch.cat([c.split("train").y for c in prepared.sources.values()]).double().mean()
    )
    (found,) = constants(prepared, metrics)
    assert found == {
        "domain": "south", "accuracy": 0.25, "balanced-accuracy": 0.5, "auroc": 0.5, "auprc": 0.25,
        "loss": pytest.approx(-(3 * np.log(1 - share) + np.log(share)) / 4),
    }  # fmt: skip
    new = replace(made, domains=(*sources, replace(target, y=torch.tensor([0, 0, 2, 1]))))
    (found,) = constants(prepare(check(new), TASK, Study(), 0), ("loss", "accuracy"))
    assert found == {"domain": "south", "accuracy": 0.25, "loss": None}


def test_classes_go_by_the_metric_that_is_shown() -> None:
    row = {"method": "m", "task": "t", "seed": 0, "round": 0, "role": "target", "domain": "t",
           "examples": 9, "loss": 0.9, "accuracy": 0.6, "auroc": 0.4}  # fmt: skip
    constant = [{"domain": "t", "loss": None, "accuracy": 0.6, "auroc": 0.5}]
    source = [{**row, "role": "source", "domain": "s"}]
    found = selected(source, [row], "last", "accuracy", constant)
    assert found.worse == {"auroc": ("t",)}
    assert selected(source, [row], "last", "accuracy").worse == {}


def test_a_model_that_is_worse_than_a_constant_is_named_everywhere(tmp_path: Path) -> None:
    """At the third site the label falls with x instead of rising."""
    path = write(tmp_path / "prices.csv")
    lines = path.read_text().splitlines()
    turned = [
        ",".join([*line.split(",")[:3], repr(1000 - 50 * float(line.split(",")[1]))])
        if line.startswith("south")
        else line
        for line in lines
    ]
    path.write_text("\n".join(turned) + "\n")
    results = small(dataset(path), targets=["south"]).run(tmp_path / "out")
    line = "worse than a constant: fedavg at south"
    for metric in FOR_NUMBERS:
        assert line in results.table(metric).notes
    assert line in (tmp_path / "out" / "table.md").read_text()
    assert line in (tmp_path / "out" / "table.tex").read_text()
    report(tmp_path / "out", tmp_path / "report", files=False)
    assert line in (tmp_path / "report" / "report.html").read_text()
    # Records that are older have no such file.
    folder = Job("fedavg", "south", 0).folder(tmp_path / "out")
    (folder / CONSTANT).unlink()
    mark = json.loads((folder / "done.json").read_text())
    del mark["records"][CONSTANT]
    (folder / "done.json").write_text(json.dumps(mark))
    assert not any("constant" in note for note in results.table().notes)
    assert list(results.jobs())
