"""The messages of one round as a sequence diagram, drawn from the records of a real run."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError

#: Width of a lane, height of an arrow, margins, in pixels.
LANE, STEP, TOP, LEFT = 190, 24, 64, 96
#: Ink, pale ink, the colour of what goes out, and of what comes back.
INK, PALE, DOWN, UP = "#1c1c1c", "#8a8a8a", "#2b5c8a", "#a34d1a"


@dataclass(frozen=True)
class Exchange:
    """One exchange as it went: its name, and for each site bytes down and bytes up."""

    name: str
    sites: tuple[tuple[str, int, int], ...]
    entries: str = ""
    rows: str = ""


def read(job: Path, round: int) -> list[Exchange]:
    """The exchanges of one round, in the order in which they were recorded; job: a job's folder."""
    path = job / "messages.jsonl"
    if not path.is_file():
        raise UnseenError(
            f"{path} is not there. The folder of one job of a federation is asked for, such as "
            "records/records/fedavg/target/seed-0."
        )
    lines = [*filter(None, map(_line, path.read_text("utf-8").splitlines()))]
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for line in lines:
        if line["round"] == round and line["kind"] == "exchange" and not line["fault"]:
            sites = found.setdefault(str(line["exchange"]), {})
            # A round that was begun again is there twice; what counts is how it ended.
            sites[str(line["site"])] = int(line["down"]), int(line["up"])
    if not found:
        rounds = sorted({line["round"] for line in lines})
        raise UnseenError(f"{path} holds no round {round}; found {', '.join(map(str, rounds))}.")
    return [
        Exchange(name, tuple((site, *found[name][site]) for site in sorted(found[name])))
        for name in found
    ]


def _line(text: str) -> dict[str, Any] | None:
    """A message's record; nothing of one that was cut short when the server was killed."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return found


def named(exchanges: Sequence[Exchange], expression: str) -> list[Exchange]:
    """The same, with the names of what a method sends; evaluations keep theirs."""
    from unseen.methods.compose import method
    from unseen.recipe import Training

    made = {exchange.name: exchange for exchange in method(expression, Training()).exchanges}
    named = []
    for exchange in exchanges:
        slots: Any = made[exchange.name].slots if exchange.name in made else {}
        rows = ", ".join(slots) if slots else "metrics"
        named.append(Exchange(exchange.name, exchange.sites, "received state", rows))
    return named


def draw(exchanges: Sequence[Exchange], title: str) -> str:
    """An SVG: the server and every site as a lane, an arrow per message with its bytes."""
    sites = sorted({site for exchange in exchanges for site, _, _ in exchange.sites})
    place = {name: LEFT + LANE * i for i, name in enumerate(("", *sites))}
    boxes: list[str] = []
    lanes: list[str] = []
    arrows: list[str] = []
    y = TOP + 8.0
    for exchange in exchanges:
        y = _exchange(boxes, arrows, exchange, place, y)
    height, width = y + 16, LEFT + LANE * len(sites) + LEFT
    for name, x in place.items():
        label = html.escape(name or "server")
        dashes = f'stroke="{PALE}" stroke-dasharray="3 4"'
        line = f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{y:g}" {dashes}/>'
        head = f'<text x="{x}" y="{TOP - 10}" text-anchor="middle" font-weight="600">{label}</text>'
        lanes.append(line + head)
    heading = f'<text x="12" y="22" font-size="14" font-weight="600">{html.escape(title)}</text>'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
        f'viewBox="0 0 {width} {height:g}" font-family="sans-serif" font-size="11" fill="{INK}">',
        f'<rect width="{width}" height="{height:g}" fill="#ffffff"/>',
        heading,
        *boxes,
        *lanes,
        *arrows,
        "</svg>",
        "",
    ])  # fmt: skip


def _exchange(
    boxes: list[str], arrows: list[str], exchange: Exchange, place: dict[str, int], y: float
) -> float:
    """One exchange from `y` on, a box with its arrows; where the next one begins."""
    label = html.escape(f"{exchange.name}: {exchange.rows}" if exchange.rows else exchange.name)
    size = STEP * (2 * len(exchange.sites) + 1) + 10
    right = max(place.values()) + 70
    boxes.append(
        f'<rect x="12" y="{y:g}" width="{right - 12}" height="{size}" rx="4" fill="#f4f1ea" '
        f'stroke="#d8d2c4"/><text x="20" y="{y + 15:g}" font-weight="600">{label}</text>'
    )
    y += STEP
    for site, down, _ in exchange.sites:
        y = _arrow(arrows, place[""], place[site], y, f"{down:,} B", DOWN)
    for site, _, up in exchange.sites:
        y = _arrow(arrows, place[site], place[""], y, f"{up:,} B", UP)
    return y + 18


def _arrow(parts: list[str], start: int, end: int, y: float, text: str, colour: str) -> float:
    y += STEP * 0.75
    tip = end - 7 if end > start else end + 7
    parts.append(
        f'<line x1="{start}" y1="{y:g}" x2="{end}" y2="{y:g}" stroke="{colour}"/>'
        f'<path d="M{end} {y:g} L{tip} {y - 3.5:g} L{tip} {y + 3.5:g} Z" fill="{colour}"/>'
        f'<text x="{(min(start, end) + 95):g}" y="{y - 4:g}" text-anchor="middle" fill="{colour}">'
        f"{html.escape(text)}</text>"
    )
    return y + STEP * 0.25
