"""Numbers at a local port."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("prometheus_client", reason="needs the extra monitor")

from support.deployment import free_port
from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written

from unseen.errors import UnseenError
from unseen.federation import monitor
from unseen.federation.flower import server_run
from unseen.federation.kits.kit import Kit

__all__ = ["_quick"]


def kit_of(folder: Path, kind: str = "site") -> Any:
    values = {
        "folder": folder, "kind": kind, "federation": "f", "servers": ("localhost",), "port": 1,
        "name": folder.name, "role": "train", "listen": "127.0.0.1",
    }  # fmt: skip
    return Kit(**values)


def page(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if not line.startswith("#")]


def test_the_numbers_are_those_of_the_ledgers(tmp_path: Path) -> None:
    places = kits(tmp_path, SITES, tmp_path)
    out = tmp_path / "out"
    server_run.run(str(written(tmp_path, "fedavg", 2)), str(out), Hall(places), list(SITES))
    port = free_port()
    with monitor.exposed(port, partial(monitor.of_site, kit_of(tmp_path / "kits" / "15"))):
        lines = page(port)
    assert 'unseen_site_answers_total{kind="hello"} 1.0' in lines
    assert 'unseen_site_answers_total{kind="exchange"} 4.0' in lines
    assert 'unseen_site_rounds{study="study"} 2.0' in lines
    assert "unseen_site_waiting 0.0" in lines
    with pytest.raises(OSError):
        page(port)
    server = kit_of(tmp_path / "server", "server")
    numbers = partial(monitor.of_run, server)
    assert numbers() == {}
    monitor.point_to(server, out)
    sent = [json.loads(x) for p in out.rglob("messages.jsonl") for x in p.read_text().splitlines()]
    up = sum(line.get("up", 0) for line in sent if line["site"] == "30")
    found = numbers()
    assert found["unseen_run_bytes", ("30", "up")] == up
    assert found["unseen_run_round", ()] == 2 and found["unseen_run_finished", ()] == 1
    first, second = (monitor.exposed(port, numbers) for _ in range(2))
    with first, pytest.raises(UnseenError, match="cannot be had"), second:
        pass


def test_a_refusal_is_counted_by_its_rule(tmp_path: Path) -> None:
    places = kits(tmp_path, SITES, tmp_path, OPEN + "[most]\nrounds = 1\n")
    with pytest.raises(UnseenError):
        study = str(written(tmp_path, "fedavg", 2))
        server_run.run(study, str(tmp_path / "out"), Hall(places), list(SITES))
    found = monitor.of_site(kit_of(tmp_path / "kits" / "0"))
    assert found["unseen_site_refusals", ("most.rounds",)] == 1
