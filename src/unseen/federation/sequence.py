"""The messages of one round as a sequence diagram in Mermaid, from the records of a real run."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.templates import render


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
        remedy = "Name the folder of one job, such as records/records/fedavg/target/seed-0."
        raise UnseenError(f"{path} is not there.", remedy=remedy)
    lines: list[Mapping[str, Any]] = []
    for text in path.read_text("utf-8").splitlines():
        with suppress(ValueError):  # a record that was cut short when the server was killed
            lines.append(json.loads(text))
    exchanges: dict[str, dict[str, tuple[int, int]]] = {}
    for line in lines:
        if line["round"] == round and line["kind"] == "exchange" and not line["fault"]:
            # A round that was begun again is there twice; what counts is how it ended.
            sites = exchanges.setdefault(line["exchange"], {})
            sites[line["site"]] = line["down"], line["up"]
    if not exchanges:
        rounds = ", ".join(map(str, sorted({line["round"] for line in lines})))
        raise UnseenError(f"{path} does not hold round {round}; found {rounds}.")
    items = exchanges.items()
    return [Exchange(name, tuple((s, *sites[s]) for s in sorted(sites))) for name, sites in items]


def with_rows(exchanges: Sequence[Exchange], expression: str) -> list[Exchange]:
    """Return the same exchanges with the names of what a method sends in them."""
    from unseen.methods.compose import method
    from unseen.recipe import Training

    slots = {exchange.name: exchange.slots for exchange in method(expression, Training()).exchanges}
    return [replace(e, rows=", ".join(slots.get(e.name, ())) or "metrics") for e in exchanges]


def draw(exchanges: Sequence[Exchange], title: str) -> str:
    """Return a Mermaid diagram: the server and every site as a lane, an arrow per message."""
    sites = sorted({site for exchange in exchanges for site, _, _ in exchange.sites})
    words = {"title": json.dumps(title, ensure_ascii=False), "text": _text}
    return render("sequence.mmd", exchanges=exchanges, sites=sites, **words)


def _text(text: str) -> str:
    """Escape what Mermaid would take for its own marks."""
    return "".join(f"#{ord(c)};" if c in '#;<>"' else c for c in text)
