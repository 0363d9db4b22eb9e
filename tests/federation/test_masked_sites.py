"""Masked sums over sites that leave: who is left opens them, and nobody sends a row twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("Crypto", reason="needs the extra he")

from support.hall import Answer, Hall, kits
from test_hall import _quick, written

from unseen.federation.flower import server_run as federated
from unseen.federation.kits.provision import write_sum_keys
from unseen.privacy.wire import unpack

__all__ = ["_quick"]


@pytest.mark.parametrize("kind", ["share", "mask", "confirm", "unmask"])
def test_a_site_that_leaves_a_masked_sum_costs_the_others_nothing(
    tmp_path: Path, kind: str
) -> None:
    """Four sites, of which three can open a sum; the second leaves before it answers."""
    sites = dict.fromkeys(("0", "15", "30", "45"), "train")
    file = written(tmp_path, "fedavg", 1)
    lines = (tmp_path / "visits.csv").read_text()
    (tmp_path / "visits.csv").write_text(lines.replace("\n75,", "\n45,"))
    plan = '[holdout]\nsource = ["0", "15", "30"]\ntarget = ["75"]\n'
    text = 'holdout = "none"\n' + file.read_text().replace(plan, "")
    file.write_text(text + '[privacy]\nchannel = "masks()"\n')
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
