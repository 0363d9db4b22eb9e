"""Masked sums over sites that leave: who is left opens them, and nobody sends a row twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("Crypto", reason="needs the extra he")

from support.hall import Answer, Hall, kits
from test_hall import _quick, written

from unseen.privacy.wire import pack, unpack
from unseen.sites.flower import server_run as federated
from unseen.sites.kits.provision import write_sum_keys

__all__ = ["_quick"]


def planned(folder: Path) -> tuple[Path, dict[str, str]]:
    """A study of four sites behind masks, of which three open a sum."""
    sites = dict.fromkeys(("0", "15", "30", "45"), "train")
    file = written(folder, "fedavg", 1)
    lines = (folder / "visits.csv").read_text()
    (folder / "visits.csv").write_text(lines.replace("\n75,", "\n45,"))
    plan = '[holdout]\nsource = ["0", "15", "30"]\ntarget = ["75"]\n'
    text = 'holdout = "none"\n' + file.read_text().replace(plan, "")
    file.write_text(text + '[privacy]\nchannel = "masks()"\n')
    return file, sites


#: What a site sends in place of an answer about its rows.
GARBAGE: Mapping[str, Any] = {
    "two bytes": b"xy",
    "a text": "no",
    "a refusal": pack({"kind": "refused", "why": "no"}),
    "nothing": None,
    "a number": 7.0,
}


@pytest.mark.parametrize("lie", GARBAGE)
@pytest.mark.parametrize("kind", ["share", "mask", "confirm", "unmask"])
def test_a_site_that_answers_garbage_is_left_out_and_the_run_ends_well(
    tmp_path: Path, kind: str, lie: str
) -> None:
    file, sites = planned(tmp_path)

    def tamper(site: str, question: Answer, answer: Answer) -> list[Answer]:
        q = question.get("question")
        if site != "15" or not isinstance(q, bytes) or unpack(q, "one")[0]["kind"] != kind:
            return [answer]
        rest = {name: value for name, value in answer.items() if name != "answer"}
        return [rest if GARBAGE[lie] is None else {**rest, "answer": GARBAGE[lie]}]

    places = kits(tmp_path, sites, tmp_path)
    write_sum_keys(tmp_path / "kits", list(sites), ["masks"])
    out = tmp_path / "out"
    federated.run(str(file), str(out), Hall(places, tamper), list(sites))
    assert json.loads((out / "federation.json").read_text())["finished"]
    (line,) = [json.loads(x) for x in next(out.rglob("rounds.jsonl")).read_text().splitlines()]
    assert list(line["dropped"]) == (["15"] if kind in ("share", "mask") else [])


@pytest.mark.parametrize("kind", ["share", "mask", "confirm", "unmask"])
def test_a_site_that_leaves_a_masked_sum_costs_the_others_nothing(
    tmp_path: Path, kind: str
) -> None:
    """Four sites, of which three can open a sum; the second leaves before it answers."""
    file, sites = planned(tmp_path)
    asked: list[str] = []

    def leaves(site: str, question: Answer, answer: Answer) -> list[Answer]:
        if isinstance(q := question.get("question"), bytes):
            asked.append(unpack(q, "a question")[0]["kind"])
            if asked[-1] == kind:
                hall.away.add(2)
            if 2 in hall.away and site == "15":
                return []
        return [answer]

    places = kits(tmp_path, sites, tmp_path)
    write_sum_keys(tmp_path / "kits", list(sites), ["masks"])
    hall = Hall(places, leaves)
    out = tmp_path / "out"
    federated.run(str(file), str(out), hall, list(sites))
    (line,) = [json.loads(x) for x in next(out.rglob("rounds.jsonl")).read_text().splitlines()]
    gone = kind in ("share", "mask")
    assert list(line["dropped"]) == (["15"] if gone else [])
    assert asked.count("mask") <= 4
