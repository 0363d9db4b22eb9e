"""Records as lines of JSON: what a job writes, and what is read of a file that was cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

#: What left each client in each exchange; older folders have no such file.
LEDGER = "ledger.jsonl"
Record = dict[str, Any]
#: Writes a record as a line.
LINE = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def parsed(line: bytes) -> Record | None:
    """Return the record of a line; None where it is damaged."""
    with suppress(ValueError):
        if isinstance(record := json.loads(line), dict):
            return record
    return None


def read_lines(path: Path) -> list[Record]:
    """Return the whole records of a file; what follows the first damaged line is left out."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    whole = map(parsed, lines[:-1])  # the last piece has no newline: unfinished
    return list(takewhile(lambda record: record is not None, whole))  # type: ignore[arg-type]


def to_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON; NaN cannot be written."""
    return LINE.encode(record).encode() + b"\n"
