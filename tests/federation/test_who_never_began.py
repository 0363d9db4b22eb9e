"""Sites that a run begins or ends without: by name, once, and no longer waited for than helps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Answer, Hall, kits
from test_hall import SITES, _quick, written

from unseen.sites import control
from unseen.sites.flower import server_run, site_messages
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_messages import Waiting
from unseen.sites.policy.approvals import Approvals

__all__ = ["_quick"]
SIGNED = OPEN.replace("signed = false", "signed = true")
WAIT = OPEN.replace('"auto"', '"wait"')
FOLDERS = 'datasets = ["folder"]\n' + OPEN
LONG = 8.0


def everyone(folder: Path, patience: float = 0, sites: str = '["0", "15", "30"]') -> Path:
    """A study without a plan of sites: `[federation] sites` names them."""
    file = written(folder, "fedavg", 2)
    text = file.read_text().replace('[holdout]\nsource = ["0", "15", "30"]\ntarget = ["75"]\n', "")
    text = text.replace("patience = 0", f"patience = {patience}\nsites = {sites}")
    file.write_text('holdout = "none"\n' + text)
    return file


def hall_of(numbers: dict[int, Path], **more: Any) -> Hall:
    return Hall(numbers, keyed={number: kit.name for number, kit in numbers.items()}, **more)


def news(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "federation.json").read_text()))


def test_a_named_site_that_refuses_is_named_and_is_no_error_of_the_run(tmp_path: Path) -> None:
    numbers, out = kits(tmp_path, SITES, tmp_path), tmp_path / "out"
    (numbers[3] / "site.toml").write_text(FOLDERS)
    seen: list[dict[str, Any]] = []

    def tamper(name: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if "position" in json.loads(question["head"]):
            seen.append(news(out))
        return [answer]

    server_run.run(str(everyone(tmp_path)), str(out), hall_of(numbers, tamper=tamper))
    why = "30: refused by its rule datasets: the data set is 'table', and allowed are folder"
    assert seen
    for told in (*seen, news(out)):
        assert told["error"] == "" and "error" not in control.progress(told)
        assert f"does not take part: {why}" in control.remarks(told)
    assert news(out)["finished"]
    table = (out / "table.txt").read_text().splitlines()
    assert f"30 never took part: {why.removeprefix('30: ')}" in table


def test_so_is_one_that_did_not_come_and_it_stays_said(tmp_path: Path) -> None:
    numbers, out = kits(tmp_path, SITES, tmp_path), tmp_path / "out"
    hall = hall_of(numbers)
    hall.away.add(3)
    file = everyone(tmp_path)
    file.write_text(file.read_text().replace("deadline = 60", "deadline = 2"))

    def fail(name: str, question: Answer, answer: Answer) -> Iterable[Answer] | str:
        turn = json.loads(question["head"]).get("position", {})
        return "killed" if turn.get("round") == 1 else [answer]

    hall.tamper = fail
    with pytest.raises(Waiting):
        server_run.run(str(file), str(out), hall)
    why = "not connected at the start"
    assert f"does not take part: 30: {why}" in control.remarks(news(out))
    # It is there when the run goes on, which was begun without it.
    server_run.run(str(file), str(out), hall_of(numbers))
    table = (out / "table.txt").read_text().splitlines()
    assert [line for line in table if "never" in line] == [f"30 never took part: {why}"]


def test_a_site_that_is_let_in_after_all_is_no_longer_said_to_lack(tmp_path: Path) -> None:
    numbers, out = kits(tmp_path, SITES, tmp_path), tmp_path / "out"
    (numbers[3] / "site.toml").write_text(FOLDERS)
    hall = hall_of(numbers)

    def repair() -> None:
        (numbers[3] / "site.toml").write_text(OPEN)
        hall.starts[3] = 1

    hall.away.add(2)  # so that not all have answered, and the run waits

    def come() -> None:
        repair()
        hall.away.clear()

    timer = Timer(1.0, come)
    timer.start()
    server_run.run(str(everyone(tmp_path, LONG)), str(out), hall)
    timer.join()
    assert not any("does not take part" in line for line in control.remarks(news(out)))
    assert "never took part" not in (out / "table.txt").read_text()


def waited(file: Path, out: Path, hall: Hall) -> tuple[float, str]:
    begin = time.monotonic()
    with pytest.raises(Waiting) as caught:
        server_run.run(str(file), str(out), hall)
    return time.monotonic() - begin, str(caught.value)


@pytest.mark.parametrize("keyed", [True, False])
def test_no_run_waits_for_sites_that_have_all_refused(tmp_path: Path, keyed: bool) -> None:
    numbers = kits(tmp_path, SITES, tmp_path, SIGNED)
    hall = hall_of(numbers) if keyed else Hall(numbers)
    seconds, why = waited(everyone(tmp_path, LONG), tmp_path / "out", hall)
    assert seconds < LONG / 2
    assert "every site has answered" in why and "rule signed" in why
    # The same where the plan names them, and one is enough that is needed and refuses.
    file = written(tmp_path, "fedavg", 1)
    file.write_text(file.read_text().replace("patience = 0", f"patience = {LONG}"))
    for number in (1, 2, 4):
        (numbers[number] / "site.toml").write_text(OPEN)
    hall = hall_of(numbers) if keyed else Hall(numbers)
    seconds, why = waited(file, tmp_path / "other", hall)
    assert seconds < LONG / 2 and "3 sites are here" in why and "rule signed" in why


def test_nobody_is_named_and_as_many_as_are_needed_have_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_messages, "QUIET", 0.2)
    numbers = kits(tmp_path, SITES, tmp_path, SIGNED)
    seconds, why = waited(everyone(tmp_path, LONG, "[]"), tmp_path / "out", hall_of(numbers))
    assert seconds < LONG / 2 and "every site has answered" in why
    alone = hall_of({1: numbers[1]})  # others may still come
    file = everyone(tmp_path, 1.5, "[]")
    seconds, why = waited(file, tmp_path / "alone", alone)
    assert seconds > 1.4 and "every site has answered" not in why


def test_a_run_waits_for_who_is_named_and_not_there(tmp_path: Path) -> None:
    """It may connect later, as may one that was refused and is started again."""
    numbers = kits(tmp_path, SITES, tmp_path, SIGNED)
    hall = hall_of(numbers)
    hall.away.add(3)
    seconds, why = waited(everyone(tmp_path, 1.5), tmp_path / "out", hall)
    assert seconds > 1.4 and "after 1.5 s" in why and "30: not connected" in why


def test_a_run_waits_for_a_person_who_may_approve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_messages, "AGAIN", 0.05)
    numbers = kits(tmp_path, SITES, tmp_path, SIGNED)
    (numbers[3] / "site.toml").write_text(WAIT)
    seconds, why = waited(everyone(tmp_path, 1.5), tmp_path / "out", hall_of(numbers))
    assert seconds > 1.4 and "waits for the approval" in why
    assert Approvals(Site.read(numbers[3]).account).every()
