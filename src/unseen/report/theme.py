"""Colours, line styles and labels, the same on the page, in the SVG files and in the PNG files.

The eight colours are those of Okabe and Ito, made darker or lighter until each has a contrast of
3:1 or more with its background. Dashes and markers tell the lines apart a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: name -> (on light, on dark).
COLOURS: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"),
    "raised": ("#f6f7f8", "#1d2126"),
    "ink": ("#1a1d21", "#e8eaed"),
    "soft": ("#565d66", "#a9b1bb"),
    "rule": ("#d9dde2", "#363c44"),
    "link": ("#005c9e", "#79bdf2"),
    "warn": ("#fff6e0", "#33290f"),
    "edge": ("#b07800", "#e0ab3d"),
    "many": ("#8b929b", "#79828d"),
    "s0": ("#0072b2", "#4fa8e8"),
    "s1": ("#d04f00", "#f5894a"),
    "s2": ("#008562", "#2bc79a"),
    "s3": ("#ad5089", "#df97c2"),
    "s4": ("#947000", "#e2b33c"),
    "s5": ("#3a8fb7", "#9fd8f7"),
    "s6": ("#6a4fc4", "#ab98f5"),
    "s7": ("#6b7076", "#b4bac1"),
    # The steps of a surface or a matrix, from low to high.
    "h0": ("#edf5fa", "#13344d"),
    "h1": ("#d5e8f3", "#18425f"),
    "h2": ("#b4d5e8", "#1d4d70"),
    "h3": ("#8bbcd9", "#255d86"),
    "h4": ("#5f9fc6", "#2c6994"),
    "h5": ("#33769f", "#64a5cf"),
    "h6": ("#1f5f8b", "#9ccbe8"),
    "h7": ("#0b3c5d", "#d8ecf8"),
}
SERIES, STEPS = 8, 8
LIGHT: Mapping[str, str] = {name: light for name, (light, _) in COLOURS.items()}
#: The same for matplotlib, in multiples of the line's width.
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")


def tint(index: int) -> str:
    """Return the light colour of a series, in turn; that of the text for −1."""
    return LIGHT["ink" if index < 0 else f"s{index % SERIES}"]


def stroke(index: int, kind: str) -> dict[str, Any]:
    """Return how matplotlib draws a line: no two of the first 32 series look alike without colour.

    Args:
        index: The number of the series, or −1 for the colour of the text.
        kind: One of `unseen.report.figures.Kind`.
    """
    if kind == "faint":
        return {"color": LIGHT["many"], "lw": 0.8}
    if kind == "dotted":
        return {"color": tint(index), "lw": 1.3, "ls": DASHES[2]}
    if kind == "strong" or index < 0:
        return {"color": tint(index), "lw": 2.4 if kind == "strong" else 1.6}
    marker = MARKERS[index // len(DASHES) % len(MARKERS)]
    return {
        "color": tint(index), "lw": 1.4, "ls": DASHES[index % len(DASHES)], "marker": marker,
        "ms": 4, "mew": 0, "markevery": 0.24,
    }  # fmt: skip


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
