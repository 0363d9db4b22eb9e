"""The drawing of a round's messages, from records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.federation.sequence import Exchange, draw, read, with_rows


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
    assert [e.rows for e in with_rows(found, "fedilc-inter")] == [
        "variance", "model, buffers, penalty", "metrics",
    ]  # fmt: skip


def test_a_round_that_was_not_played(job: Path) -> None:
    with pytest.raises(UnseenError, match="not hold round 7; found 0, 1"):
        read(job, 7)
    with pytest.raises(UnseenError, match="messages.jsonl is not there"):
        read(job.parent, 0)


def test_an_arrow_for_each_message_with_its_bytes(job: Path) -> None:
    drawn = draw(read(job, 0), 'a <title>; "more"')
    head, _, body = drawn.partition("sequenceDiagram\n")
    assert head == '---\ntitle: "a <title>; \\"more\\""\n---\n'
    lanes = dict(re.findall(r"participant (s\d) as (.+)", body))
    assert lanes == {"s0": "server", "s1": "hungary", "s2": "va"}
    down = re.findall(r"s0->>(s\d): (.+)", body)
    up = re.findall(r"(s\d)-->>s0: (.+)", body)
    assert down == [("s1", "5,001 B"), ("s2", "5,000 B")] * 3
    assert [b for _, b in up] == ["301 B", "300 B", "4,001 B", "4,000 B", "91 B", "90 B"]
    assert body.count("Note over s0,s2: ") == 3


def test_marks_of_the_diagram_are_escaped() -> None:
    assert "as a#59;b#35;" in draw([Exchange("train", (("a;b#", 1, 2),))], "")


def test_an_exchange_of_nobody() -> None:
    assert "Note over s0: train" in draw([Exchange("train", ())], "")


@pytest.mark.parametrize("name", ["x.mmd", "x.md"])
def test_the_command(job: Path, tmp_path: Path, name: str) -> None:
    words = ["federation", "sequence", str(job), "--out", str(tmp_path / name), "--round", "2"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    text = (tmp_path / name).read_text()
    assert text.startswith("```mermaid\n---\n" if name == "x.md" else "---\n")
    assert "fedilc-inter on target, seed-0, round 2" in text
