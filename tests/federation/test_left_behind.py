"""What a server and its kits leave on disk, and what passes a proxy."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from torch import nn

from unseen.core import Model, Turn
from unseen.core.record_lines import to_line
from unseen.errors import UnseenError
from unseen.sites.control import MESSAGES
from unseen.sites.flower.script import Position
from unseen.sites.flower.site_backend import Sites
from unseen.sites.kits.kit_spec import Federation, Role
from unseen.sites.kits.provision import add, provision, renew, revoke
from unseen.sites.process import environment
from unseen.sites.serve import tidied

SECRET = b"an update of a finished run" * 40


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_nothing_that_was_deleted_stays_in_the_database_or_its_log(tmp_path: Path) -> None:
    database = tmp_path / "superlink.db"
    with tidied(database):  # none yet
        link = sqlite3.connect(database, isolation_level=None)
        link.execute("PRAGMA journal_mode = WAL")
        link.execute("CREATE TABLE objects (content BLOB)")
        link.execute("INSERT INTO objects VALUES (?)", (SECRET,))
        link.execute("INSERT INTO objects VALUES ('stays')")
        link.execute("DELETE FROM objects WHERE content != 'stays'")
        held = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-killed")
        link.close()
    assert SECRET not in on_disk(tmp_path)
    with closing(sqlite3.connect(database)) as again:
        assert again.execute("SELECT content FROM objects").fetchall() == [("stays",)]
    assert SECRET in on_disk(held)  # a server that was killed left it, and its next begin takes it
    with tidied(held / "superlink.db"):
        assert SECRET not in on_disk(held)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (add, "c"),
        (renew, "a"),
        (renew, "ckks"),
        (renew, "server"),
        (revoke, "server"),
        (revoke, "b"),
        (revoke, "coordinator"),
    ],
)
def test_keys_stay_as_they_are_without_the_authority(
    change: object, name: str, tmp_path: Path
) -> None:
    kits = tmp_path / "kits"
    sites: dict[str, Role] = {"a": "train", "b": "train"}
    provision(Federation(name="f", servers=("localhost",), sites=sites, ckks=True), kits)
    shutil.move(kits / "ca", tmp_path / "safe")
    before = {path: path.read_bytes() for path in sorted(kits.rglob("*")) if path.is_file()}
    with pytest.raises(UnseenError, match="signed by the federation's authority"):
        change(kits, name)  # type: ignore[operator]
    after = {path: path.read_bytes() for path in sorted(kits.rglob("*")) if path.is_file()}
    assert after == before


def test_requests_within_a_machine_pass_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "intern.example")
    own = environment(tmp_path)
    assert own["HTTP_PROXY"] == "http://proxy:3128"
    assert own["no_proxy"] == own["NO_PROXY"] == "intern.example,127.0.0.1,localhost,::1"


def test_a_message_that_was_cut_short_hides_no_later_one(tmp_path: Path) -> None:
    """A server that goes on writes behind it, and is killed once more."""
    at = {"round": 0, "exchange": "train", "kind": "exchange", "fault": ""}
    first, second, third = (to_line({**at, "site": name}) for name in "abc")
    (tmp_path / MESSAGES).write_bytes(first + second[:20] + second + third)
    position, model = Position("fedavg", "all", 0, 0, ""), Model(nn.Module())
    sites = Sites(None, {}, position, {}, tmp_path, model)  # type: ignore[arg-type]
    assert sites.answered(Turn(0, 0, 1, "train")) == {"a", "c"}
