"""The drawing of a round's messages, from records."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.federation.sequence import Exchange, draw, named, read

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "records" / "fedilc-inter" / "target" / "seed-0"
    folder.mkdir(parents=True)
    lines = []
    for round in range(2):
        for exchange, up in (("variance", 300), ("train", 4000), ("validate", 90)):
            for k, site in enumerate(("va", "hungary")):
                line = {"round": round, "exchange": exchange, "site": site, "kind": "exchange",
                        "down": 5000 + k, "up": up + k + 10 * round, "seconds": 1.0,
                        "fault": ""}  # fmt: skip
                lines.append(line)
    lines.append({**lines[0], "site": "late", "up": 0, "fault": "no answer"})
    lines.append({**lines[0], "kind": "statistics", "exchange": "statistics"})
    (folder / "messages.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def test_what_is_read_is_what_was_sent(job: Path) -> None:
    found = read(job, 1)
    assert [exchange.name for exchange in found] == ["variance", "train", "validate"]
    assert found[1].sites == (("hungary", 5001, 4011), ("va", 5000, 4010))
    assert [e.rows for e in named(found, "fedilc-inter")] == [
        "variance", "model, buffers, penalty", "metrics",
    ]  # fmt: skip


def test_a_round_that_was_not_played(job: Path) -> None:
    with pytest.raises(UnseenError, match="no round 7; found 0, 1"):
        read(job, 7)
    with pytest.raises(UnseenError, match="messages.jsonl is not there"):
        read(job.parent, 0)


def test_an_arrow_for_each_message_with_its_bytes(job: Path) -> None:
    drawn = ElementTree.fromstring(draw(read(job, 0), "a <title> & more"))
    texts = [element.text or "" for element in drawn.iter(f"{SPACE}text")]
    assert "a <title> & more" in texts and "server" in texts
    assert sorted(t for t in texts if t.endswith(" B")) == sorted(
        ["5,000 B", "5,001 B"] * 3 + ["300 B", "301 B", "4,000 B", "4,001 B", "90 B", "91 B"]
    )
    assert len(list(drawn.iter(f"{SPACE}path"))) == 12


def test_an_exchange_of_nobody() -> None:
    assert "<svg" in draw([Exchange("train", ())], "")


def test_the_command(job: Path, tmp_path: Path) -> None:
    words = ["federation", "sequence", str(job), "--out", str(tmp_path / "x.svg"), "--round", "2"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "fedilc-inter on target, seed-0, round 2" in (tmp_path / "x.svg").read_text()
