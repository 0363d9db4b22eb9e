"""Columns whose spread drowns in their offset, over real sites: the sums that came say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import Hall, kits

from unseen.sites.flower import server_run, site_messages

SITES = ("north", "south", "west")


def test_the_servers_standing_names_the_column_and_no_site_is_asked_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)
    rows = [f"{site},{1.7e9 + 37.5 * i},{i % 7}.5,{i % 2}" for site in SITES for i in range(20)]
    (tmp_path / "visits.csv").write_text("\n".join(["site,opened,u,died", *rows]) + "\n")
    study = tmp_path / "study.toml"
    study.write_text(
        "dataset = \"table(path='visits.csv', domain='site', label='died')\"\n"
        'methods = ["glm", "fedavg"]\nrounds = 1\nseeds = 1\ntargets = ["west"]\n'
        'model = "mlp(widths=[4])"\non_bad_reply = "drop"\n'
    )
    hall, out = Hall(kits(tmp_path, dict.fromkeys(SITES, "train"), tmp_path)), tmp_path / "out"
    server_run.run(str(study), str(out), hall, list(SITES))
    (remark,) = json.loads((out / "federation.json").read_text())["remarks"]
    assert remark.startswith("'opened' counts as constant (task 'west')")
    assert sum("'opened' counts" in record.getMessage() for record in caplog.records) == 1
    assert {question["kind"] for _, question in hall.sent} == {"hello", "statistics", "exchange"}
    assert not any("counts as constant" in str(question) for _, question in hall.sent)
