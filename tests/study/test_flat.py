"""Rounds until flat: a job ends where a literal reading of the rule says, and not otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_studies import FILES, rows, study, write, written

from unseen.core.record_lines import read_lines
from unseen.errors import UnseenError
from unseen.studies.execution import job as job_module
from unseen.studies.results.ends import source_losses
from unseen.studies.results.records import Job
from unseen.studies.settings.study import StudySpec

SETTINGS = {
    "targets": ["d"],
    "methods": ["fedavg"],
    "training": {"optimiser": "sgd(lr=0.5)", "batch_size": 8},
}
JOB = Job("fedavg", "d", 0)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sites") / "sites.csv", rows())


def stops(losses: list[float], patience: int) -> int:
    """How many rounds are played, by the words of the setting."""
    best, since = float("inf"), 0
    for played, loss in enumerate(losses, 1):
        if loss <= 0.999 * best:
            best, since = loss, 0
        else:
            since += 1
        if since == patience:
            return played
    return len(losses)


def mean_losses(out: Path) -> list[float]:
    lines = read_lines(JOB.folder(out) / "source.jsonl")
    rounds = sorted({line["round"] for line in lines})
    of = {r: [line["loss"] for line in lines if line["round"] == r] for r in rounds}
    return [sum(values) / len(values) for values in of.values()]


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_a_job_ends_when_the_sources_loss_has_stopped_falling(table, tmp_path, patience):
    study(table, **SETTINGS, rounds=40).run(tmp_path / "long")
    expected = stops(mean_losses(tmp_path / "long"), patience)
    assert expected < 40
    flat = f"until-flat(patience={patience}, limit=40)"
    results = study(table, **SETTINGS, rounds=flat).run(tmp_path / "flat")
    assert len(mean_losses(tmp_path / "flat")) == expected
    for name in FILES:
        whole = (JOB.folder(tmp_path / "long") / name).read_bytes()
        part = (JOB.folder(tmp_path / "flat") / name).read_bytes()
        assert whole.startswith(part) and len(part) < len(whole)
    assert f"rounds until flat: fedavg {expected}" in results.table().notes


def test_a_job_that_the_limit_cut_off_is_not_called_flat(table, tmp_path):
    results = study(table, **SETTINGS, rounds="until-flat(patience=4, limit=5)").run(tmp_path)
    line = "rounds until flat: fedavg 5 (1 of 1 job at the limit, flat or not)"
    assert line in results.table().notes


@pytest.mark.parametrize(
    ("holdout", "line"),
    [
        ("leave-one-domain-out", "targets whole"),
        ({"groups": 2}, "left out in groups; a column is a group, named after its first site"),
        (
            {"alone": True},
            "each site trains alone; a column is the model of the site that it names",
        ),
    ],
)
def test_the_lines_under_a_table_say_what_was_left_out(table, tmp_path, holdout, line):
    settings = {**SETTINGS, "targets": None}
    notes = study(table, **settings, rounds=1, holdout=holdout).run(tmp_path).table().notes
    (data,) = [note for note in notes if note.startswith("data: ")]
    assert line in data and ("column" in data) == (holdout != "leave-one-domain-out")


def test_a_job_that_is_stopped_ends_at_the_same_round(table, tmp_path, monkeypatch):
    class Stopped(BaseException):
        pass

    def stopping(method, state, *rest):
        if state.round == 3:
            raise Stopped
        return play(method, state, *rest)

    def often(*arguments, **named):
        return job_module.Setting(*arguments, **named, checkpoint_seconds=0.0)

    settings = SETTINGS | {"rounds": "until-flat(patience=2, limit=40)"}
    study(table, **settings).run(tmp_path / "whole")
    play = job_module.play_round
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("unseen.studies.execution.plan.Setting", often)
        patch.setattr(job_module, "play_round", stopping)
        study(table, **settings).run(tmp_path / "out")
    study(table, **settings).run(tmp_path / "out")
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def test_a_method_that_ends_by_itself_is_not_ended(table, tmp_path):
    settings = SETTINGS | {"methods": ["glm(steps=6)"], "rounds": "until-flat(patience=1)"}
    study(table, **settings).run(tmp_path / "out")
    lines = read_lines(Job("glm(steps=6)", "d", 0).folder(tmp_path / "out") / "source.jsonl")
    assert max(line["round"] for line in lines) == 5


def test_the_setting_is_read_and_written_again():
    spec = StudySpec(rounds="until-flat(patience=7, limit=90)")
    assert (spec.rounds, spec.patience) == (90, 7)
    assert StudySpec(**spec.model_dump()) == spec
    with pytest.raises(UnseenError, match="until-flat"):
        StudySpec(rounds="until-flatt(patience=7)")


def test_domains_that_are_no_sources_have_no_say():
    lines = [
        {"round": 0, "role": role, "loss": loss}
        for role, loss in (("source", 1.0), ("source", 2.0), ("ood-validation", 9.0))
    ]
    assert source_losses(lines) == {0: 1.5}
