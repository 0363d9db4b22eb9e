"""Draw the README's picture: sites send sums, one model comes back, and meets a new site.

python docs/figures/overview.py CHOICE.json     writes overview.svg and overview-dark.svg

CHOICE.json: an answer of `unseen choose heart`, whose figures the picture shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
THEMES = {
    "overview": {"ink": "#1a1d21", "soft": "#565d66", "box": "#eef3f8", "line": "#0072b2"},
    "overview-dark": {"ink": "#e8eaed", "soft": "#a9b1bb", "box": "#222a35", "line": "#4fa8e8"},
}
SITES = ("Cleveland", "Hungary", "VA")


def text(x: float, y: float, words: str, fill: str, size: int = 14, weight: int = 400) -> str:
    """Return a centred line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="middle">{words}</text>'
    )


def box(x: float, y: float, width: float, height: float, theme: dict[str, str]) -> str:
    """Return a rounded rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
        f'fill="{theme["box"]}" stroke="{theme["line"]}"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, theme: dict[str, str]) -> str:
    """Return a line with a head."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{theme["line"]}" '
        f'stroke-width="2" marker-end="url(#head)"/>'
    )


def interval(choice: dict, theme: dict[str, str]) -> list[str]:
    """Return the expected figure at a new site: a dot per site left out, the mean, the interval."""
    row = next(row for row in choice["rows"] if row["recipe"] == choice["recipe"])
    expected, figures = row["expected"], choice["figures"][choice["recipe"]]

    def place(value: float) -> float:
        return 640 + 250 * (value - 0.6) / 0.35

    low, high, mean = (place(expected[name]) for name in ("low", "high", "mean"))
    ink, soft, line = theme["ink"], theme["soft"], theme["line"]
    axis = [
        text(place(v), 204, f"{v:.0%}".replace("%", " %"), soft, 12) for v in (0.6, 0.7, 0.8, 0.9)
    ]
    dots = [
        f'<circle cx="{place(v):.1f}" cy="146" r="4" fill="none" '
        f'stroke="{soft}" stroke-width="1.5"/>'
        for v in figures.values()
    ]
    return [
        text(765, 62, "a new site", ink, 16, 600),
        text(765, 84, f"expect {expected['mean']:.0%}".replace("%", " %") + " right answers", ink),
        text(
            765,
            106,
            f"90 % of new sites: {100 * expected['low']:.0f} to {100 * expected['high']:.0f} %",
            soft,
        ),
        *dots,
        f'<line x1="{low:.1f}" y1="168" x2="{high:.1f}" y2="168" '
        f'stroke="{line}" stroke-width="5" stroke-linecap="round"/>',
        f'<circle cx="{mean:.1f}" cy="168" r="7" fill="{line}"/>',
        f'<line x1="640" y1="186" x2="890" y2="186" stroke="{soft}"/>',
        *axis,
    ]


def picture(choice: dict, theme: dict[str, str]) -> str:
    """Return the whole picture as SVG."""
    ink, soft = theme["ink"], theme["soft"]
    parts = []
    for i, site in enumerate(SITES):
        y = 30 + 66 * i
        parts += [box(20, y, 130, 46, theme), text(85, y + 29, site, ink, 15, 600)]
        parts += [arrow(156, y + 23, 262, 112 + 4 * (i - 1), theme)]
    parts += [text(85, 240, "rows stay at their site", soft, 13)]
    parts += [text(214, 50, "sums", soft, 13)]
    parts += [box(270, 84, 120, 56, theme), text(330, 117, "server", ink, 15, 600)]
    parts += [arrow(396, 112, 446, 112, theme)]
    parts += [box(454, 84, 120, 56, theme), text(514, 117, "one model", ink, 15, 600)]
    parts += [arrow(580, 112, 624, 112, theme), *interval(choice, theme)]
    head = (
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{theme["line"]}"/>'
        "</marker></defs>"
    )
    label = "Sites send sums to a server; one model comes out, with what to expect at a new site"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 910 256" role="img" '
        f'aria-label="{label}" font-family="system-ui, sans-serif">{head}{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Write both pictures."""
    choice = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    for name, theme in THEMES.items():
        (HERE / f"{name}.svg").write_text(picture(choice, theme), "utf-8")


if __name__ == "__main__":
    main()
