"""What an answer is compared with: other recipes, rows for comparison, a constant, the choice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.made_trials import trials

from unseen import UnseenError
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.choice_html import write
from unseen.studies.choice.choice_page import expectation, page, paragraph
from unseen.studies.choice.constant import against_constant
from unseen.studies.choice.texts import figure_text
from unseen.studies.choice.trials import ALONE, BASE, CONSTANT, POOLED
from unseen.studies.settings.study import StudySpec

CLEAR = np.linspace(0.7, 0.8, 9)
#: At nine sites as good as `CLEAR` on average, now better, now worse.
SAME = CLEAR + np.array([0.01, -0.01, 0.02, -0.02, 0.03, -0.03, 0.04, -0.04, 0.0])


def said(figures: dict[str, object], **others: object) -> str:
    return paragraph(choose(trials(figures, **others)))  # type: ignore[arg-type]


def test_of_one_recipe_nothing_is_said_to_be_behind() -> None:
    text = said({BASE: CLEAR, POOLED: CLEAR + 0.05, ALONE: CLEAR + 0.02})
    assert "ahead of" not in text
    assert "No other recipe was tried" in text
    assert f"{POOLED} (80.0) and {ALONE} (77.0) have better means" in text


def test_a_winner_is_ahead_of_the_recipes_that_were_tested_and_no_more() -> None:
    text = said({BASE: CLEAR, "glm": CLEAR + 0.1, POOLED: CLEAR + 0.2, CONSTANT: CLEAR - 0.2})
    assert f"It is ahead of {BASE} (p < 0.05" in text
    assert f"never recommended: {POOLED} (95.0) has a better mean" in text
    text = said({BASE: CLEAR, "glm": CLEAR + 0.1, "boost": CLEAR, ALONE: CLEAR})
    assert "It is ahead of every other recipe (p < 0.05" in text
    assert "never recommended" not in text


@pytest.mark.parametrize(("recipe", "constant"), [(CLEAR, CLEAR + 0.01), (CLEAR, CLEAR)])
def test_a_recipe_behind_a_constant_is_said_to_be(recipe: object, constant: object) -> None:
    made = trials({BASE: recipe, CONSTANT: constant})  # type: ignore[dict-item]
    choice = choose(made)
    assert choice.recipe == BASE
    text = paragraph(choice)
    assert f"{BASE} is no better than always answering" in text
    assert "nothing shows that the inputs predict the label" in text
    assert "metric=auroc" in text


def test_a_recipe_that_sites_cannot_tell_from_a_constant() -> None:
    text = said({BASE: SAME + 0.001, CONSTANT: CLEAR}, metric="auroc")
    assert f"These sites do not show that {BASE} is better than always answering" in text
    assert "it is ahead by 0.001 on average" in text
    assert "Check the metric" not in text
    # Others that are better are named.
    text = said({BASE: SAME, "boost": CLEAR + 0.1, CONSTANT: CLEAR}, sees={"boost": "updates"})
    assert "always answering" not in text  # boost is ahead by the test, and is recommended
    few = {BASE: [0.7, 0.9, 0.75], "boost": [0.9, 0.95, 0.9], CONSTANT: [0.72, 0.86, 0.75]}
    text = said(few, sees={"boost": "updates"})
    assert f"Recommended: {BASE}" in text
    assert "Better than that are: boost." in text
    # Four sites where a recipe is ahead, unequally, show little: a bootstrap never leaves them.
    uneven = {BASE: [0.71, 0.72, 0.73, 0.9], CONSTANT: [0.7] * 4}
    assert f"These sites do not show that {BASE} is better" in said(uneven)


def test_a_recipe_that_is_better_than_a_constant_needs_no_remark() -> None:
    choice = choose(trials({BASE: CLEAR, CONSTANT: CLEAR - 0.1}))
    assert "always answering" not in paragraph(choice)
    assert choice.row(BASE).against[CONSTANT] == 1.0
    assert "a constant answer with >99% chance" in paragraph(choice)
    less = choose(trials({BASE: CLEAR, CONSTANT: CLEAR - 0.1}, metric="rmse", lower=True))
    assert f"{BASE} is no better than always answering" in paragraph(less)


def test_page_and_card_say_what_the_headline_leaves_open(tmp_path: Path) -> None:
    # Whoever leaves out the site where a recipe is best takes the other one.
    figures = {BASE: [0.9, 0.5, 0.52, 0.5], "glm": [0.5, 0.6, 0.6, 0.55], CONSTANT: [0.7] * 4}
    choice = choose(trials(figures))
    check = figure_text(choice.procedure.mean, "accuracy")
    assert check != figure_text(choice.row(choice.recipe).expected.mean, "accuracy")
    head = f"by the figures of the others, would have had {check}."
    assert head in paragraph(choice)
    text = page(choice, (1.0,))
    assert "| constant |" in text
    assert "than a constant answer |" in text
    lines = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert len(set(lines)) == 1
    file = write(choice, (1.0,), tmp_path).data
    first, second = expectation(file)["notes"]
    assert first.endswith(head)
    assert second in paragraph(choice)
    # A file that is older than the constant has its check all the same.
    old = {k: v for k, v in json.loads(file.read_text()).items() if k != "constant"}
    file.write_text(json.dumps(old))
    assert expectation(file)["notes"] == [first]


def test_the_interval_of_a_constant_stays_inside_what_the_metric_can_be() -> None:
    far = (
        choose(trials({BASE: CLEAR, CONSTANT: np.resize([0.05, 0.95], len(CLEAR))}))
        .row(CONSTANT)
        .expected
    )
    assert 0 < far.low < 0.01 and 0.99 < far.high < 1
    equal = choose(trials({BASE: CLEAR, CONSTANT: [0.5] * len(CLEAR)})).row(CONSTANT).expected
    assert (equal.low, equal.high) == (0.5, 0.5)


def test_where_there_is_nothing_to_choose_the_choice_has_no_figure_of_its_own() -> None:
    assert "The choice itself" not in said({BASE: CLEAR, POOLED: CLEAR, CONSTANT: CLEAR - 0.1})
    assert "a constant" not in page(choose(trials({BASE: CLEAR, "glm": CLEAR})), (1.0,))


def test_figures_have_the_unit_of_tables() -> None:
    expected = {"accuracy": "52.4", "balanced-accuracy": "52.4", "auroc": "0.524", "rmse": "0.524"}
    assert {metric: figure_text(0.524, metric) for metric in expected} == expected
    assert "auroc 0.750" in said({BASE: CLEAR}, metric="auroc")


#: Of 20 rows at each of three sites, how many have the label "n": whichever tenth validates, it is
#: the most frequent class of any two sites.
MOST = {"a": 19, "b": 18, "c": 6}


def rows(numbers: bool) -> list[tuple[str, float, str]]:
    """Three sites: which it is, a feature, the label, which is one number at all rows of a site."""
    draw = np.random.default_rng(0)
    return [
        (site, x, f"{k * k + 0.5}" if numbers else "n" if i < most else "y")
        for k, (site, most) in enumerate(MOST.items())
        for i, x in enumerate(draw.normal(size=20).tolist())
    ]


def file_of(folder: Path, made: list[tuple[str, float, str]]) -> Path:
    path = folder / "sites.csv"
    path.write_text("site,x,y\n" + "".join(f"{s},{x:.4f},{y}\n" for s, x, y in made))
    return path


@pytest.mark.parametrize("numbers", [True, False])
def test_the_constant_is_that_of_the_other_sites_training_rows(
    tmp_path: Path, numbers: bool
) -> None:
    made = rows(numbers)
    task = ", task='regression'" if numbers else ""
    study = StudySpec(
        dataset=f"table(path='{file_of(tmp_path, made)}', domain='site', label='y'{task})",
        seeds=1, rounds=1, model="mlp(widths=[2])",
        training={"optimiser": "sgd(lr=0.01)", "batch_size": 8},
    )  # fmt: skip
    candidates = Candidates(study, [], groups=3, rates=(1.0,), pool=False, alone=False)
    found = play(candidates, tmp_path / "out")
    # 0.5, 1.5 and 4.5 against the mean of the other two; the share of "n", most frequent elsewhere.
    numbered = {"a": 2.5, "b": 1.0, "c": 3.5}
    expected = numbered if numbers else {site: n / 20 for site, n in MOST.items()}
    assert found.by_recipe[CONSTANT].figures == pytest.approx(expected, rel=1e-6)
    what = "the mean of the training sites' labels" if numbers else "the most frequent class"
    assert found.constant.startswith(what)


def test_a_constant_without_a_figure_at_a_site_takes_no_site_away(tmp_path: Path) -> None:
    made = [(s, x, "rare" if s == "a" and x > 0 else y) for s, x, y in rows(numbers=False)]
    study = StudySpec(
        dataset=f"table(path='{file_of(tmp_path, made)}', domain='site', label='y')", seeds=1,
        rounds=1, model="mlp(widths=[2])", metric="loss", training={"batch_size": 8},
    )  # fmt: skip
    candidates = Candidates(study, [], groups=3, rates=(1.0,), pool=False, alone=False)
    found = play(candidates, tmp_path / "out")
    assert CONSTANT not in found.by_recipe  # a class that no source has: no shares predict it
    assert found.sites == ["a", "b", "c"]
    with pytest.raises(UnseenError, match="not an answer"):
        expectation(tmp_path / "out")


def test_each_other_recipe_is_corrected_for_as_many_as_there_are_others() -> None:
    """t = 3.44 with three degrees of freedom: beyond 3.18 (0.1 / 2), not beyond 3.74 (0.1 / 3)."""
    base, gaps = np.full(4, 0.7), np.array([0.007, 0.02, 0.03, 0.04])
    made = trials({BASE: base, "glm": base + 0.1, "boost": base + gaps, CONSTANT: base})
    found = against_constant(made, "glm")
    assert found is not None and found.better == ("glm", "boost")
