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
from typing import Any

from unseen.results.records import Record
from unseen.results.selection import KEYS
from unseen.results.statistics import mean
from unseen.results.study_folder import JobFolder

Points = dict[tuple[str, int], float]
ROLES = {"source": "validation"}


def points(job: JobFolder) -> Points:
    """Return every point of a job; what is undefined has none."""
    return evaluated([*job.source, *job.target]) | trained(job.rounds)


def evaluated(rows: Iterable[Record]) -> Points:
    """Return metrics by role and domain."""
    series: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        role = ROLES.get(row["role"], str(row["role"]))
        for name, level, number in measured(row):
            key = (f"{name}/{role}", f"/{level}" if level else "", row["round"])
            series.setdefault(key, {})[str(row["domain"])] = number
    drawn: Points = {}
    for (tag, end, r), domains in series.items():
        drawn[tag + end, r] = mean(list(domains.values()))
        if len(domains) > 1:
            drawn |= {(f"{tag}/{domain}{end}", r): x for domain, x in domains.items()}
    return drawn


def measured(row: Record) -> Iterator[tuple[str, str, float]]:
    """Yield (metric, level of its group or "", value) of one evaluation."""
    for name, value in row.items():
        if name.partition("@")[0] not in KEYS:
            levels: Mapping[str, Any] = value if isinstance(value, dict) else {"": value}
            yield from ((name, level, x) for level, x in levels.items() if finite(x))


def trained(rows: Iterable[Record]) -> Points:
    """Return scalars and weights of training exchanges, and bytes of all exchanges of a round."""
    drawn: Points = {}
    for row in rows:
        r, names = row["round"], row["clients"]
        for scalar, values in row.get("scalars", {}).items():
            clients = {c: float(x) for c, x in zip(names, values, strict=False) if finite(x)}
            tag = f"{row['exchange']}.{scalar}"
            drawn |= {(f"{tag}/{client}", r): x for client, x in clients.items()}
            drawn |= {(tag, r): mean(list(clients.values()))} if clients else {}
        for slot, values in row.get("weights", {}).items():
            blocked = bool(values) and isinstance(values[0], list)
            for i, block in enumerate(values if blocked else [values]):
                tag = f"weights.{slot}/{i}" if blocked else f"weights.{slot}"
                pairs = zip(names, block, strict=False)
                drawn |= {(f"{tag}/{client}", r): float(x) for client, x in pairs if finite(x)}
        for way, size in row.get("bytes", {}).items():
            drawn[f"bytes/{way}", r] = drawn.get((f"bytes/{way}", r), 0.0) + size
    return drawn


def finite(value: object) -> bool:
    """Return whether a value is a number that can be drawn: defined, finite and no truth value."""
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
