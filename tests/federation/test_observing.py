"""An observer sees from elsewhere how a run stands; nobody else does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")

from unseen.errors import UnseenError
from unseen.federation import monitor, observing
from unseen.federation.kits import provision
from unseen.federation.kits.kit import Kit
from unseen.federation.kits.kit_spec import Federation
from unseen.federation.kits.rotation import revoke


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("kits") / "kits"
    people = {"anna": "coordinator", "olga": "observer"}
    sites = {"north": "train", "south": "train"}
    provision.provision(
        Federation(name="f", servers=("localhost",), port=9, sites=sites, people=people), out
    )
    yield out


def asked(kits: Path, name: str, **changed: object) -> bytes:
    return json.dumps({**json.loads(observing.request_of(kits / name)), **changed}).encode()


def test_an_observer_sees_standing_and_table(kits: Path, tmp_path: Path) -> None:
    server = Kit.read(kits / "server", "server")
    assert observing.view(server.folder, asked(kits, "olga")) == {"standing": {}, "tables": {}}
    (tmp_path / "federation.json").write_text('{"name": "heart", "round": 2}')
    (tmp_path / "table.txt").write_text("heart\n79.7\n")
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    monitor.point_to(server, tmp_path)
    for name in ("olga", "anna"):
        seen = observing.view(server.folder, asked(kits, name))
        assert seen["standing"] == {"name": "heart", "round": 2}
        assert seen["tables"] == {"table.txt": "heart\n79.7\n"}


def test_nobody_else_sees_anything(kits: Path) -> None:
    server = kits / "server"
    with pytest.raises(UnseenError, match="not a request of a person"):
        observing.view(server, b"{}")
    with pytest.raises(UnseenError, match="the request"):
        observing.view(server, asked(kits, "olga", time=datetime.now(UTC).isoformat()))
    late = observing.request_of(kits / "olga", datetime.now(UTC) - timedelta(hours=1))
    with pytest.raises(UnseenError, match="too old"):
        observing.view(server, late)
    document = json.loads(asked(kits, "olga"))
    document["person"]["role"] = "coordinator"
    with pytest.raises(UnseenError, match="the certificate of 'olga'"):
        observing.view(server, json.dumps(document).encode())
    revoke(kits, "olga")
    with pytest.raises(UnseenError, match="was revoked"):
        observing.view(server, asked(kits, "olga"))
