"""What there is to draw of a job, from its records: (tag, round) -> number.

METRIC/ROLE             the mean over the domains of a role: validation, ood-validation, target
METRIC/ROLE/DOMAIN      each domain's, where a role has several
METRIC@COLUMN/...       the same with the level of a group as last part
EXCHANGE.SCALAR         the mean over the clients; with /CLIENT each client's
weights.SLOT/CLIENT     the rule's weights; with /BLOCK before the client where it has blocks
bytes/up, bytes/down    what all clients sent and received in the round
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unseen.results import records
from unseen.results.records import Record
from unseen.results.selection import KEYS
from unseen.results.statistics import mean

Key = tuple[str, int]
Points = dict[Key, float]
ROLES = {"source": "validation"}


def points(folder: Path) -> Points:
    """Every point of the job whose records lie in the folder; what is undefined has none."""
    source = records.read_lines(folder / "source.jsonl")
    target = records.read_lines(folder / "target.jsonl")
    found: Points = {}
    for name in ("source", "target"):
        found |= evaluated(source if name == "source" else target)
    return found | trained(records.read_lines(folder / "rounds.jsonl"))


def evaluated(rows: Iterable[Record]) -> Points:
    """Metrics by role and domain."""
    gathered: dict[tuple[str, str, int, str], dict[str, float]] = {}
    for row in rows:
        role = ROLES.get(row["role"], str(row["role"]))
        for name, level, number in measured(row):
            where = gathered.setdefault((name, role, row["round"], level), {})
            where[str(row["domain"])] = number
    found: Points = {}
    for (name, role, r, level), domains in gathered.items():
        end = f"/{level}" if level else ""
        found[f"{name}/{role}{end}", r] = mean(list(domains.values()))
        if len(domains) > 1:
            for domain, number in domains.items():
                found[f"{name}/{role}/{domain}{end}", r] = number
    return found


def measured(row: Record) -> Iterator[tuple[str, str, float]]:
    """(metric, level of its group or "", value) of one evaluation."""
    for name, value in row.items():
        if name in KEYS or name.partition("@")[0] in KEYS:
            continue
        levels: Mapping[str, Any] = value if isinstance(value, dict) else {"": value}
        for level, one in levels.items():
            if (number := finite(one)) is not None:
                yield name, level, number


def trained(rows: Iterable[Record]) -> Points:
    """Scalars and weights of the training exchanges, and bytes over all exchanges of a round."""
    found: Points = {}
    for row in rows:
        r, names = row["round"], row["clients"]
        for scalar, values in row.get("scalars", {}).items():
            name = f"{row['exchange']}.{scalar}"
            known = {c: v for c, one in zip(names, values, strict=False)
                     if (v := finite(one)) is not None}  # fmt: skip
            found |= {(f"{name}/{client}", r): v for client, v in known.items()}
            if known:
                found[name, r] = mean(list(known.values()))
        for slot, values in row.get("weights", {}).items():
            blocked = bool(values) and isinstance(values[0], list)
            for i, block in enumerate(values if blocked else [values]):
                middle = f"{i}/" if blocked else ""
                for client, one in zip(names, block, strict=False):
                    if (number := finite(one)) is not None:
                        found[f"weights.{slot}/{middle}{client}", r] = number
        for way, size in row.get("bytes", {}).items():
            found[f"bytes/{way}", r] = found.get((f"bytes/{way}", r), 0.0) + size
    return found


def finite(value: object) -> float | None:
    """A number that can be drawn; None for what is undefined, infinite or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
