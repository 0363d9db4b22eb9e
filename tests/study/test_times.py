"""Studies of times until an event: labels, losses, metrics, and which methods apply."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.times import SITES, dataset, write

import unseen
from unseen.core.record_lines import read_lines
from unseen.core.survival import Cox, Intervals
from unseen.data import DataSet, Domain, check, load
from unseen.data.dataset import Totals
from unseen.errors import Incompatible, UnseenError
from unseen.methods.compose import METHODS, MODIFIERS
from unseen.methods.unfit import NEVER, NOT_COX
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.results.records import Job
from unseen.studies.settings.holdout import Task

pd = pytest.importorskip("pandas", reason="needs the extra pandas")

TASK = Task("south", ("east", "north"), ("south",))


def small(text: str, loss: str = "", **settings: object) -> Study:
    base = {"model": "logistic", "rounds": 8, "seeds": 1, "targets": ["south"]}
    training = {"batch_size": 16, "optimiser": "sgd(lr=0.2)", "loss": loss}
    return Study(**{"dataset": text, "training": training} | base | settings)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "times.csv")


# --- labels -------------------------------------------------------------------------------------


def test_two_columns_are_the_label_and_neither_is_a_feature(file: Path) -> None:
    data = load("table", path=file, domain="site", label="days", event="died")
    assert data.names == SITES and data.classes is None and data.times == ("days", "died")
    assert data.schema is not None and data.schema.columns == ("a", "b", "c")
    frame = pd.read_csv(file)
    for site in SITES:
        own = frame[frame.site == site]
        assert data[site].y[:, 0].tolist() == own.days.tolist()
        assert data[site].y[:, 1].tolist() == (own.died == "yes").astype(float).tolist()


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("days", "-3", "the time -3 in line 2 .* below 0"),
        ("days", "soon", "the time 'soon' in line 2 .* not a number"),
        ("died", "2", "the event '2' in line 2 .* write 1 where the event was seen"),
        ("died", "", "no value in 'died'"),
        ("days", "", "no value in 'days'"),
    ],
)
def test_wrong_cells_are_named_with_their_line(
    file: Path, column: str, cell: str, words: str
) -> None:
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    frame.loc[0, column] = cell
    frame.to_csv(file, index=False)
    with pytest.raises(UnseenError, match=words):
        load("table", path=file, domain="site", label="days", event="died")
    if not cell:
        options = {"domain": "site", "label": "days", "event": "died", "missing_label": "drop"}
        data = load("table", path=file, **options)
        assert len(data["east"].y) == 59 and "1 of 240 rows left out" in data.notes[0]


def test_a_task_without_its_columns_is_refused(file: Path) -> None:
    with pytest.raises(UnseenError, match="needs the column of the event"):
        load("table", path=file, domain="site", label="days", task="survival")
    with pytest.raises(UnseenError, match="has no event"):
        load("table", path=file, domain="site", label="days", event="died", task="regression")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.ones(4), "float32 \\[N, 2\\] was expected"),
        (torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), "below 0"),
        (torch.tensor([[1.0, 0.5], [1.0, 0.0]]), "neither 1, seen, nor 0"),
        (torch.tensor([[math.inf, 1.0], [1.0, 0.0]]), "not finite"),
    ],
)
def test_labels_of_a_loader_of_ones_own_are_checked(y: torch.Tensor, words: str) -> None:
    domain = Domain("a", torch.zeros(len(y), 2), y)
    with pytest.raises(UnseenError, match=words):
        check(DataSet("mine", (domain,), None, "", "", "", times=("t", "e")))


def test_sources_without_events_are_refused_and_one_is_named(file: Path) -> None:
    frame = pd.read_csv(file)
    frame.loc[frame.site == "east", "died"] = "no"
    frame.to_csv(file, index=False)
    planned = prepare_study(small(dataset(file)), file.parent / "out")
    assert any(
        "no event among their training examples: 'east'" in line for line in planned.warnings
    )
    frame["died"] = "no"
    frame.to_csv(file, index=False)
    with pytest.raises(UnseenError, match="no source of task 'south' has an event"):
        prepare_study(small(dataset(file)), file.parent / "out")


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "metrics"),
    [
        ("", ("concordance", "loss")),
        ("cox(ties='breslow')", ("concordance", "loss")),
        ("hazards(intervals=4)", ("concordance", "loss", "integrated-brier")),
        ("hazards(cuts=[100, 300, 700])", ("concordance", "loss", "integrated-brier")),
    ],
)
def test_a_study_learns_who_dies_first(file: Path, loss: str, metrics: tuple[str, ...]) -> None:
    out = file.parent / "out"
    results = small(dataset(file), loss, rounds=30).run(out)
    assert results.metrics == metrics and results.metric == "concordance"
    last = read_lines(Job("fedavg", "south", 0).folder(out) / "target.jsonl")[-1]
    assert last["concordance"] > 0.72
    if "integrated-brier" in metrics:
        assert last["integrated-brier"] < 0.23


def test_the_unit_of_times_changes_nothing(file: Path) -> None:
    """Risk sets are of order alone, and intervals of sums move with the unit."""
    frame, found = pd.read_csv(file), dict[str, list[float]]()
    for unit in (1.0, 0.25):
        frame.assign(days=unit * frame.days).to_csv(file, index=False)
        for loss in ("cox()", "hazards(intervals=4)"):
            out = file.parent / f"{loss}{unit}"
            small(dataset(file), loss).run(out)
            last = read_lines(Job("fedavg", "south", 0).folder(out) / "target.jsonl")[-1]
            found.setdefault(loss, []).append(last["concordance"])
    for one, other in found.values():
        assert one == pytest.approx(other, abs=5e-3)


def test_ends_of_intervals_are_of_the_sources_events_alone(file: Path) -> None:
    data = load("table", path=file, domain="site", label="days", event="died")
    study = small(dataset(file), "hazards(intervals=4)")
    prepared = prepare(data, TASK, study, 0)
    totals = Totals.of(data, 4)
    assert totals is not None and totals.columns == ("a", "b", "c", "log(days)")
    logs = []
    for name in TASK.sources:
        own = prepare(data, TASK, small(dataset(file)), 0).sources[name].split("train").y
        logs += [math.log(t) for t, e in own.tolist() if e]
    expected = Intervals.of_moments(float(np.mean(logs)), float(np.std(logs)), 4)
    assert isinstance(prepared.scale, Intervals)
    assert prepared.scale.cuts == pytest.approx(expected.cuts)
    changed = {**{d.name: d for d in data.domains}}
    y = changed["south"].y.clone()
    y[:, 0] *= 50
    domains = (changed["east"], changed["north"], Domain("south", changed["south"].x, y))
    other = DataSet(data.name, domains, None, "", "", "", schema=data.schema, times=data.times)
    assert prepare(other, TASK, study, 0).scale == prepared.scale
    named = prepare(data, TASK, small(dataset(file), "hazards(cuts=[90, 365])"), 0)
    assert named.scale == Intervals((90.0, 365.0)) and named.outputs == 2


def test_frames_arrays_and_records_are_one_study(file: Path) -> None:
    frame = pd.read_csv(file)
    x, sites = frame[["a", "b", "c"]].to_numpy(), frame.site.to_numpy()
    seen = (frame.died == "yes").to_numpy()
    pair = np.column_stack([frame.days, seen])
    records = np.array([*zip(seen, frame.days, strict=True)], dtype=[("e", "?"), ("t", "f8")])
    given = [
        {"dataset": frame, "domain": "site", "label": "days", "event": "died"},
        {"dataset": (x, pair, sites)},
        {"dataset": (x, records, sites)},
    ]
    found = []
    for number, settings in enumerate(given):
        study = unseen.Study(
            **settings, model="logistic", targets=["south"], seeds=1, rounds=2,
            training={"batch_size": 16, "loss": "cox(ties='breslow')"},
        )  # fmt: skip
        assert study.training.loss == "cox(ties='breslow')"
        out = file.parent / str(number)
        study.run(out)
        lines = read_lines(Job("fedavg", "south", 0).folder(out) / "target.jsonl")
        found.append([line["concordance"] for line in lines])
    assert found[0] == found[1] == found[2]


def test_what_is_for_other_labels_is_refused(file: Path, tmp_path: Path) -> None:
    text = dataset(file)
    with pytest.raises(UnseenError, match="'accuracy' is not for labels that are times"):
        prepare_study(small(text, metrics=["accuracy"]), tmp_path / "out")
    with pytest.raises(UnseenError, match="Cox's model has log-risks alone"):
        prepare_study(small(text, metrics=["integrated-brier"]), tmp_path / "out")
    with pytest.raises(UnseenError, match="these labels are times"):
        prepare_study(small(text, training={"balanced": True}), tmp_path / "out")
    with pytest.raises(UnseenError, match=r"training\.loss = 'cox\(\)' is for times"):
        prepare_study(Study(dataset="heart-disease", training={"loss": "cox()"}), tmp_path / "out")
    with pytest.raises(Incompatible, match="glm fits classes or numbers .* these labels are times"):
        unseen.method("glm", unseen.Training(loss=Cox()))


# --- methods ------------------------------------------------------------------------------------


def expressions() -> list[str]:
    bare = [name for name in METHODS if name not in ("bag", "stack", "portfolio", "torchjd")]
    added = [f"fedavg+{name}" for name in MODIFIERS if name not in METHODS]
    return [*bare, *added, "portfolio", "stack", "bag(of='trees')"]


@pytest.mark.parametrize("loss", ["cox()", "hazards(intervals=3)"])
def test_every_method_trains_on_times_or_says_why_not(file: Path, loss: str) -> None:
    """Each one alone, so that one that breaks is named."""
    refused = NEVER | (NOT_COX if loss == "cox()" else {})
    ran = 0
    for text in expressions():
        study = small(dataset(file), loss, methods=[text], rounds=2, model="mlp(widths=[4])")
        out = file.parent / "runs" / text
        try:
            planned = prepare_study(study, out)
        except Incompatible:
            continue
        if planned.not_applicable:
            assert (
                "+" in text
                or text.partition("(")[0] in refused
                or any(
                    word in planned.not_applicable[planned.methods[0]]
                    for word in ("images", "batchnorm", "convolutions", "classes")
                )
            ), (text, planned.not_applicable)
            continue
        results = study.run(out)
        (name,) = planned.methods
        lines = read_lines(Job(name, "south", 0).folder(out) / "target.jsonl")
        assert lines and lines[-1]["concordance"] is not None, text
        assert results.metric == "concordance"
        ran += 1
    assert ran > 35, ran
