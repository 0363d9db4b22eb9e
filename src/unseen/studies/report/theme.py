"""Colours, line styles and labels, the same on the page, in the SVG files and in the PNG files.

The eight colours are those of Okabe and Ito, made darker or lighter until each has a contrast of
3:1 or more with its background. Dashes and markers tell the lines apart a second time.
"""

import re
import tomllib
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

#: name -> (on light, on dark).
COLOURS: Mapping[str, tuple[str, str]] = tomllib.loads(
    (resources.files("unseen.studies.report") / "colours.toml").read_text("utf-8")
)
SERIES, STEPS = 8, 8
LIGHT: Mapping[str, str] = {name: light for name, (light, _) in COLOURS.items()}
#: As matplotlib has them, in multiples of the line's width.
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
#: The colours' names, by what matplotlib draws with.
NAMES = {colour: name for name, colour in LIGHT.items()}
#: What of an SVG only matplotlib or an editor needs. Names of groups stay where they are a title.
NEEDLESS = (
    (r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>", ""),
    (r"\s*\n\s*", " "),
    (r"> <", "><"),
    (r'<g id="title:([^"]*)">', r"<g ><title>\1</title>"),
    (r'<g id="[^"]*"', "<g"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"font-family: [^;\"]*;?|opacity: 1;|text-anchor: start;?", ""),
    (r"([:;]) (?=[^<>]*>)", r"\1"),
)


def tint(index: int) -> str:
    """Return the light colour of a series, in turn; that of the text for −1."""
    return LIGHT["ink" if index < 0 else f"s{index % SERIES}"]


def stroke(index: int, kind: str) -> dict[str, Any]:
    """Return how matplotlib draws a line: no two of the first 32 series look alike without colour.

    Args:
        index: The number of the series, or −1 for the colour of the text.
        kind: One of `unseen.studies.report.figures.Kind`.
    """
    if kind == "faint":
        return {"color": LIGHT["many"], "lw": 0.8}
    if kind == "dotted":
        return {"color": tint(index), "lw": 1.3, "ls": DASHES[2]}
    if kind == "strong" or index < 0:
        return {"color": tint(index), "lw": 2.4 if kind == "strong" else 1.6}
    marker = MARKERS[index // len(DASHES) % len(MARKERS)]
    return {
        "color": tint(index),
        "lw": 1.4,
        "ls": DASHES[index % len(DASHES)],
        "marker": marker,
        "ms": 4,
        "mew": 0,
        "markevery": 0.24,
    }


def variables(theme: int) -> str:
    """Return the colours as CSS variables; theme 0 is light, 1 is dark."""
    return ";".join(f"--{name}:{pair[theme]}" for name, pair in COLOURS.items())


def tick(value: float, percent: bool = False) -> str:
    """Return a tick's text.

    Args:
        value: The tick's place.
        percent: Whether values are shares, to be shown in percent.

    Example:
        >>> tick(0.5), tick(0.5, percent=True), tick(12000.0), tick(0.00001)
        ('0.5', '50', '12k', '1e-05')
    """
    value = value * 100 if percent else value
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value / 1e6:.3g}M" if abs(value) >= 1e6 else f"{value / 1e3:.3g}k"


def shortened(text: str, length: int) -> str:
    """Return a text that is not longer than `length` letters.

    Example:
        >>> shortened("fedprox(mu=0.1)", 10)
        'fedprox(m…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def compact(svg: str, label: str, themed: bool) -> str:
    """Return matplotlib's SVG made small, with places to a tenth of a pixel.

    Args:
        svg: What matplotlib wrote.
        label: The text alternative; without one, screen readers skip the drawing.
        themed: For the page: colours are its variables, and letters are its own.
    """
    for pattern, replacement in NEEDLESS:
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", _rounded, svg)
    svg = re.sub(r'<g>((?:<use [^>]*? style="([^"]*)"/>){2,})</g>', _once, svg)
    before = ""
    while svg != before:  # from the inside out
        before, svg = svg, re.sub(r"<g/>|<g>((?:(?!</?g\b).)*)</g>", r"\1", svg)
    box = re.search(r'viewBox="0 0 (\S+) ([^"]*)"', svg)
    assert box is not None
    role = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    head = f'<svg {box[0]} {role} stroke-linejoin="round"'
    body = svg[svg.index(">") + 1 :]
    if not themed:
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        size = f'width="{box[1]}" height="{box[2]}" font-family="DejaVu Sans,sans-serif"'
        return f"{head} {spaces} {size}>{body}\n"
    body = re.sub(r"(?<=[: ])#[0-9a-f]{6}", lambda m: f"var(--{NAMES.get(m[0], 'ink')})", body)
    body = re.sub(r'(?<=style=")font-size:11px;', "", body)
    return f"{head}>{body.replace('xlink:href', 'href')}"


def _rounded(tag: re.Match[str]) -> str:
    text = re.sub(r"\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag[0])
    return re.sub(r" ?\b([MLCQz])\b ?", r"\1", text) if ' d="' in text else text


def _once(marks: re.Match[str]) -> str:
    """Return marks that look the same with their style at the group, where they all do."""
    style = f' style="{marks[2]}"'
    same = marks[1].count("<use") == marks[1].count(style)
    return f"<g{style}>{marks[1].replace(style, '')}</g>" if same else marks[0]
