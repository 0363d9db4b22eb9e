"""A choice within a budget, of networks that train until flat, and of what cannot be trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Command
from support.made_trials import trials
from support.small_studies import rows, study, write

from unseen import UnseenError
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.budget import Spent, Tracker, foreseen, seconds_of
from unseen.studies.choice.choice_request import Question, asked
from unseen.studies.choice.playing import FEW, TABLES
from unseen.studies.choice.rate_search import edges, remarks
from unseen.studies.choice.rates import LIMIT, until_flat
from unseen.studies.choice.terminal_answer import answer_lines
from unseen.studies.choice.trials import ALONE, POOLED
from unseen.studies.execution import Study
from unseen.studies.results.records import Job
from unseen.studies.results.study_results import Results

SMALL = {"rounds": 1, "model": "mlp(widths=[2])"}


def candidates(folder: Path, **options: Any) -> Candidates:
    one = study(write(folder / "sites.csv", rows("abcd")), rounds=2)
    return Candidates(one, ["glm(steps=2)", "fedprox"], 2, (1.0,), **options)


def test_a_budget_that_is_spent_leaves_the_rest_to_the_next_call(tmp_path: Path) -> None:
    first = play(candidates(tmp_path, budget=1e-6), tmp_path / "out", progress=False)
    assert {*first.by_recipe} - {"constant"} == {"fedavg", "glm(steps=2)"}  # always played
    assert [*first.not_tried] == ["fedprox", POOLED, ALONE]
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("done.json")}
    whole = play(candidates(tmp_path, budget=3600.0), tmp_path / "out", progress=False)
    assert {"fedprox", POOLED, ALONE} < {*whole.by_recipe} and not whole.not_tried
    assert {p: p.stat().st_mtime_ns for p in written} == written
    fresh = play(candidates(tmp_path), tmp_path / "other", progress=False)
    assert choose(whole).figures == choose(fresh).figures


def test_the_first_training_of_a_recipe_says_whether_the_budget_holds_the_others(
    tmp_path: Path,
) -> None:
    job = Job("boost", "a", 0)
    job.folder(tmp_path).mkdir(parents=True)
    (job.folder(tmp_path) / "done.json").write_text(json.dumps({"seconds": 10.0, "files": {}}))

    def ended(left: int, deadline: float, always: tuple[str, ...] = ()) -> None:
        tracker = Tracker(Counter({"boost": left}), 1, deadline, always=always, clock=lambda: 0.0)
        tracker.ended(lambda one: one.method, tmp_path, job)

    ended(4, 31.0)
    with pytest.raises(Spent, match="boost"):
        ended(4, 29.0)  # three more take 30 seconds
    ended(4, 29.0, ("boost",))


def test_a_mixture_takes_its_members_once_more_for_each_group() -> None:
    seconds = {"fedavg": 2.0, "glm": 1.0, "boost": 3.0, "forest": 4.0}
    assert foreseen("portfolio(members=['glm', 'boost'])", seconds, 3) == (1 + 3) * (3 + 1)
    assert foreseen("portfolio", seconds, 3) == 8 * 4 + 3 * 2.0 * (6 * 3 + 3)
    assert foreseen("fedavg+ensemble(members=3)", seconds, 3) == 6.0
    assert foreseen("ppdg", seconds, 3) == 0.0


@pytest.mark.parametrize("text", ["10", "ten minutes", "0min", "-3 s", ""])
def test_a_budget_needs_a_unit(text: str, tmp_path: Path, unseen: Command) -> None:
    with pytest.raises(UnseenError, match="a time with its unit"):
        seconds_of(text)
    ran = unseen("choose", "heart", f"--budget={text}")
    assert ran.code == 2 and "--budget 10min" in ran.err


def test_few_recipes_are_played_unless_a_budget_asks_for_more(tmp_path: Path) -> None:
    file = write(tmp_path / "sites.csv", rows()).as_posix()
    few = asked(Question(file, {}, "site", "y")).candidates
    assert few.recipes == TABLES[: FEW[TABLES]] and few.further == TABLES[FEW[TABLES] :]
    assert few.flat and few.wider
    more = asked(Question(file, {}, "site", "y", budget=60.0)).candidates
    assert more.recipes == TABLES and not more.further
    own = asked(Question(file, {"rounds": 7}, "site", "y", rates=(1.0, 5.0))).candidates
    assert not own.flat and not own.wider and own.study.rounds == 7


def test_networks_train_until_flat_and_what_was_not_is_said(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows("abcd")), rounds=1)
    flat = until_flat(one)
    assert (flat.rounds, flat.patience) == (LIMIT, 1)
    whole = Candidates(one, ["glm(steps=2)"], 2, (1.0, 5.0), alone=False, pool=False, flat=True)
    played = play(whole, tmp_path / "out", progress=False)
    lengths = {
        len(path.read_text().splitlines())
        for path in (tmp_path / "out").glob("rate-*/records/fedavg/*/*/rounds.jsonl")
    }
    assert max(lengths) <= LIMIT
    assert "learning rate tried" in played.unfinished["fedavg"]
    assert "glm(steps=2)" not in played.unfinished
    settings = choose(played).study
    assert settings.get("patience") == (1 if choose(played).recipe == "fedavg" else None)


def test_what_is_not_finished_is_named() -> None:
    tried: dict[str, dict[float, object]] = {"fedavg": {0.2: 0, 1.0: 0, 5.0: 0}, "glm": {1.0: 0}}
    best, cut = {"fedavg": 5.0, "glm": 1.0}, {"fedavg": {5.0: (2, 4), 1.0: (0, 4)}}
    assert remarks(cut, best, tried, 150) == {
        "fedavg": "still improving after 150 rounds in 2 of 4 trainings and best at the largest "
        "learning rate tried, × 5"
    }
    assert edges(best, tried) == {25.0: ["fedavg"]}
    assert not remarks(cut, {"fedavg": 1.0}, tried, 150) and not edges({"fedavg": 1.0}, tried)


def test_rates_beyond_the_best_at_the_edge_are_tried(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows("abcd")), rounds=1)
    wide = Candidates(one, ["glm(steps=2)"], 2, (1.0, 5.0), alone=False, wider=True)
    played = play(wide, tmp_path / "out", progress=False)
    factors = [*played.by_recipe["fedavg"].at_rate]
    assert set(factors) > {1.0, 5.0} and len(factors) <= 4
    assert set(played.by_recipe[POOLED].at_rate) == {1.0, 5.0}  # for comparison only


def test_a_recipe_that_is_refused_in_training_leaves_the_others(tmp_path: Path) -> None:
    whole, notes = candidates(tmp_path, alone=False), list[str]()

    def run(one: Study, out: Path) -> Results:
        if "fedprox" in "".join(one.methods):
            raise UnseenError("site 'b' has no second batch.")
        return one.run(out)

    played = play(whole, tmp_path / "out", run=run, say=notes.append)
    (name,) = (name for name in played.refused if name.startswith("fedprox"))
    assert played.refused[name] == "cannot be trained here: site 'b' has no second batch"
    assert any(note.startswith(f"not judged: {name}, which cannot be trained") for note in notes)
    assert {"fedavg", "glm(steps=2)"} <= {*played.by_recipe}


def test_one_sites_troubles_end_no_choice(tmp_path: Path) -> None:
    def run(one: Study, out: Path) -> Results:
        if out.name == "alone":
            raise UnseenError("site 'a' has one class.")
        return one.run(out)

    notes = list[str]()
    played = play(candidates(tmp_path), tmp_path / "out", run=run, say=notes.append)
    assert played.refused[ALONE].endswith("site 'a' has one class")
    assert not any("one class" in note for note in notes)


def test_what_refuses_every_recipe_is_the_answer(tmp_path: Path) -> None:
    def run(one: Study, out: Path) -> Results:
        raise UnseenError("the disk is away.")

    with pytest.raises(UnseenError, match="the disk is away"):
        play(candidates(tmp_path), tmp_path / "out", run=run)


def test_the_answer_has_eight_lines_at_most() -> None:
    made = trials({"fedavg": [0.7, 0.72, 0.69, 0.74], "glm": [0.75, 0.7, 0.74, 0.8]})
    lines = answer_lines(choose(made), Path("page"), Path("data"))
    assert len(lines) <= 8 and all(line[:15].rstrip().endswith(":") for line in lines)
    text = "\n".join(lines)
    assert "ahead at 3 of 4 sites" in text and "10 sites would halve the interval" in text
    assert " p " not in text and "p =" not in text  # four sites cannot show it
