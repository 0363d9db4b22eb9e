"""Recipes without a figure somewhere: what diverged, or has no value, is not passed over."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_trials import trials
from support.small_studies import rows, study, write

from unseen import UnseenError
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.choice_page import page
from unseen.studies.choice.trials import ALONE, Trial, at_targets, with_alone

WILD = "fedprox(mu=1e+30)"


def test_a_site_where_one_seed_diverged_has_no_figure_of_the_recipe(tmp_path: Path) -> None:
    """The seed that is left would speak for both."""
    settings = {"methods": ["fedavg", "glm(steps=2)"], "seeds": 2, "rounds": 1}
    results = study(write(tmp_path / "sites.csv", rows("abc")), **settings).run(tmp_path / "out")
    before = at_targets(results, results.metric, {}, defaultdict(list))
    assert {len(own) for at in before.values() for own in at.values()} == {2}
    lost = next(j for j in results.folders() if (j.job.method, j.job.task) == ("fedavg", "b"))
    mark = lost.folder / "done.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"diverged": "round 0"}))
    after = at_targets(results, results.metric, {}, defaultdict(list))
    assert after["glm(steps=2)"] == before["glm(steps=2)"]
    assert after["fedavg"] == {site: before["fedavg"][site] for site in "ac"}


def test_a_recipe_that_diverged_everywhere_is_named(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows()), rounds=2)
    candidates = Candidates(one, [WILD], 2, rates=(1.0,), pool=False, alone=False)
    choice = choose(play(candidates, tmp_path / "out"))
    assert choice.refused == {WILD: "diverged at every rate"}
    text = page(choice, (1.0,))
    assert f"- Without figures: {WILD}, which diverged at every rate." in text
    assert "No other recipe has figures" in text and "was tried" not in text


def test_a_metric_without_a_value_is_not_called_divergence(tmp_path: Path) -> None:
    body = [[*row[:-1], str("ab".index(row[0]) % 2)] for row in rows("ab")]
    body += [[*row[:-1], str("cd".index(row[0]) % 2)] for row in rows("cd")]
    one = study(write(tmp_path / "sites.csv", body), metric="auroc", metrics=["auroc", "loss"])
    with pytest.raises(UnseenError, match="has no auroc at any site. Choose by another metric"):
        play(Candidates(one, ["glm(steps=2)"], 2, rates=(1.0,)), tmp_path / "out")


def test_what_diverged_at_one_rate_of_two_did_not_diverge_at_every_rate(tmp_path: Path) -> None:
    body = [[*row[:-1], str("abcd".index(row[0]) % 2)] for row in rows()]
    one = study(write(tmp_path / "sites.csv", body), metric="auroc", metrics=["auroc", "loss"])
    with pytest.raises(UnseenError, match="with, has no auroc at any site. Choose by another"):
        play(Candidates(one, [], 2, rates=(1.0, 1e31)), tmp_path / "out")


def test_figures_at_the_sites_of_one_group_are_no_basis() -> None:
    made = trials({"fedavg": [0.8, 0.7, 0.9, 0.6], "glm": [0.9, 0.8, 0.9, 0.7]}, per_group=2)
    lacking = replace(made.by_recipe["glm"], figures={"s00": 0.9, "s01": 0.8})
    with pytest.raises(UnseenError, match="at those of s02 a recipe diverged"):
        choose(replace(made, by_recipe={**made.by_recipe, "glm": lacking}))


def test_a_sites_own_model_without_figures_leaves_the_others_theirs() -> None:
    made = trials({"fedavg": [0.8, 0.7, 0.9], "glm": [0.9, 0.8, 0.9]})
    found = with_alone(made, Trial(ALONE, {"s00": 0.5, "s01": 0.5}))
    assert found.sites == made.sites and ALONE not in found.by_recipe
    assert found.refused[ALONE].endswith("at s02")
    whole = with_alone(made, Trial(ALONE, dict.fromkeys(made.sites, 0.5)))
    assert ALONE in whole.by_recipe and not whole.refused


def test_intervals_of_worst_groups_stay_between_0_and_1() -> None:
    figures = {"fedavg": [0.9, 0.98, 0.8, 0.99], "glm": [0.91, 0.97, 0.82, 0.99]}
    for metric in ("accuracy", "worst accuracy@sex", "validation accuracy"):
        choice = choose(trials(figures, metric=metric))
        assert max(row.expected.high for row in choice.rows) < 1.0
        assert choice.procedure.high < 1.0
