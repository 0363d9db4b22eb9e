"""A site left out has no part in what is judged at it: its rows are poisoned, and no bit moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.made_trials import trials
from support.small_studies import rows, study, write

from unseen import UnseenError
from unseen.choice import Candidates, choose, play
from unseen.choice.answer import nested, verdict
from unseen.results.records import Job
from unseen.results.study_results import Results
from unseen.study import Study

MEMBERS = "['fedavg', 'fedavg+shift(alpha=1)', 'glm(steps=3)', 'boost(trees=2, depth=2, bins=8)']"
METHODS = (
    f"stack(members={MEMBERS}, groups=2)",
    f"portfolio(members={MEMBERS}, ensemble=2, groups=2)",
)


def poisoned(site: str, sites: str = "abcd") -> list[list[str]]:
    """The rows with other numbers, categories and labels at one site."""
    changed = []
    for name, u, v, kind, region, y in rows(sites):
        if name == site:
            u, v = "40", f"{-7 * float(v):.3f}"
            kind, y = "q" if kind == "p" else "p", str(1 - int(y))
        changed.append([name, u, v, kind, region, y])
    return changed


def left(out: Path, job: Job) -> tuple[bytes, bytes, dict[str, torch.Tensor]]:
    """What a job leaves: the records of its sources and of its rounds, and its model."""
    folder = job.folder(out)
    (model,) = folder.rglob("*.safetensors")
    records = (folder / name for name in ("source.jsonl", "rounds.jsonl"))
    source, rounds = (path.read_bytes() for path in records)
    return source, rounds, load_file(model)


@pytest.mark.parametrize("method", METHODS)
def test_a_target_has_no_part_in_its_weights_records_or_model(method: str, tmp_path: Path) -> None:
    found = {}
    for name, body in (("clean", rows()), ("poisoned", poisoned("a"))):
        path = write(tmp_path / f"{name}.csv", body)
        settings: dict[str, Any] = {"methods": [method], "targets": ["a", "b"], "save": ["final"]}
        results = study(path, **settings).run(tmp_path / name)
        found[name] = [left(tmp_path / name, job.job) for job in results.folders()]
        found[name].append([job.target for job in results.folders()])
    (clean, as_source, before), (dirty, as_poison, after) = found["clean"], found["poisoned"]
    assert clean[:2] == dirty[:2]
    assert clean[2].keys() == dirty[2].keys()
    assert all(torch.equal(tensor, dirty[2][name]) for name, tensor in clean[2].items())
    # The poison is there: the target's own figures differ, and so does a model that trains on it.
    assert before[0] != after[0]
    assert any(not torch.equal(v, as_poison[2][n]) for n, v in as_source[2].items())


def test_the_recipe_for_a_group_does_not_depend_on_its_own_figures() -> None:
    draw = np.random.default_rng(0)
    names = ("fedavg", "glm", "boost")
    chosen = set()
    for _ in range(20):
        site = draw.normal(0.8, 0.05, 6)
        made = {n: site + draw.normal(0, 0.03, 6) for n in names}
        whole = trials(made, dict(zip(names, (3.0, 2.0, 1.0), strict=True)), per_group=2)
        for group in whole.groups.values():
            recommended = set()
            for order in permutations(range(3)):  # what says which recipe it was, for good or bad
                marks = dict(zip(names, order, strict=True))
                by_recipe = {
                    n: replace(t, figures={**t.figures, **dict.fromkeys(group, float(marks[n]))})
                    for n, t in whole.by_recipe.items()
                }
                figures, _ = nested(replace(whole, by_recipe=by_recipe))
                at = {figures[site] for site in group}
                recommended |= {names[order.index(int(mark))] for mark in at}
            assert len(recommended) == 1
            chosen |= recommended
    assert chosen == set(names)


@pytest.mark.slow
def test_rows_of_a_group_choose_neither_its_rate_nor_its_recipe(tmp_path: Path) -> None:
    searches = []
    for name, body in (("clean", rows("abcde")), ("poisoned", poisoned("b", "abcde"))):
        settings = study(write(tmp_path / f"{name}.csv", body), rounds=3)
        candidates = Candidates(
            settings, ["glm(steps=3)", "boost(trees=2, depth=2, bins=8)"], groups=5,
            rates=(0.2, 1.0, 20.0), pool=False, alone=False, nested=True,
        )  # fmt: skip
        searches.append(play(candidates, tmp_path / name))
    clean, dirty = (
        {
            group: {n: replace(t, seconds=0.0) for n, t in inner.by_recipe.items()}
            for group, inner in search.inner.items()
        }
        for search in searches
    )
    assert clean["b"] == dirty["b"]  # the trials by which the others judge for it, rates included
    assert all(clean[group] != dirty[group] for group in "acde")
    answers = []
    for search in searches:
        judges = search.inner["b"]
        recipe = verdict(judges, list("acde")).recipe
        rate = judges.by_recipe[recipe].best
        assert nested(search)[0]["b"] == search.by_recipe[recipe].at_rate[rate]["b"]
        assert choose(search).nested
        answers.append((recipe, rate))
    assert answers[0] == answers[1]


def test_without_two_groups_is_the_study_without_them(tmp_path: Path) -> None:
    settings = study(write(tmp_path / "sites.csv", rows()), rounds=3)
    candidates = Candidates(
        settings, [], groups=4, rates=(1.0,), pool=False, alone=False, nested=True
    )
    search = play(candidates, tmp_path / "search")
    plan = {"source": ["b", "d"], "target": ["a", "c"]}
    alone = study(tmp_path / "sites.csv", rounds=3, holdout=plan, selection="last")
    (job,) = alone.run(tmp_path / "alone").folders()
    figures = {line["domain"]: line["accuracy"] for line in job.target if line["round"] == 2}
    assert search.inner["a"].by_recipe["fedavg"].figures["c"] == figures["c"]
    assert search.inner["c"].by_recipe["fedavg"].figures["a"] == figures["a"]


@pytest.mark.parametrize(("sites", "groups"), [("abcd", 2), ("abc", 3), ("abc", 5)])
def test_too_few_sites_for_a_nested_search_are_refused_before_anything_is_played(
    sites: str, groups: int, tmp_path: Path
) -> None:
    settings = study(write(tmp_path / "sites.csv", rows(sites)))
    with pytest.raises(UnseenError, match="leaves two groups out at a time"):
        play(Candidates(settings, [], groups, rates=(1.0,), nested=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_real_sites_play_nothing_either_where_two_groups_are_all(tmp_path: Path) -> None:
    def run(one: Study, out: Path) -> Results:
        raise AssertionError(f"played {out}")

    settings = study(write(tmp_path / "sites.csv", rows()))
    with pytest.raises(UnseenError, match="groups = 2 leaves none to train on"):
        play(Candidates(settings, [], 2, nested=True), tmp_path / "out", run=run)
