"""Comparisons with the site as the unit, against scipy and closed forms."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.small_studies import rows, study, write
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.studies.results.records import Job
from unseen_papers.compare.by_site import Sites, across, effects
from unseen_papers.compare.paired import detectable, equivalence, permuted
from unseen_papers.compare.site_page import by_others, page
from unseen_papers.compare.sites_of_studies import Run, figures, joined

DIFFERENCES = (0.03, -0.01, 0.02, 0.05, 0.04, 0.013, -0.002, 0.06, 0.011)


def runs(*folders: Path) -> list[Run]:
    return [Run(folder) for folder in folders]


def sites(name: str = "rows", **more: tuple[float, ...]) -> Sites:
    own = {m: {f"s{k}": x for k, x in enumerate(values)} for m, values in more.items()}
    return Sites(name, "accuracy", own, 3)


def two(name: str = "rows") -> Sites:
    base = tuple(0.5 + 0.02 * k for k in range(9))
    return sites(
        name,
        ours=tuple(b + d for b, d in zip(base, DIFFERENCES, strict=True)),
        theirs=base,
        others=tuple(b + 0.01 for b in base),
    )


def test_an_effect_is_the_tests_of_scipy() -> None:
    theirs, others = effects(two(), "ours", ["theirs", "others"])
    assert tuple(theirs.differences.values()) == pytest.approx(DIFFERENCES)
    assert theirs.wins == 7 and theirs.mean == pytest.approx(sum(DIFFERENCES) / 9)
    assert theirs.p == pytest.approx(stats.wilcoxon(DIFFERENCES, method="exact").pvalue)
    smaller, larger = sorted((theirs, others), key=lambda one: one.p)
    assert smaller.corrected == pytest.approx(min(1, 2 * smaller.p))
    assert larger.corrected == pytest.approx(max(larger.p, 2 * smaller.p))
    assert theirs.interval is not None and theirs.interval[0] < theirs.mean < theirs.interval[1]


@pytest.mark.parametrize("n", [2, 4, 9, 31])
def test_what_is_shown_four_times_in_five_is(n: int) -> None:
    """Drawn: the share of t-tests below 0.05 at that effect, four standard errors wide."""
    draws = np.random.default_rng(n)
    spread = draws.normal(size=n)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    effect = detectable([float(d) for d in spread])
    p = stats.ttest_1samp(draws.normal(effect, 1.0, size=(40_000, n)), 0.0, axis=1).pvalue
    assert (p < 0.05).mean() == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / 40_000) ** 0.5)
    assert detectable([0.1]) is None


def test_the_page_says_that_sites_of_a_group_share_their_models() -> None:
    apart, group = two(), frozenset({"s0", "s1"})
    shared = replace(apart, groups=frozenset({group, frozenset({"s2", "s3"}), frozenset({"s4"})}))
    texts = [page([one], "ours", [effects(one, "ours", ["theirs"])]) for one in (apart, shared)]
    assert "left out in 3 groups" in texts[1] and "left out in" not in texts[0]
    assert all("share most of their sources" in text for text in texts)


def test_permuted_signs_are_all_of_them() -> None:
    total = abs(sum(DIFFERENCES))
    far = [
        abs(sum(s * d for s, d in zip(signs, DIFFERENCES, strict=True))) >= total - 1e-12
        for signs in itertools.product((1, -1), repeat=9)
    ]
    assert permuted(DIFFERENCES) == pytest.approx(sum(far) / len(far))
    many = DIFFERENCES * 3  # more than are permuted in full
    normal = abs(sum(many)) / sum(d * d for d in many) ** 0.5
    assert permuted(many) == pytest.approx(2 * stats.norm.sf(normal), abs=2e-3)


def test_equivalence_is_two_t_tests() -> None:
    d = (0.001, -0.002, 0.0005, 0.0, 0.003)
    low = stats.ttest_1samp(d, -0.005, alternative="greater").pvalue
    high = stats.ttest_1samp(d, 0.005, alternative="less").pvalue
    assert equivalence(d) == pytest.approx(max(low, high))
    assert equivalence([0.01]) is None


def test_less_is_better_for_losses() -> None:
    losses = Sites("rows", "loss", {"a": {"x": 0.2, "y": 0.3}, "b": {"x": 0.4, "y": 0.6}}, 1)
    (one,) = effects(losses, "a", ["b"])
    assert one.mean == pytest.approx(0.25) and losses.row("a").worst == 0.3


def test_every_set_has_the_margin_of_its_metric() -> None:
    """Half a point of accuracy, and the same of an area that is printed as a share."""
    every = [two(), replace(two("areas"), metric="auroc")]
    text = page(every, "ours", [effects(one, "ours", ["theirs"]) for one in every])
    assert text.count("within ± 0.5 |") == text.count("within ± 0.005 |") == 1


def test_over_data_sets_each_is_one_figure() -> None:
    sets = [two(name) for name in "abcdef"]
    over = across(sets, "ours", ["theirs", "others"])
    assert over.sets == 6 and over.ranks == {"ours": 1.0, "theirs": 3.0, "others": 2.0}
    expected = stats.friedmanchisquare([3] * 6, [1] * 6, [2] * 6).pvalue
    assert over.friedman == pytest.approx(expected)
    assert over.corrected == pytest.approx({"theirs": 4 / 2**6, "others": 4 / 2**6})


def test_means_that_are_equal_up_to_rounding_share_a_rank() -> None:
    """0.98 + 0.86 and 0.92 + 0.92 are halved to numbers that differ in the last bit."""
    assert (0.98 + 0.86) / 2 != (0.92 + 0.92) / 2
    figures = {"ours": {"x": 0.98, "y": 0.86}, "theirs": {"x": 0.92, "y": 0.92}}
    figures["others"] = {"x": 0.5, "y": 0.5}
    over = across([Sites("rows", "accuracy", figures, 1)] * 2, "ours", ["theirs", "others"])
    assert over.ranks == {"ours": 1.5, "theirs": 1.5, "others": 3.0}


def test_a_study_is_compared_from_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 2, "seeds": 2, "holdout": {"groups": 2}}
    study(path, methods=["fedavg", "ppdg"], **settings).run(tmp_path / "one")
    study(path, methods=["glm"], **settings).run(tmp_path / "two")
    (whole,) = figures(runs(tmp_path / "one", tmp_path / "two"))
    assert set(whole.figures) == {"fedavg", "ppdg", "glm"} and whole.seeds == 2
    assert set(whole.figures["glm"]) == set("abcd")
    ran = CliRunner().invoke(
        app,
        ["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--method", "glm",
         "--out", str(tmp_path / "page")],
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    text = (tmp_path / "page" / "compare.md").read_text()
    assert "4 sites left out" in text and "too few for a claim" in text
    first, *_ = text.splitlines()
    assert first.startswith("Rows differ in budget:") and first.endswith("have `glm`.")
    assert "`glm` against" in text and (tmp_path / "page" / "forest.svg").stat().st_size > 1000
    assert (tmp_path / "page" / "compare.csv").read_text().count("\n") == 1 + 3 * 4
    for options in (["--method", "portfolio"], ["--method", "glm", "--columns", "glm,fedavgg"]):
        refused = CliRunner().invoke(
            app, ["compare", str(tmp_path / "one"), str(tmp_path / "two"), *options]
        )
        assert "unknown method" in str(refused.exception)
    with pytest.raises(UnseenError, match="two of these folders hold fedavg"):
        figures(runs(tmp_path / "one", tmp_path / "one"))


@pytest.mark.parametrize(
    ("metric", "has"), [("accuracy", True), ("rmse", False), ("worst mae@sex", False)]
)
def test_no_margin_holds_for_figures_in_the_labels_unit(metric: str, has: bool) -> None:
    whole = replace(two(), metric=metric)
    text = page([whole], "ours", [effects(whole, "ours", ["theirs"])])
    assert ("within ±" in text) == has
    header = next(line for line in text.splitlines() if "sites better" in line)
    below = text.splitlines()[text.splitlines().index(header) + 1 :][:2]
    assert {line.count("|") for line in below} == {header.count("|")}


def test_a_loss_has_a_margin_where_labels_are_classes(tmp_path: Path) -> None:
    """A squared error of prices is in squared units: half a hundredth means nothing there."""
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 1, "seeds": 1, "methods": ["fedavg", "ppdg"], "metrics": ["loss"]}
    table = f"table(path='{path}', domain='site', label='y', task='{{}}')"
    for name, task in (("classes", "classification"), ("numbers", "regression")):
        study(table.format(task), **settings).run(tmp_path / name)
        (sites,) = figures(runs(tmp_path / name))
        text = page([sites], "ppdg", [effects(sites, "ppdg", ["fedavg"])])
        assert ("within ±" in text) == sites.classes == (name == "classes")


def test_enough_sites_are_not_said_to_be_too_few() -> None:
    whole = two()
    text = page([whole], "ours", [effects(whole, "ours", ["theirs"])])
    assert "too few" not in text and "9 sites left out" in text


def test_the_first_table_marks_what_the_test_shows() -> None:
    whole = sites(
        ours=tuple(0.6 + 0.01 * k for k in range(12)),
        behind=tuple(0.5 + 0.012 * k for k in range(12)),
        ahead=tuple(0.7 + 0.011 * k for k in range(12)),
        level=tuple(0.6 + 0.01 * k + 0.01 * (-1) ** k for k in range(12)),
    )
    effects_of = effects(whole, "ours", ["behind", "ahead", "level"])
    columns = [["ours"], ["behind", "level"], ["behind"], ["ahead", "none-such"]]
    text = page([whole], "ours", [effects_of], columns=columns)
    (row,) = [line for line in text.splitlines() if line.startswith("| rows | 12 | accuracy")]
    ours, best, behind, ahead = row.split(" | ")[3:]
    assert ours.startswith("65.5 [") and not set("▲▼") & set(ours + best)
    assert best.endswith("`level`") and behind.endswith("▼") and "▲ `ahead`" in ahead


def test_fewer_sites_than_a_claim_needs_mark_nothing() -> None:
    few = sites(ours=(0.9,) * 8, theirs=(0.1,) * 8)
    text = page([few], "ours", [effects(few, "ours", ["theirs"])], columns=[["theirs"]])
    assert "| rows | 8 | accuracy | 10.0 [10.0, 10.0] |" in text


def test_the_others_choose_for_each_site() -> None:
    whole = sites(ours=(0.9, 0.6, 0.5), theirs=(0.2, 0.7, 0.6))
    choice = by_others(whole, ["ours", "theirs"])
    assert choice is not None
    # Without s0 theirs is ahead by 0.1 at both; without s1 or s2 ours is, by its 0.7 at s0.
    assert choice.choices == {"s0": "theirs", "s1": "ours", "s2": "ours"}
    assert choice.best == 0 and choice.regret == pytest.approx((0.7 + 0.1 + 0.1) / 3)
    assert choice.over["ours"][0] == pytest.approx(-0.7 / 3)
    assert choice.over["theirs"][0] == pytest.approx(-0.2 / 3)
    assert "at 0 of 3 sites, 30.0 behind" in page(
        [whole], "ours", [()], candidates=["ours", "theirs"]
    )


def test_sites_left_out_together_do_not_choose_for_each_other() -> None:
    whole = sites(ours=(0.9, 0.6, 0.5), theirs=(0.2, 0.7, 0.6))
    together = replace(whole, groups=frozenset({frozenset({"s0", "s1"}), frozenset({"s2"})}))
    choice = by_others(together, ["ours", "theirs"])
    assert choice is not None and choice.choices == {"s0": "theirs", "s1": "theirs", "s2": "ours"}
    assert choice.best == 1
    assert by_others(whole, ["ours"]) is None


def test_rows_of_other_budgets_are_named_in_the_first_line() -> None:
    budgets = {"tuned": "12 trials", "untuned": "no search"}
    text = page([replace(two(), budgets=budgets)], "ours", [()])
    assert text.startswith("Rows differ in search, rounds or recipe: *tuned*: 12 trials; *untuned*")
    more = page([replace(two(), budgets={**budgets, "other": "12 trials"})], "ours", [()])
    assert "recipe: *tuned*, *other*: 12 trials; *untuned*: no search." in more.splitlines()[0]
    alike = page([replace(two(), budgets=dict.fromkeys(budgets, "no search"))], "ours", [()])
    assert "Rows differ" not in alike


@pytest.mark.parametrize(("seeds", "said"), [((1, 3), True), ((3, 3), False)])
def test_rows_of_other_numbers_of_seeds_are_named_too(seeds: tuple[int, int], said: bool) -> None:
    parts = [
        replace(sites(**{name: (0.9, 0.1)}), seeds=count, budgets={name: "no search"})
        for name, count in zip(("ours", "theirs"), seeds, strict=True)
    ]
    first = page([joined(parts)], "ours", [()]).splitlines()[0]
    assert ("*ours*: no search; 1 seed; *theirs*: no search; 3 seeds." in first) == said
    assert first.startswith("Rows differ") == said


def test_comparisons_that_did_not_run_count_in_the_correction() -> None:
    # Ten sites of one sign: Wilcoxon's exact p is 2 / 2^10. As one of three that were declared, and
    # the smallest of them, Holm multiplies it by three.
    figures = {"ours": {str(i): 0.8 + i / 1000 for i in range(10)}}
    figures["theirs"] = {str(i): 0.7 for i in range(10)}
    sites = replace(two(), figures=figures)
    (one,) = effects(sites, "ours", ["theirs", "absent", "missing"])
    assert one.p == pytest.approx(2 / 2**10)
    assert one.corrected == pytest.approx(3 * 2 / 2**10)
    text = page([sites], "ours", [(one,)])
    assert "corrected for the 3 comparisons that were declared, of which 2 did not run" in text


@pytest.mark.parametrize(("metric", "share"), [("accuracy", 0.1), ("loss", 0.9)])
def test_the_tail_is_a_tenth_from_the_worse_end(metric: str, share: float) -> None:
    values = (0.7, 0.2, 0.9, 0.4, 0.55)
    row = replace(sites(ours=values), metric=metric).row("ours")
    assert row.tail == pytest.approx(np.quantile(values, share))


def test_the_others_choose_the_lower_loss() -> None:
    """The accuracies of `test_the_others_choose_for_each_site`, each taken from 1."""
    losses = replace(sites(ours=(0.1, 0.4, 0.5), theirs=(0.8, 0.3, 0.4)), metric="loss")
    choice = by_others(losses, ["ours", "theirs"])
    assert choice is not None
    assert choice.choices == {"s0": "theirs", "s1": "ours", "s2": "ours"}
    assert choice.best == 0 and choice.regret == pytest.approx((0.7 + 0.1 + 0.1) / 3)
    assert choice.over["ours"][0] == pytest.approx(-0.7 / 3)


def test_over_data_sets_the_lowest_loss_has_the_first_rank() -> None:
    losses = [replace(two(name), metric="loss") for name in "abcdef"]
    over = across(losses, "ours", ["theirs", "others"])
    assert over.ranks == {"ours": 3.0, "theirs": 1.0, "others": 2.0}


def test_the_fewest_seeds_of_any_figure_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 1, "seeds": 2, "holdout": {"groups": 2}}
    study(path, methods=["glm"], **settings).run(tmp_path / "out")
    shutil.rmtree(Job("glm", "a", 1).folder(tmp_path / "out"))
    (whole,) = figures(runs(tmp_path / "out"))
    assert whole.seeds == 1 and set(whole.figures["glm"]) == set("abcd")
    parts = replace(sites(one=(0.5,)), seeds=2), sites(two=(0.5,))
    assert joined(parts).seeds == joined(parts[::-1]).seeds == 2


def test_seeds_that_one_method_alone_has_at_a_site_enter_no_comparison(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 1, "seeds": 2, "holdout": {"groups": 2}}
    out = tmp_path / "out"
    study(path, methods=["fedavg", "glm"], **settings).run(out)
    (before,) = figures(runs(out))
    study(path, methods=["glm"], targets=["a"], **{**settings, "seeds": 3}).run(out)
    (after,) = figures(runs(out))
    assert effects(after, "glm", ["fedavg"]) == effects(before, "glm", ["fedavg"])
    assert after.seeds == 2 and after.figures["fedavg"] == before.figures["fedavg"]
    note = (
        "seed 2 of `glm` alone at a, c; a comparison takes the seeds that both methods have, if any"
    )
    assert after.lines == (*before.lines, note)


def test_seeds_are_paired_across_studies_of_one_data_set() -> None:
    """Ours at seed 0 is 0.75, theirs at seeds 0 and 1 are 0.5 and 0.7: the pair is 0.25 apart."""
    ours = replace(sites(ours=(0.75,)), by_seed={"ours": {"s0": {0: 0.75}}}, seeds=1)
    theirs = replace(sites(theirs=(0.6,)), by_seed={"theirs": {"s0": {0: 0.5, 1: 0.7}}}, seeds=2)
    both = joined([ours, theirs])
    assert effects(both, "ours", ["theirs"])[0].mean == 0.25
    assert both.lines[-1].startswith("seed 1 of `theirs` alone at s0; a comparison takes the seeds")


def test_one_data_set_may_be_written_in_several_ways(tmp_path: Path) -> None:
    """A blank, or another name of the file: the rows are the same, and enter once."""
    path, copy = (write(tmp_path / name, rows("abcd")) for name in ("rows.csv", "copy.csv"))
    settings = {"rounds": 1, "seeds": 1, "holdout": {"groups": 2}}
    study(path, methods=["fedavg"], **settings).run(tmp_path / "one")
    study(copy, methods=["glm"], **settings).run(tmp_path / "other")
    (whole,) = figures(runs(tmp_path / "one", tmp_path / "other"))
    assert list(whole.figures) == ["fedavg", "glm"]
    assert whole.figures["fedavg"].keys() == whole.figures["glm"].keys()


def test_jobs_that_diverged_are_said_to_have_no_figure(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 1, "seeds": 2, "holdout": {"groups": 2}}
    out = tmp_path / "out"
    study(path, methods=["fedavg", "glm"], **settings).run(out)
    folder = next((out / "records").glob("fedavg/*/seed-1"))
    mark = json.loads((folder / "done.json").read_text())
    (folder / "done.json").write_text(json.dumps(mark | {"diverged": "nan in round 0"}))
    (whole,) = figures(runs(out))
    assert any("diverged, and without a figure, which favours them: 1 job of `fedavg`" in line
               for line in whole.lines)  # fmt: skip


def test_no_permuted_p_is_below_that_of_its_draws() -> None:
    """Of 99,999 draws of 40 signs none is of one sign: (0 + 1) / (99,999 + 1)."""
    assert permuted([1.0] * 40) == 1e-5


def test_differences_without_a_spread_are_within_the_margin_or_not() -> None:
    assert equivalence([0.001] * 3) == equivalence([0.0, 0.0]) == 0.0
    assert equivalence([0.006] * 3) == equivalence([-0.006] * 3) == 1.0


def test_nine_sites_are_enough_for_a_mark() -> None:
    nine = sites(ours=(0.9,) * 9, theirs=(0.1,) * 9)
    text = page([nine], "ours", [effects(nine, "ours", ["theirs"])], columns=[["theirs"]])
    assert "| rows | 9 | accuracy | 10.0 [10.0, 10.0] ▼ |" in text


def test_the_best_of_a_column_has_the_lowest_loss() -> None:
    losses = replace(sites(a=(0.2, 0.3), b=(0.6, 0.7)), metric="loss")
    text = page([losses], "a", [()], columns=[["a", "b"]])
    (row,) = [line for line in text.splitlines() if line.startswith("| rows | 2 | loss")]
    assert row.endswith("`a` |")


def test_two_data_sets_are_enough_for_friedmans_test() -> None:
    over = across([two("a"), two("b")], "ours", ["theirs", "others"])
    assert over.friedman == pytest.approx(stats.friedmanchisquare([3] * 2, [1] * 2, [2] * 2).pvalue)
    assert across([two("a")], "ours", ["theirs", "others"]).friedman is None


def test_over_data_sets_only_figures_of_one_unit_are_ranked_together() -> None:
    """Six sets of accuracies and one in dollars: its unit moves no p."""

    def several(dollars: float) -> list[Sites]:
        gains = (0.01, 0.02, 0.03, -0.005, 0.04, 0.015)
        sets = [
            Sites(f"set {i}", "accuracy", {"a": {"x": 0.5 + g}, "b": {"x": 0.5}}, 1)
            for i, g in enumerate(gains)
        ]
        figures = {"a": {"x": 2 * dollars}, "b": {"x": dollars}}
        return [*sets, Sites("house prices", "rmse", figures, 1)]

    results = [across(several(dollars), "a", ["b"], 1) for dollars in (10.0, 0.001)]
    assert results[0].corrected == results[1].corrected
    assert [(found.sets, found.tested) for found in results] == [(7, 6), (7, 6)]


def test_a_site_of_several_tasks_has_their_mean(tmp_path: Path) -> None:
    """Each site's own model is tried at all others: three figures at each of four sites."""
    path = write(tmp_path / "rows.csv", rows("abcd"))
    results = study(path, methods=["fedavg"], seeds=2, holdout={"alone": True}).run(tmp_path / "o")
    of: dict[str, list[list[float]]] = {site: [[], []] for site in "abcd"}
    for job, _, target in results.jobs():
        for record in target:
            if record["round"] == max(r["round"] for r in target):
                of[record["domain"]][job.seed].append(record["accuracy"])
    (whole,) = figures(runs(tmp_path / "o"), selection="last")
    expected = {site: np.mean([np.mean(own) for own in seeds]) for site, seeds in of.items()}
    assert whole.figures["fedavg"] == pytest.approx(expected)
    assert {len(own) for seeds in of.values() for own in seeds} == {3} and whole.seeds == 2
    growing = {"growing": ["a", "b", "c"], "target": ["d"], "first": 2}
    study(path, methods=["fedavg"], holdout=growing).run(tmp_path / "growing")
    with pytest.raises(UnseenError, match="are not repetitions"):
        figures(runs(tmp_path / "growing"))


def test_other_rows_under_the_same_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    study(path, methods=["fedavg"]).run(tmp_path / "one")
    write(path, rows("abcd", 20))
    study(path, methods=["glm"]).run(tmp_path / "two")
    with pytest.raises(UnseenError, match="name the same data set, .* run on other rows of it"):
        figures(runs(tmp_path / "one", tmp_path / "two"))


def test_figures_that_are_best_at_1_are_not_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    study(path, methods=["fedavg"], metrics=["loss", "calibration-slope"]).run(tmp_path / "one")
    with pytest.raises(UnseenError, match="calibration-slope is best at 1"):
        figures(runs(tmp_path / "one"), "calibration-slope")


def test_studies_that_leave_out_other_groups_are_not_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    study(path, methods=["fedavg"], holdout={"groups": 2}).run(tmp_path / "one")
    study(path, methods=["glm"]).run(tmp_path / "two")
    with pytest.raises(UnseenError, match="leave sites out by other plans"):
        figures(runs(tmp_path / "one", tmp_path / "two"))
    # A study that has not finished has some of the groups.
    study(path, methods=["glm"], targets=["a"], holdout={"groups": 2}).run(tmp_path / "part")
    (whole,) = figures(runs(tmp_path / "one", tmp_path / "part"))
    assert set(whole.figures["glm"]) == {"a", "c"}


def test_a_mistyped_method_is_refused_and_a_declared_one_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", rows("abcd"))
    settings = {"rounds": 1, "holdout": {"groups": 2}}
    study(path, methods=["fedavg", "glm"], **settings).run(tmp_path / "one")
    run = CliRunner().invoke
    one = ["compare", str(tmp_path / "one"), "--method", "glm"]
    assert "did you mean 'fedavg'" in str(run(app, [*one, "--against", "fedavgg"]).exception)
    refused = run(app, [*one, "--against", "fedprox"]).exception
    assert "none of the methods to compare glm with has run: fedprox" in str(refused)
    itself = run(app, [*one, "--against", "glm,fedavg"]).exception
    assert "glm would be compared with itself" in str(itself)
    assert "of which 1 did not run here" in run(app, [*one, "--against", "fedavg,fedprox"]).output
    assert "unknown method (--method) 'portfolio'" in str(run(app, one[:2]).exception)


def test_sets_without_the_method_are_not_counted(tmp_path: Path) -> None:
    for name, methods, sites_of in (
        ("one", ["fedavg", "glm"], "abcd"), ("two", ["fedavg", "ppdg"], "abce"),
    ):  # fmt: skip
        path = write(tmp_path / f"{name}.csv", rows(sites_of))
        out = tmp_path / name
        study(path, methods=methods, rounds=1, holdout={"groups": 2}).run(out)
    folders = [str(tmp_path / name) for name in ("one", "two")]
    ran = CliRunner().invoke(app, ["compare", *folders, "--method", "glm"])
    assert ran.exit_code == 0 and "data sets, each one figure" not in ran.output
