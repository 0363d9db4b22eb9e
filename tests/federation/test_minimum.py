"""A round's evaluation needs the minimum of sites as its training does; a target's does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Answer, Hall, kits
from test_hall import SITES, same, written

from unseen import Study
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_messages
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.policy.approvals import Approvals


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)


def test_no_job_ends_without_its_evaluation(tmp_path: Path) -> None:
    file = written(tmp_path, "fedavg", rounds=1)
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    failing: set[str] = {"validate"}

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        turn = json.loads(question["head"]).get("position", {})
        if turn.get("exchange") in failing:
            return [{**answer, "refused": "not today"}]
        return [answer]

    hall = Hall(kits(tmp_path, SITES, tmp_path), tamper)
    with pytest.raises(Waiting, match="no site could evaluate in validate; 0: not today"):
        federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    failing.clear()
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    same(tmp_path / "one", tmp_path / "out")


def test_a_target_that_fails_ends_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "fedavg", rounds=1)

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        return (
            [{**answer, "refused": "not today"}]
            if name == "75" and "position" in json.loads(question["head"])
            else [answer]
        )

    hall = Hall(kits(tmp_path, SITES, tmp_path), tamper)
    federated.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    folder = tmp_path / "out" / "records" / "fedavg" / "target" / "seed-0"
    assert len((folder / "source.jsonl").read_text().splitlines()) == 3
    assert (folder / "target.jsonl").read_text() == ""


WAIT = OPEN.replace('approval = "auto"', 'approval = "wait"')


def offline(hall: Hall, third: Path) -> str:
    hall.away.add(3)
    return "missing: 30; 30: not connected"


def not_approved(hall: Hall, third: Path) -> str:
    (third / "site.toml").write_text(WAIT)
    return "missing: 30; 30: refused by its rule approval: .* waits for the approval"


def refusing(hall: Hall, third: Path) -> str:
    (third / "site.toml").write_text(OPEN + "[most]\nrounds = 1\n")
    return "missing: 30; 30: refused by its rule most.rounds: it has 2 rounds"


@pytest.mark.parametrize("lacks", [offline, not_approved, refusing])
def test_a_run_begins_with_every_source_of_its_plan(
    tmp_path: Path, lacks: Callable[[Hall, Path], str]
) -> None:
    """Without one it stops, says why, and binds nobody: the same command goes on later."""
    file, out = written(tmp_path, "fedavg", rounds=2), tmp_path / "out"
    Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    numbers = kits(tmp_path, SITES, tmp_path)
    hall = Hall(numbers, keyed={number: kit.name for number, kit in numbers.items()})
    why = lacks(hall, numbers[3])
    with pytest.raises(Waiting, match=why) as caught:
        federated.run(str(file), str(out), hall)
    assert "at least 2 are needed, and the plan needs 0, 15, 30;" in str(caught.value)
    assert not (out / "terms.json").exists() and not (out / "study.json").exists()
    if lacks is not_approved:
        approvals = Approvals(Site.read(numbers[3]).account)
        approvals.approve(*approvals.every())
    else:
        (numbers[3] / "site.toml").write_text(OPEN)
    federated.run(str(file), str(out), Hall(numbers), list(SITES))
    same(tmp_path / "one", out)
