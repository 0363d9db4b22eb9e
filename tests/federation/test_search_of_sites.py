"""A search over real sites: the trials of one process, made at each site of what it agreed to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, contents, kits
from test_hall import SITES, _quick, same, written

from unseen import Study
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.ledger_check import against
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.sites.policy.study_review import review
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
SEARCH = """
[tune]
trials = 3
criterion = "{criterion}"
sampler = "random"
space = {{"training.optimiser" = "sgd(lr=log(0.01, 1))", "training.batch_size" = "one(8, 16)"}}
"""


def searching(folder: Path, criterion: str, methods: str = "fedprox scaffold") -> Path:
    file = written(folder, methods)
    file.write_text(file.read_text() + SEARCH.format(criterion=criterion))
    return file


@pytest.mark.parametrize(
    ("criterion", "more"),
    [("source-validation", ""), ("lodo(groups=3)", ""), ("source-validation", "rounds = 1\n")],
)
def test_a_search_over_sites_is_that_of_one_process(
    tmp_path: Path, criterion: str, more: str
) -> None:
    file = searching(tmp_path, criterion)
    file.write_text(file.read_text() + more)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    federated.run(str(file), str(tmp_path / "sites"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "sites")
    assert any(path.startswith("tuning/fedprox/") for path in contents(tmp_path / "sites"))
    ends = [
        [json.loads(path.read_text()) for path in sorted((tmp_path / place).rglob("search.json"))]
        for place in ("one", "sites")
    ]
    assert ends[0] == ends[1] and len(ends[0]) == 2
    # The sites' own ledgers know every answer, those of trials included.
    kit = Site.read(next(iter(hall.kits.values())))
    lines = SiteLedger(kit.account).lines()
    assert any("//" in line.get("job", "") for line in lines)
    assert against(lines, kit.name, tmp_path / "sites") == ([], [])


def asked(tmp_path: Path) -> tuple[Site, dict[str, Any]]:
    """A question of a trial, and the site that is asked."""
    file = searching(tmp_path, "source-validation", "fedprox")
    questions: dict[str, Any] = {}

    def keep(site: str, question: dict[str, Any], answer: dict[str, Any]) -> list[dict[str, Any]]:
        if (
            question["kind"] == "exchange"
            and json.loads(question["head"])["position"]["trial"]["values"]
        ):
            questions.setdefault("first", (site, question))
        return [answer]

    hall = Hall(kits(tmp_path, SITES, tmp_path), keep)
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    name, question = questions["first"]
    return hall.begun(name, tmp_path / "new", tmp_path), question


def test_a_site_makes_a_trial_of_what_it_agreed_to_and_of_nothing_else(tmp_path: Path) -> None:
    site, question = asked(tmp_path)

    def answer(**trial: Any) -> Mapping[str, Any]:
        head = json.loads(question["head"])
        head["position"]["trial"] |= trial
        return handle({**question, "head": json.dumps(head)}, site)

    values = json.loads(question["head"])["position"]["trial"]["values"]
    assert set(values) == {"fedprox.mu", "training.optimiser.lr", "training.batch_size"}
    outside = answer(values=values | {"training.optimiser.lr": 2.0})
    assert "lr = 2.0; searched is log(0.01, 1)" in str(outside["refused"])
    assert outside["rule"] == "study"
    assert "searched is one(8, 16)" in str(
        answer(values=values | {"training.batch_size": 1})["refused"]
    )
    other = answer(values={"training.epochs": 9})
    assert "the study searches" in str(other["refused"])
    assert "no method 'fedavg'" in str(answer(method="fedavg")["refused"])
    assert "refused" not in answer()


def test_the_rules_of_a_site_hold_for_every_trial(tmp_path: Path) -> None:
    file = searching(tmp_path, "source-validation", "fedavg")
    policy = OPEN.replace("[least]", "[least]\nbatch_size = 16")
    hall = Hall(kits(tmp_path, SITES, tmp_path, policy))
    with pytest.raises(UnseenError, match="least.batch_size: a step is of 8 examples"):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))


def test_the_review_names_what_is_searched(tmp_path: Path) -> None:
    study = StudySpec.read(searching(tmp_path, "source-validation"))
    site = Site.read(kits(tmp_path, SITES, tmp_path)[1])
    tune = study.tune.model_copy(update={"rounds": 1})
    (line,) = (
        line
        for line in review(site, Proposal(study.model_copy(update={"tune": tune})))
        if line.startswith("  search")
    )
    assert "each of 1 round where the method has none of its own" in line
    (line,) = (line for line in review(site, Proposal(study)) if line.startswith("  search"))
    assert "3 trials" in line and "training.batch_size one(8, 16)" in line
    assert "training.optimiser.lr log(0.01, 1)" in line
