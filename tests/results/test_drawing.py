"""Figures of a study's results have the table's numbers; functions of a user's are called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.finished_studies import DOMAINS, write_study

from unseen import Client, InProcess, Model, Split, Study, Training, method, play, start
from unseen.errors import UnseenError
from unseen.studies.results.records import Job
from unseen.studies.results.study_folder import StudyFolder
from unseen.studies.results.study_results import Results
from unseen.studies.settings.holdout import Task


def results(out: Path) -> Results:
    study = write_study(out)
    tasks = tuple(Task(t, tuple(d for d in DOMAINS if d != t), (t,)) for t in ("d0", "d1"))
    return Results(study, out, study.methods, tasks, ("loss", "accuracy"), "mlp", "digits", {})


def test_dots_are_at_the_means_of_the_table(tmp_path: Path) -> None:
    found = results(tmp_path)
    table = found.table()
    figure = found.plot()
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in panels] == list(table.columns)
    for c, axis in enumerate(panels):
        drawn = [float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "o"]
        expected = [table.scale * sum(row[c].values) / len(row[c].values) for row in table.cells]
        assert drawn == pytest.approx(expected)
    figure.savefig(tmp_path / "means.png")
    assert (tmp_path / "means.png").stat().st_size > 5000


def test_lines_are_the_means_over_seeds_of_each_round(tmp_path: Path) -> None:
    found = results(tmp_path)
    axis, *_ = found.plot(over="rounds").axes
    assert axis.get_title() == "d0" and len(axis.lines) == 3
    job = StudyFolder(tmp_path).job(Job("fedavg", "d0", 0))
    other = StudyFolder(tmp_path).job(Job("fedavg", "d0", 1))
    pairs = zip(job.target, other.target, strict=True)
    expected = [50 * (a["accuracy"] + b["accuracy"]) for a, b in pairs]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(expected)
    with pytest.raises(UnseenError, match="over"):
        found.plot(over="seeds")  # type: ignore[arg-type]


def test_a_function_sees_every_job_and_may_stop(tmp_path: Path) -> None:
    study = Study(
        dataset="rotated-digits", methods=["fedavg"], targets=["0"], seeds=3, rounds=1,
        model="mlp(widths=[4])",
    )  # fmt: skip
    seen: list[tuple[int, int, int]] = []

    def stop(job: Job, count: int, total: int) -> None:
        seen.append((job.seed, count, total))
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path / "out", after=stop)
    study.run(tmp_path / "out", after=lambda *job: seen.append((job[0].seed, *job[1:])))
    assert seen == [(0, 1, 3), (1, 2, 3), (2, 3, 3)]


def test_a_loop_ends_where_its_function_says() -> None:
    x = torch.linspace(-1, 1, 12)[:, None]
    clients = {
        name: Client(name, Split(x, (x[:, 0] > 0).long()), None, classes=2) for name in ("a", "b")
    }
    model = Model(torch.nn.Linear(1, 2))
    federated = method("fedavg", Training(batch_size=4))
    state = start(federated, model, list(clients), seed=0)
    rounds = []

    def third(state, outcomes):  # type: ignore[no-untyped-def]
        rounds.append((state.round, len(outcomes)))
        return state.round == 3

    state, outcomes = play(
        federated, state, InProcess(model, clients), list(clients), rounds=9, after=third
    )
    assert state.round == 3 and [r for r, _ in rounds] == [1, 2, 3] and len(outcomes) == 3
