"""The choice: who decides what, a null without a winner, a planted winner, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.made_trials import trials
from support.small_studies import rows, study, write
from typer.testing import CliRunner

from unseen import UnseenError, method
from unseen.cli.main import app
from unseen.studies.choice import choose
from unseen.studies.choice.choice_html import write as write_answer
from unseen.studies.choice.choice_page import expectation, page, paragraph, size
from unseen.studies.choice.playing import Candidates, play
from unseen.studies.choice.rates import at_rate
from unseen.studies.choice.trials import ALONE, BASE, CONSTANT, Cost, best_rate, tuned, view_of
from unseen.studies.settings.study import StudySpec


def test_where_recipes_are_alike_no_winner_is_declared():
    rng = np.random.default_rng(0)
    alone = 0
    for _ in range(200):
        site = rng.normal(0.8, 0.05, 12)
        made = {n: site + rng.normal(0, 0.02, 12) for n in (BASE, "glm", "boost", "portfolio")}
        alone += len(choose(trials(made)).tied) == 1
    # Holm bounds the chance that the best is told from a recipe that is as good; three of three
    # others would have to be.
    assert alone <= 2


#: Figures at four sites, of which no test tells anything apart. `boost` has the best mean, `glm` is
#: behind it by 0.01 ± 0.015 (one standard error), `fedavg` by 0.05 ± 0.004.
FEW = {
    "boost": [0.80, 0.75, 0.70, 0.85],
    "glm": [0.80, 0.70, 0.72, 0.84],
    BASE: [0.75, 0.71, 0.64, 0.80],
}
BYTES = {"boost": 1000.0, "glm": 100.0, BASE: 1.0}


def test_of_recipes_that_disclose_alike_the_least_bytes_within_a_standard_error_of_the_best():
    gap = np.subtract(FEW["boost"], FEW["glm"])
    assert gap.mean() < gap.std(ddof=1) / 2
    choice = choose(trials(FEW, BYTES))
    assert set(choice.tied) == {"boost", "glm", BASE}
    assert (choice.best, choice.recipe) == ("boost", "glm")
    assert "glm sends 100 B for 1.0 kB" in page(choice, (1.0,))
    # Where bytes say nothing against it, the best mean is recommended.
    assert choose(trials(FEW, {**BYTES, "glm": 2000.0})).recipe == "boost"


@pytest.mark.parametrize(
    ("sees", "recommended"),
    [
        ({"boost": "updates"}, "glm"),
        ({"boost": "products", "glm": "products"}, BASE),
        ({"glm": "updates"}, "boost"),
        ({"boost": "updates", "glm": "updates", BASE: "products"}, BASE),
        ({"boost": "updates", "glm": "updates", BASE: "updates"}, "glm"),
    ],
)
def test_a_recipe_whose_server_sees_more_has_to_be_ahead_by_the_test(sees, recommended):
    assert choose(trials(FEW, BYTES, sees=sees)).recipe == recommended


def test_a_recipe_that_is_ahead_by_the_test_is_recommended_whatever_its_server_sees():
    made = {BASE: np.linspace(0.6, 0.7, 9), "bag": np.linspace(0.7, 0.8, 9)}
    assert choose(trials(made, sees={"bag": "updates"})).recipe == "bag"


def test_the_other_sites_recommend_by_the_same_rule():
    sees = {"boost": "updates"}
    for sent in (BYTES, {**BYTES, "glm": 0.1}, {**BYTES, BASE: 5000.0}):
        whole = trials(FEW, sent, sees=sees)
        expected = []
        for k in range(4):
            rest = {n: [v for i, v in enumerate(values) if i != k] for n, values in FEW.items()}
            expected.append(FEW[choose(trials(rest, sent, sees=sees)).recipe][k])
        assert choose(whole).procedure.mean == pytest.approx(np.mean(expected))


def test_what_a_server_sees_is_that_of_the_methods_rules():
    expected = {
        BASE: "scalars", "glm": "scalars", "portfolio": "scalars", "fedavg+ga": "scalars",
        "ppdg": "products", "fedavg+exp": "products", "ppdg+ensemble(members=2)": "products",
        "median": "updates", "bag(of='trees')": "updates",
        "stack(members=['glm', \"bag(of='trees')\"])": "updates",
    }  # fmt: skip
    assert {name: view_of(method(name)) for name in expected} == expected


def test_a_planted_winner_is_found():
    rng = np.random.default_rng(1)
    site = rng.normal(0.7, 0.08, 12)
    made = {n: site + rng.normal(0, 0.01, 12) for n in (BASE, "glm", "boost")}
    made["portfolio"] = made["glm"] + 0.05
    choice = choose(trials(made, {"portfolio": 100.0}))
    assert choice.recipe == choice.best == "portfolio"
    assert choice.tied == ("portfolio",)
    assert choice.row("portfolio").against[BASE] > 0.99
    assert choice.procedure.mean == pytest.approx(np.mean(made["portfolio"]))
    assert "ahead of every other recipe" in page(choice, (1.0,))


def test_less_is_better_where_it_is():
    made = {BASE: [0.5] * 8, "glm": np.linspace(0.3, 0.4, 8), ALONE: [0.9] * 8}
    choice = choose(trials(made, metric="loss", lower=True))
    assert choice.recipe == "glm"
    assert choice.row("glm").worst == ("s07", 0.4)
    assert choice.row("glm").against[BASE] > 0.99
    assert [row.recipe for row in choice.rows] == ["glm", BASE, ALONE]


def test_pooled_rows_and_a_sites_own_model_are_shown_and_not_chosen():
    made = {BASE: [0.5, 0.6, 0.7], "deepall": [0.9] * 3, ALONE: [0.95] * 3}
    assert choose(trials(made)).recipe == BASE


def test_a_sites_own_figures_have_no_say_in_its_rate():
    rng = np.random.default_rng(2)
    sites = [f"s{k}" for k in range(6)]
    groups = {sites[0]: tuple(sites[:2]), sites[2]: tuple(sites[2:4]), sites[4]: tuple(sites[4:])}
    figures = {r: {s: [rng.uniform()] for s in sites} for r in (0.2, 1.0, 5.0)}
    before = tuned("fedavg", figures, groups, False, [Cost(1, 1)])
    for name, own in groups.items():
        for poison in (0.0, 1.0):
            changed = {
                r: {s: [poison * r] if s in own else v for s, v in by.items()}
                for r, by in figures.items()
            }
            assert (
                tuned("fedavg", changed, groups, False, [Cost(1, 1)]).rates[name]
                == (before.rates[name])
            )
    others = {r: np.mean([by[s][0] for s in sites[2:]]) for r, by in figures.items()}
    assert before.rates[sites[0]] == max(others, key=others.__getitem__)


def test_a_rate_at_which_a_site_diverged_is_not_taken():
    means = {1.0: {"a": 0.6, "b": 0.6}, 5.0: {"a": 0.9}}
    assert best_rate(means, lower=False) == 1.0
    assert best_rate(means, lower=True, without=["b"]) == 1.0


def test_texts():
    assert at_rate("sgd(lr=0.05, momentum=0.9)", 0.25) == "sgd(lr=0.25, momentum=0.9)"
    assert size(2.5e9) == "2.5 GB"


STUDY = {
    "dataset": "heart-disease", "model": "mlp(widths=[4])", "rounds": 3, "seeds": 1,
    "training": {"optimiser": "sgd(lr=0.05)"},
}  # fmt: skip


def test_the_figures_are_those_of_studies_and_a_repeated_call_plays_nothing(tmp_path):
    study = StudySpec(**STUDY)
    candidates = Candidates(study, ["glm"], groups=2, rates=(1.0, 5.0))
    found = play(candidates, tmp_path)
    assert {len(sites) for sites in found.groups.values()} == {2}
    assert set(found.by_recipe) == {"fedavg", "glm", "deepall", ALONE, CONSTANT}
    assert all(len(trial.figures) == 4 for trial in found.by_recipe.values())
    marks = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("done.json")}
    assert play(candidates, tmp_path) == found
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("done.json")} == marks
    # A site's own model elsewhere is the mean over the three others' models.
    folder = tmp_path / "alone" / "records" / "fedavg"
    figures = [
        json.loads(line)["accuracy"]
        for source in folder.iterdir()
        for line in (source / "seed-0" / "target.jsonl").read_text().splitlines()
        if json.loads(line)["domain"] == "va"
    ]
    assert len(figures) == 3
    assert found.by_recipe[ALONE].figures["va"] == pytest.approx(np.mean(figures))


def test_the_command_and_the_model_of_its_answer(tmp_path):
    out = tmp_path / "choice"
    done = CliRunner().invoke(app, [
        "choose", "heart", "rounds=3", "model=mlp(widths=[4])", "--recipes", "glm", "--rates", "1",
        "--no-pool", "--out", str(out),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Recommended:   glm\nAt a new site: accuracy " in done.output
    assert f"Next:          unseen train --recipe {out / 'choice.json'}" in done.output
    text = (out / "choice.md").read_text()
    assert "deepall" not in text.split("## ")[0]
    said = expectation(out / "choice.json")
    model = tmp_path / "model"
    trained = CliRunner().invoke(
        app, ["train", "--recipe", str(out / "choice.json"), "--out", str(model)]
    )
    assert trained.exit_code == 0, trained.output
    spec = json.loads((model / "model.json").read_text())
    assert spec["method"] == said["recipe"]
    assert spec["expected at a new site"]["mean"] == said["mean"]
    card = (model / "README.md").read_text()
    assert f"expect accuracy {said['texts']['mean']}; 90% of such sites lie between" in card
    held = tmp_path / "held"
    options = ["holdout=hungary", "--out", str(held)]
    trained = CliRunner().invoke(app, ["train", "--recipe", str(out / "choice.json"), *options])
    assert trained.exit_code == 0, trained.output
    card = (held / "README.md").read_text()
    assert "the recipe was chosen with it: its figures at hungary were among those" in card


def test_a_csv_file_needs_its_two_columns(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("hospital,age,died\n" + "".join(
        f"{h},{20 + 7 * i % 60},{i % 2}\n" for h in "abc" for i in range(40)
    ))  # fmt: skip
    run = CliRunner().invoke
    refused = run(app, ["choose", str(path)])
    assert isinstance(refused.exception, UnseenError)
    assert "--site COLUMN --label COLUMN" in refused.exception.remedy
    done = run(app, [
        "choose", str(path), "--site", "hospital", "--label", "died", "rounds=2", "--recipes",
        "glm", "--rates", "1", "--no-alone", "--out", str(tmp_path / "out"),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    with pytest.raises(UnseenError, match="not an answer"):
        expectation(path)
    wrong = run(app, ["choose", "heart", "--rates", "fast"])
    assert "comma-separated numbers" in str(wrong.exception)


def test_a_folder_of_images_is_enough(tmp_path):
    rng = np.random.default_rng(0)
    for site, name, i in product("abc", ("bright", "dark"), range(8)):
        picture = rng.integers(0, 128, (12, 12, 3)) + (127 if name == "bright" else 0)
        (folder := tmp_path / "photos" / site / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(folder / f"{i}.png")
    run = CliRunner().invoke(app, [
        "choose", str(tmp_path / "photos"), "dataset=folder(size=12)", "rounds=1", "model=logistic",
        "training.batch_size=4", "--recipes", "fedavg", "--rates", "1", "--no-alone", "--no-pool",
        "--out", str(tmp_path / "out"),
    ])  # fmt: skip
    assert run.exit_code == 0, run.output
    figures = json.loads((tmp_path / "out" / "choice.json").read_text())["figures"]["fedavg"]
    assert set(figures) == {"a", "b", "c"}


def test_more_sites_are_said_to_be_needed_where_the_cheapest_is_not_the_best():
    made = {BASE: [0.70, 0.80, 0.75], "portfolio": [0.75, 0.78, 0.76]}
    found = trials(made, {BASE: 1.0, "portfolio": 9.0})
    choice = choose(found)
    assert (choice.recipe, choice.best) == (BASE, "portfolio")
    assert any(text.startswith("More sites: portfolio is ahead") for text in choice.changes)


def test_sites_without_a_figure_are_named() -> None:
    made = trials({"fedavg": [0.8, 0.7, 0.9, 0.6], "glm": [0.9, 0.8, 0.9, 0.7]})
    one = made.by_recipe["glm"]
    lacking = replace(one, figures={n: v for n, v in one.figures.items() if n != "s03"})
    choice = choose(replace(made, by_recipe={**made.by_recipe, "glm": lacking}))
    assert choice.procedure.sites == 3
    assert any(text.endswith("has no value: s03.") for text in choice.changes)


@pytest.mark.parametrize("away", [{"holdout": "a"}, {"targets": ["a"]}])
def test_a_study_that_keeps_a_site_away_is_refused(away: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", rows("abcd"))
    kept = study(path, **away)
    with pytest.raises(UnseenError, match="keeps sites away"):
        play(Candidates(kept, ["glm"], 2), tmp_path / "out")


def test_a_baseline_that_diverges_everywhere_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "sites.csv", rows("abcd"))
    wild = study(path, rounds=2, training={"optimiser": "sgd(lr=1e30)"})
    with pytest.raises(UnseenError, match="are compared with, diverged at every rate"):
        play(Candidates(wild, [], 2, rates=(1.0,)), tmp_path / "out")


def written(folder: Path, figures: dict[str, list[float]], metric: str = "accuracy") -> list[str]:
    """The page, the paragraph, and what the card says of the answer."""
    choice = choose(trials(figures, metric=metric, lower=metric == "rmse"))
    data = write_answer(choice, (1,), folder).data
    return [page(choice, (1,)), paragraph(choice), " ".join(expectation(data)["notes"])]


def test_an_interval_without_a_spread_says_that_it_is_the_metrics_range(tmp_path: Path) -> None:
    said = "All sites have the same figure, so that their spread is not known, and the interval is"
    texts = written(tmp_path, {"fedavg": [0.75] * 4}, "brier")
    assert all(f"{said} the whole range of brier." in text for text in texts)
    assert "All sites have the same figure under **`fedavg`**, so that" in texts[0]
    for text in written(tmp_path, {"fedavg": [2.0] * 4}, "loss"):
        assert f"{said} the range of loss as far as that has an end, and else that figure." in text
    for text in written(tmp_path, {"fedavg": [0.7, 0.72, 0.74, 0.76]}):
        assert "same figure" not in text


def test_the_page_says_on_which_scale_sites_vary(tmp_path: Path) -> None:
    figures = {"fedavg": [0.7, 0.8, 0.9, 1.0]}
    assert "a random-effects model on the scale of log odds" in written(tmp_path, figures)[0]
    assert "a random-effects model on a logarithmic scale" in written(tmp_path, figures, "rmse")[0]


def test_sites_of_few_rows_are_named_and_count_less() -> None:
    made = trials({"fedavg": [0.7, 0.7, 0.71, 0.1], "glm": [0.8, 0.8, 0.81, 0.0]})
    rows = {"s00": 400, "s01": 500, "s02": 300, "s03": 4}
    choice = choose(replace(made, rows=rows))
    assert choice.best == "glm" and choice.row("glm").expected.mean > 0.75
    (said,) = [text for text in choice.changes if "few rows, which count less" in text]
    assert "s03 (4)" in said
