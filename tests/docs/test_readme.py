"""README is short, starts with a command, and shows what the records and the package say."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_it_is_read_in_two_minutes() -> None:
    assert len(README.split()) <= 900
    assert README.count("\n") <= 120


def test_a_command_comes_within_the_first_words() -> None:
    assert len(README[: README.index("```sh")].split()) <= 120


def test_its_table_is_the_one_that_the_script_writes_from_the_records() -> None:
    fragment = (ROOT / "docs" / "results" / "headline.md").read_text("utf-8")
    rows = [line for line in fragment.splitlines() if line.startswith("|")]
    assert len(rows) == 7
    assert "\n".join(rows) in README


def test_every_link_and_picture_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(
        r'(?:src|srcset)="([^"]+)"', README
    )
    assert len(targets) > 10
    for target in targets:
        assert (ROOT / target).exists(), target
