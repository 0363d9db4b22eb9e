"""A search inside a study: what is scored, what is chosen, and that the target has no part."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.small_studies import FILES, rows, study, write
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.ranges import one, uniform
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.runner import carry_out, workplace
from unseen.studies.execution.sampler import Sampler
from unseen.studies.execution.search import Search
from unseen.studies.results.records import Job
from unseen.studies.results.search_records import SearchRecord, place
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.study import StudySpec

GRID: dict[str, Any] = {
    "space": {"training.optimiser": "sgd(lr=one(0.01, 0.3, 2.0))"},
    "sampler": "grid", "criterion": "lodo(groups=3)", "prune": 0,
}  # fmt: skip
DRAWN: dict[str, Any] = {
    "space": {"training.optimiser": "sgd(lr=log(0.01, 3))"},
    "criterion": "lodo(groups=3)", "trials": 6,
}  # fmt: skip
USUAL = {"methods": ["fedprox"], "targets": ["d"], "rounds": 3}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sites") / "sites.csv", rows())


def records(out: Path, method: str = "fedprox", task: str = "d") -> SearchRecord:
    record = SearchRecord.read(place(out, method, task))
    assert record is not None
    return record


def left_out(table: Path, tmp_path: Path, rate: float, mu: float) -> float:
    """The mean over the sources of what a study without the target has where each is held out."""
    body = [row for row in list(csv.reader(table.open()))[1:] if row[0] != "d"]
    sources = write(tmp_path / f"sources-{rate}-{mu}.csv", body)
    results = study(
        sources, methods=[f"fedprox(mu={mu})"], rounds=3,
        training={"batch_size": 8, "optimiser": f"sgd(lr={rate})"},
    ).run(tmp_path / f"out-{rate}-{mu}")  # fmt: skip
    return float(np.mean([run.metrics["accuracy"] for run in results.table().runs]))


def test_a_trial_is_scored_as_a_study_of_the_sources_alone_scores_it(table, tmp_path):
    search = {**GRID, "options": False}
    study(table, **USUAL, tune=search).run(tmp_path / "out")
    record = records(tmp_path / "out")
    scores = [left_out(table, tmp_path, rate, 0.1) for rate in (0.01, 0.3, 2.0)]
    tried = {t.settings["training.optimiser"]: t.value for t in record.trials[1:]}
    assert tried == dict(
        zip(["sgd(lr=0.01)", "sgd(lr=0.3)", "sgd(lr=2.0)"], map(pytest.approx, scores), strict=True)
    )
    assert record.trials[0].value == pytest.approx(left_out(table, tmp_path, 0.1, 0.1))
    assert record.best.value == pytest.approx(max(*scores, record.trials[0].value))


def test_the_target_sees_what_the_chosen_setting_alone_would_leave(table, tmp_path):
    study(table, **USUAL, tune=DRAWN).run(tmp_path / "out")
    chosen = records(tmp_path / "out").best
    training = {"batch_size": 8, "optimiser": chosen.settings["training.optimiser"]}
    plain = USUAL | {"methods": [chosen.method]}
    study(table, **plain, training=training).run(tmp_path / "plain")
    ours, theirs = Job("fedprox", "d", 0), Job(chosen.method, "d", 0)
    for name in FILES:
        text = (ours.folder(tmp_path / "out") / name).read_text()
        expected = (theirs.folder(tmp_path / "plain") / name).read_text()
        assert text.replace('"fedprox"', json.dumps(chosen.method)) == expected


FLAT = "until-flat(patience=1, limit={})"


@pytest.mark.parametrize(
    ("long", "short", "as_if"),
    [
        (5, 2, 2),
        (5, FLAT.format(2), FLAT.format(2)),
        (FLAT.format(5), 2, FLAT.format(2)),  # a number leaves the study's patience
    ],
)
def test_a_trial_may_train_for_less_long_than_its_winner(table, tmp_path, long, short, as_if):
    search = {**GRID, "options": False}
    study(table, **USUAL | {"rounds": as_if}, tune=search).run(tmp_path / "short")
    study(table, **USUAL | {"rounds": long}, tune={**search, "rounds": short}).run(tmp_path / "out")
    assert records(tmp_path / "out") == records(tmp_path / "short")
    chosen = records(tmp_path / "out").best
    training = {"batch_size": 8, "optimiser": chosen.settings["training.optimiser"]}
    plain = USUAL | {"methods": [chosen.method], "rounds": long}
    study(table, **plain, training=training).run(tmp_path / "plain")
    ours, theirs = Job("fedprox", "d", 0), Job(chosen.method, "d", 0)
    for name in ("source.jsonl", "target.jsonl"):
        text = (ours.folder(tmp_path / "out") / name).read_text()
        expected = (theirs.folder(tmp_path / "plain") / name).read_text()
        assert text.replace('"fedprox"', json.dumps(chosen.method)) == expected
    page = (tmp_path / "out" / "table.md").read_text()
    assert "2 rounds" in page[page.index("tuned for every method") :]


def test_another_target_changes_no_bit_of_the_search(table, tmp_path):
    body = list(csv.reader(table.open()))[1:]
    poisoned = [
        [*row[:1], f"{1e3 * i:.1f}", "-7", *row[3:5], str(1 - int(row[5]))]
        if row[0] == "d"
        else row
        for i, row in enumerate(body)
    ]
    other = write(tmp_path / "sites.csv", poisoned)
    for path, out in ((table, "out"), (other, "poisoned")):
        study(path, **USUAL, tune=DRAWN).run(tmp_path / out)
    left = sorted((tmp_path / "out" / "tuning").rglob("*.json*"))
    names = [file.relative_to(tmp_path / "out") for file in left if file.name != "done.json"]
    assert len(names) > 50
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "poisoned" / name).read_bytes()
    target = Job("fedprox", "d", 0).folder(Path()) / "target.jsonl"
    assert (tmp_path / "out" / target).read_bytes() != (tmp_path / "poisoned" / target).read_bytes()


@pytest.mark.parametrize("after", [0, 5, 14])
def test_a_search_that_is_stopped_and_repeated_ends_as_one_that_is_not(table, tmp_path, after):
    from unseen.studies.execution.job import run_job

    class Stopped(BaseException):
        pass

    def stopping(orders, jobs):
        for order in orders:
            played.append(order[1])
            if len(played) > after:
                raise Stopped
            yield run_job(*order)

    played: list[Job] = []
    whole = study(table, **USUAL, tune=DRAWN)
    whole.run(tmp_path / "whole")
    with pytest.raises(Stopped):
        carry_out(prepare_study(whole, tmp_path / "out"), work=stopping)
    assert SearchRecord.read(place(tmp_path / "out", "fedprox", "d")) != records(tmp_path / "whole")
    whole.run(tmp_path / "out")
    assert records(tmp_path / "out") == records(tmp_path / "whole")


def test_a_worker_of_a_simulated_federation_trains_by_the_winner(table, tmp_path):
    planned = prepare_study(study(table, **USUAL), tmp_path / "out")
    setting = replace(planned.setting, tuned="fedprox(mu=0.5)")
    worker = workplace(setting, planned.jobs[0], planned.tasks[0])
    assert worker.method.name == "fedprox(mu=0.5)"


def test_two_processes_choose_as_one_does(table, tmp_path):
    settings = USUAL | {"methods": ["fedprox", "fedavg+ga"], "tune": DRAWN}
    for jobs in (1, 2):
        study(table, **settings).run(tmp_path / str(jobs), jobs=jobs)
    for method in settings["methods"]:
        assert records(tmp_path / "1", method) == records(tmp_path / "2", method)


def test_source_validation_scores_the_sources_validation_splits(table, tmp_path):
    search = {**GRID, "criterion": "source-validation", "options": False}
    study(table, **USUAL, tune=search).run(tmp_path / "out")
    body = [row for row in list(csv.reader(table.open()))[1:] if row[0] != "d"]
    sources = write(tmp_path / "sources.csv", body)
    for trial in records(tmp_path / "out").trials[1:]:
        training = {"batch_size": 8, "optimiser": trial.settings["training.optimiser"]}
        results = study(
            sources, methods=["fedprox"], rounds=3, holdout="none", training=training
        ).run()
        (run,) = results.table().runs
        assert trial.value == pytest.approx(run.metrics["accuracy"])


def test_every_method_has_as_many_trials_and_the_table_says_so(table, tmp_path):
    settings = USUAL | {"methods": ["fedavg", "fedprox", "glm"], "tune": DRAWN}
    results = study(table, **settings).run(tmp_path / "out")
    notes = " ".join(results.table().notes)
    assert "6 trials each where there is something to search" in notes
    for method in settings["methods"]:
        record = records(tmp_path / "out", method)
        assert len(record.trials) == 6
        steps = sum(trial.steps for trial in record.trials)
        assert f"{method} 6 trials" in notes and f"{steps:,} steps" in notes
    assert set(records(tmp_path / "out", "glm").ranges) == {"glm.ridge"}
    assert (tmp_path / "out" / "tuned.csv").read_text().count("\n") == 4


def test_what_is_clearly_worse_over_sites_stops_and_cannot_win():
    tune = Tune(space={"a": "uniform(0, 1)"}, sampler="random")
    sampler = Sampler(tune, {"a": uniform(0, 1)}, "test", lower=False)
    good = [0.8, 0.7, 0.9, 0.85, 0.75, 0.8]
    sampler.knows({"a": 0.5}, dict(enumerate(good)), float(np.mean(good)))
    ticket, _ = sampler.ask()
    # Behind at six of six sites: Wilcoxon's one-sided p is 2⁻⁶.
    assert sampler.worse(ticket, {k: x - 0.1 for k, x in enumerate(good)})
    ahead, _ = sampler.ask()
    assert not sampler.worse(ahead, {k: x + 0.1 for k, x in enumerate(good)})


@pytest.mark.filterwarnings("error")
def test_no_figure_is_told_twice():
    tune = Tune(space={"a": "uniform(0, 1)"}, sampler="random")
    sampler = Sampler(tune, {"a": uniform(0, 1)}, "test", lower=False)
    ticket, _ = sampler.ask()
    sampler.worse(ticket, {0: 0.5, 1: 0.6})
    sampler.tell(ticket, {0: 0.5, 1: 0.6, 2: 0.7}, 0.6)
    (trial,) = sampler.study.trials
    assert trial.intermediate_values == {0: 0.5, 1: 0.6, 2: 0.7}


def test_a_figure_has_the_place_of_its_site():
    tasks = [SimpleNamespace(targets=own, sources=("x",)) for own in (("a", "d"), ("b",), ("c",))]
    search = SimpleNamespace(rungs=(tasks[:2], tasks[2:]))
    assert Search.by_step(search, {"d": 0.1, "c": 0.3}) == {1: 0.1, 3: 0.3}
    of_sources = SimpleNamespace(rungs=([SimpleNamespace(targets=(), sources=("x", "y"))],))
    assert Search.by_step(of_sources, {"y": 0.2}) == {1: 0.2}


def test_a_site_without_a_figure_shifts_no_other():
    """Ahead at every site that has one, in figures that differ much by site."""
    tune = Tune(space={"a": "uniform(0, 1)"}, sampler="random")
    sampler = Sampler(tune, {"a": uniform(0, 1)}, "test", lower=False)
    good = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8][::-1]
    sampler.knows({"a": 0.5}, dict(enumerate(good)), float(np.mean(good)))
    ticket, _ = sampler.ask()
    assert not sampler.worse(ticket, {k: x + 0.01 for k, x in enumerate(good) if k})


@pytest.mark.filterwarnings("error")
def test_what_diverges_is_tried_less_and_less():
    tune = Tune(space={"a": "uniform(0, 1)"}, prune=0)
    sampler, drawn = Sampler(tune, {"a": uniform(0, 1)}, "test", lower=False), list[float]()
    for _ in range(50):
        ticket, values = sampler.ask()
        drawn.append(values["a"])
        if values["a"] > 0.3:
            sampler.tell(ticket, {}, None)
        else:
            sampler.tell(ticket, {0: 0.5}, 0.5)
    # Drawn evenly, 70 % of them would diverge.
    assert np.mean(np.array(drawn[20:]) > 0.3) < 0.35


@pytest.mark.parametrize("kind", ["grid", "tpe"])
def test_values_may_be_lists(kind):
    tune = Tune(space={"model": "mlp(widths=one([8], [8, 8]))"}, sampler=kind)
    sampler = Sampler(tune, {"model.widths": one([8], [8, 8])}, "test", lower=False)
    sampler.knows({"model.widths": [8]}, {0: 0.5}, 0.5)
    drawn = [sampler.ask()[1]["model.widths"] for _ in range(2)]
    assert drawn == [[8], [8, 8]] if kind == "grid" else set(map(len, drawn)) <= {1, 2}


def test_two_searches_of_one_seed_draw_differently_and_each_the_same_again():
    tune, ranges = Tune(space={"a": "uniform(0, 1)"}), {"a": uniform(0, 1)}
    first, again, other = (
        [Sampler(tune, ranges, name, lower=False).ask()[1]["a"] for _ in range(1)]
        for name in ("fedavg/a", "fedavg/a", "fedavg/b")
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tune": {**GRID, "space": {"rounds": "log(1, 5)"}}}, "tries all combinations"),
        ({"tune": DRAWN, "holdout": {"source": ["a"], "target": ["d"]}}, "has one only"),
    ],
)
def test_a_study_that_cannot_be_searched_is_refused(table, tmp_path, settings, words):
    with pytest.raises(UnseenError, match=words):
        study(table, **{k: v for k, v in USUAL.items() if k != "targets"}, **settings).run(
            tmp_path / "out"
        )


def test_trials_train_as_one_batch(table, tmp_path):
    """Trials of other rates, decays and epochs: the same winners as one job after the other."""
    space = {"training.optimiser": "sgd(lr=log(0.01, 0.3), weight_decay=log(0.0001, 0.1))"}
    tune = DRAWN | {"space": {**space, "training.epochs": "one(1, 2)"}, "trials": 5}
    one, together = (
        study(table, **USUAL, tune=tune, stacked=models).run(tmp_path / str(models)).searched()
        for models in (0, 60)
    )
    for alone, batched in zip(one, together, strict=True):
        assert alone.best.settings == batched.best.settings
        assert [t.state for t in alone.trials] == [t.state for t in batched.trials]
        for mine, theirs in zip(batched.trials, alone.trials, strict=True):
            assert mine.sites == pytest.approx(theirs.sites, abs=1e-4)


def test_another_search_does_not_mix_with_a_folders_trials(table, tmp_path):
    study(table, **USUAL, tune=DRAWN | {"trials": 2}).run(tmp_path / "out")
    with pytest.raises(UnseenError, match=r"holds another study: .*tune\.trials was 2 and is 6"):
        study(table, **USUAL, tune=DRAWN).run(tmp_path / "out")


@pytest.mark.parametrize("other", [{"metric": "loss"}, {"selection": "last"}])
def test_another_score_does_not_take_over_a_folders_winners(table, tmp_path, other):
    study(table, **USUAL, tune=DRAWN | {"trials": 2}).run(tmp_path / "out")
    with pytest.raises(UnseenError, match=r"scored accuracy at the round of source-validation, "):
        study(table, **USUAL, tune=DRAWN | {"trials": 2}, **other).run(tmp_path / "out")


def test_the_command_prints_what_it_chose_and_writes_a_study_that_trains_it(table, tmp_path):
    from support.small_studies import expression

    file = tmp_path / "mine.toml"
    file.write_text(
        f"dataset = '''{expression(table)}'''\nmodel = 'logistic'\nrounds = 2\nseeds = 1\n"
        "training = {batch_size = 8}\n"
    )
    space = "training.optimiser=sgd(lr=one(0.01, 1.0))"
    command = [
        "tune", str(file), "--methods", "fedprox", "--space", space, "--sampler", "grid",
        "--no-options", "--criterion", "lodo(groups=2)", "--out", str(tmp_path / "tuned"),
    ]  # fmt: skip
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    assert "unseen train" in outcome.output
    record = records(tmp_path / "tuned", task="all")
    chosen = StudySpec.read(tmp_path / "tuned" / "fedprox.toml")
    assert chosen.methods == (record.best.method,)
    rates = {"sgd(lr=0.01)", "sgd(lr=1.0)", "sgd(lr=0.1)"}
    assert chosen.training.optimiser in rates
    assert chosen.tune is None
    again = CliRunner().invoke(app, command)
    assert again.output == outcome.output


def test_what_a_search_spends_of_privacy_is_said(table, tmp_path):
    ranges = {"u": (-5, 5), "v": (-5, 9)}
    noise = {"clients": "dp(clip=1.0, noise=1.0, delta=1e-4)", "columns": ranges}
    results = study(table, **USUAL, tune=DRAWN | {"trials": 2}, privacy=noise).run(tmp_path / "out")
    assert "adds up over 2 trials" in " ".join(results.protocol(results.study.selection))
