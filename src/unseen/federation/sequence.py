"""The messages of one round as a sequence diagram in Mermaid, from the records of a real run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError


@dataclass(frozen=True)
class Exchange:
    """One exchange as it went.

    Attributes:
        name: The exchange's name.
        sites: (site, bytes down, bytes up) of each.
        rows: What the sites send.
    """

    name: str
    sites: tuple[tuple[str, int, int], ...]
    rows: str = ""


def read(job: Path, round: int) -> list[Exchange]:
    """Return the exchanges of one round, in the order of its records.

    Args:
        job: Folder of a job's records.
        round: Which round, from 0.
    """
    path = job / "messages.jsonl"
    if not path.is_file():
        raise UnseenError(
            f"{path} is not there.",
            remedy="Name the folder of one job of a federation, such as "
            "records/records/fedavg/target/seed-0.",
        )
    lines: list[dict[str, Any]] = []
    for text in path.read_text("utf-8").splitlines():
        with suppress(ValueError):  # a record that was cut short when the server was killed
            lines.append(json.loads(text))
    exchanges: dict[str, dict[str, tuple[int, int]]] = {}
    for line in lines:
        if line["round"] == round and line["kind"] == "exchange" and not line["fault"]:
            sites = exchanges.setdefault(str(line["exchange"]), {})
            # A round that was begun again is there twice; what counts is how it ended.
            sites[str(line["site"])] = int(line["down"]), int(line["up"])
    if not exchanges:
        rounds = ", ".join(map(str, sorted({line["round"] for line in lines})))
        raise UnseenError(f"{path} does not hold round {round}; found {rounds}.")
    return [
        Exchange(name, tuple((site, *sites[site]) for site in sorted(sites)))
        for name, sites in exchanges.items()
    ]


def with_rows(exchanges: Sequence[Exchange], expression: str) -> list[Exchange]:
    """Return the same exchanges with the names of what a method sends in them."""
    from unseen.methods.compose import method
    from unseen.recipe import Training

    slots = {exchange.name: exchange.slots for exchange in method(expression, Training()).exchanges}
    return [
        replace(exchange, rows=", ".join(slots.get(exchange.name, ())) or "metrics")
        for exchange in exchanges
    ]


def draw(exchanges: Sequence[Exchange], title: str) -> str:
    """Return a Mermaid diagram: the server and every site as a lane, an arrow per message."""
    sites = sorted({site for exchange in exchanges for site, _, _ in exchange.sites})
    lane = {site: f"s{i}" for i, site in enumerate(sites, start=1)}
    lines = ["---", f"title: {json.dumps(title, ensure_ascii=False)}", "---", "sequenceDiagram"]
    lines += ["    participant s0 as server"]
    lines += [f"    participant {lane[site]} as {_text(site)}" for site in sites]
    for exchange in exchanges:
        label = f"{exchange.name}: {exchange.rows}" if exchange.rows else exchange.name
        lines += [f"    Note over s0{f',s{len(sites)}' if sites else ''}: {_text(label)}"]
        lines += [f"    s0->>{lane[site]}: {down:,} B" for site, down, _ in exchange.sites]
        lines += [f"    {lane[site]}-->>s0: {up:,} B" for site, _, up in exchange.sites]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Escape what Mermaid would take for its own marks."""
    return "".join(f"#{ord(c)};" if c in '#;<>"' else c for c in text)
