"""A recipe that cannot serve the data is refused by its name and reason; the others are played."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Command
from support.made_trials import trials
from support.small_studies import rows, study, write

from unseen import UnseenError
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.forecast import forecast, plans
from unseen.studies.choice.refusals import served
from unseen.studies.choice.trials import judged_at_two_groups
from unseen.studies.execution.plan import prepare_study

GLM = "solves for all its coefficients at once, at most 4,000: these data need 8,010"


def wide(folder: Path) -> Path:
    """800 columns, 10 classes: more coefficients than `glm` solves for."""
    draw = np.random.default_rng(0)
    names = ",".join(f"x{j}" for j in range(800))
    lines = [
        f"{'abc'[i % 3]},{','.join(map(str, draw.integers(0, 9, 800)))},c{i // 3 % 10}"
        for i in range(90)
    ]
    path = folder / "wide.csv"
    path.write_text("\n".join([f"site,{names},y", *lines, ""]))
    return path


def test_one_recipe_that_does_not_apply_leaves_the_choice_to_the_others(
    tmp_path: Path, unseen: Command
) -> None:
    recipes = "glm,fedavg,bag(of='glm'),portfolio(members=['glm', 'fedavg'])"
    command = [
        "choose", str(wide(tmp_path)), "--domain", "site", "--label", "y", "rounds=1",
        "--recipes", recipes, "--rates", "1", "--no-alone", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    dry = unseen(*command, "--dry-run")
    assert dry.code == 0, dry.err
    assert f"not applicable: glm, which {GLM}" in dry.out
    ran = unseen(*command)
    assert ran.code == 0, ran.err
    assert f"not judged: glm, which {GLM}, for 800 inputs and 10 classes" in ran.err
    page = (tmp_path / "out" / "choice.md").read_text()
    assert f"- Without figures: glm, which {GLM}" in page
    refused = json.loads((tmp_path / "out" / "choice.json").read_text())["refused"]
    assert refused["glm"].startswith(GLM)
    assert refused["bag(of='glm')"].startswith(f"cannot have sites play glm, which {GLM}")
    (mixture,) = (name for name in refused if name.startswith("portfolio"))
    assert refused[mixture].startswith(f"cannot have the member glm, which {GLM}")
    assert not list((tmp_path / "out").rglob("glm*"))


def test_a_portfolio_by_itself_goes_without_the_member(tmp_path: Path) -> None:
    data = f"table(path='{wide(tmp_path)}', domain='site', label='y')"
    one = study(data, methods=["portfolio(ensemble=1, rates=[1])"], rounds=1, holdout="none")
    planned = prepare_study(one, tmp_path / "out")
    assert not planned.not_applicable
    (said,) = (w for w in planned.warnings if "goes without" in w)
    assert said.startswith("portfolio(ensemble=1, rates=[1]) goes without its member glm, which")


def test_two_sites_leave_one_source_which_no_mixture_can_leave_out(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows("ab")), rounds=1)
    mixture = "portfolio(members=['glm', 'fedavg'], ensemble=1, rates=[1])"
    candidates = Candidates(one, [mixture, "glm(steps=2)"], rates=(1.0,), pool=False, alone=False)
    choice = choose(play(candidates, tmp_path / "out"))
    assert {row.recipe for row in choice.rows} >= {"fedavg", "glm(steps=2)"}
    assert choice.refused[mixture].startswith("leaves source sites out in turn, and there is one")


def test_what_the_channel_cannot_carry_is_refused_and_the_rest_is_played(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows("abcd")), rounds=1, privacy={"channel": "masks"})
    asked = Candidates(one, ["glm(steps=2)", "bag(of='trees')"], 2, rates=(1.0,), alone=False)
    candidates = served(asked, None)
    assert candidates.rows == ("fedavg", "glm(steps=2)")
    assert "pools all data" in candidates.refused["deepall"]
    assert "cannot be played with these settings" in candidates.refused["bag(of='trees')"]
    lines = forecast(plans(candidates, tmp_path / "out"), candidates.refused)
    assert any(line.startswith("not applicable: deepall, which cannot") for line in lines)
    assert choose(play(candidates, tmp_path / "out")).refused == candidates.refused


def test_a_mistyped_recipe_ends_the_choice(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows()))
    with pytest.raises(UnseenError, match="unknown method 'gml'; did you mean 'glm'"):
        served(Candidates(one, ["gml"]), None)


def test_what_all_are_compared_with_may_diverge(tmp_path: Path) -> None:
    one = study(write(tmp_path / "sites.csv", rows()), rounds=1)
    candidates = Candidates(one, ["glm(steps=2)"], 2, rates=(1e31,), pool=False)
    choice = choose(play(candidates, tmp_path / "out"))
    assert choice.recipe == "glm(steps=2)"
    assert choice.refused["fedavg"] == "diverged at every rate"


def test_a_recipe_with_figures_in_one_group_is_refused_and_not_the_choice() -> None:
    made = trials({"fedavg": [0.8, 0.7, 0.9], "glm": [0.9, 0.8, 0.9]})
    lacking = replace(made.by_recipe["glm"], figures={"s00": 0.9})
    found = judged_at_two_groups(replace(made, by_recipe={**made.by_recipe, "glm": lacking}))
    assert [*found.by_recipe] == ["fedavg"] and found.sites == made.sites
    assert found.refused == {"glm": "has no accuracy at s01, s02"}
    assert judged_at_two_groups(made) is made
    alone = replace(made, by_recipe={"glm": lacking})
    assert judged_at_two_groups(alone) is alone
