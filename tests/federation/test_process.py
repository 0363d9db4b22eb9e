"""What keeps a federation's processes going for months."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kits import provisioned

from unseen.errors import UnseenError
from unseen.sites import flower_workarounds, process, serve
from unseen.sites.kits.kit import Kit
from unseen.sites.probe import Answer


def test_a_log_that_grew_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT", 1000)
    text = "import time\nfor i in range(60):\n    print('x' * 99, flush=True)\n    time.sleep(0.02)"
    child = process.Child([sys.executable, "-c", text], process.environment(tmp_path / "home"),
                          tmp_path / "logs" / "a.log")  # fmt: skip
    child.wait(interval=0.05)
    assert child.code == 0
    child.trim()
    assert child.log.stat().st_size <= 1000
    assert (tmp_path / "logs" / "a.log.1").stat().st_size > 1000
    child.log.unlink()
    child.trim()  # a log that somebody took away ends nothing


def test_a_message_has_longer_to_start() -> None:
    begun = datetime.now(UTC)
    record = SimpleNamespace(active_until=begun)
    state: Any = SimpleNamespace(task_token_store={7: record})
    claim = flower_workarounds.patient(lambda state, task: "token" if task == 7 else None)
    assert claim(state, 7) == "token" and claim(state, 8) is None
    assert record.active_until == begun + timedelta(seconds=flower_workarounds.LONGER)


def test_requests_wait_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql_mixin = pytest.importorskip("flwr.supercore.sql_mixin", reason="needs the extra flower")
    from sqlalchemy import create_engine, event

    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    flower_workarounds.wait_for_database()
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    event.listen(engine, "connect", sql_mixin._set_sqlite_pragmas)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == flower_workarounds.BUSY


def test_flower_has_the_place_for_it() -> None:
    pytest.importorskip("flwr", reason="needs the extra flower")
    from flwr.supercore.corestate.in_memory_corestate import TokenRecord
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    assert callable(InMemoryNodeState.claim_task)
    record = TokenRecord("token", datetime.fromtimestamp(time.time(), UTC))
    record.active_until += timedelta(seconds=1)


def test_why_a_process_ended_has_no_colours(tmp_path: Path) -> None:
    text = r"print('\x1b[93mWARNING \x1b[0m:   Connection attempt failed')"
    home = process.environment(tmp_path / "home")
    child = process.Child([sys.executable, "-c", text], home, tmp_path / "logs" / "a.log")
    child.wait(interval=0.05)
    assert "(status 0). WARNING :   Connection attempt failed Log: " in str(child.ended("it ended"))


def test_a_site_that_was_shut_out_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit.read(provisioned(tmp_path / "kits") / "north")
    own, asked = serve.key_of(kit), Answer(content={"registered": False})
    monkeypatch.setattr(serve, "ask", lambda kit: asked)
    with pytest.raises(UnseenError, match="shut this site out. unregistered key: .* of north"):
        serve.check_let_in(kit, own)
    with pytest.raises(UnseenError, match="shut out the key .*; the kit has another"):
        serve.check_let_in(kit, b"before")
    for other in (Answer(content={"registered": True}), Answer("unreachable", "nobody there")):
        monkeypatch.setattr(serve, "ask", lambda kit, other=other: other)
        serve.check_let_in(kit, own)  # it ended for another reason
