"""Colours and line styles, the same on the page, in the SVG files and in the PNG files.

The eight colours are Okabe and Ito's, made darker or lighter until each has a contrast of 3:1 or
more with its background; dashes tell lines apart a second time.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    # The steps of a surface, from low to high.
    "h0": ("#0b3c5d", "#d8ecf8"),
    "h1": ("#1f5f8b", "#b2d8ee"),
    "h2": ("#3a80ad", "#8bc0e0"),
    "h3": ("#5f9fc6", "#64a5cf"),
    "h4": ("#8bbcd9", "#4286b5"),
    "h5": ("#b4d5e8", "#2c6994"),
    "h6": ("#d5e8f3", "#1d4d70"),
    "h7": ("#edf5fa", "#13344d"),
}
SERIES, STEPS = 8, 8
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")
#: kind -> stroke width, opacity.
KINDS: Mapping[str, tuple[float, float]] = {
    "plain": (1.4, 1.0),
    "strong": (2.4, 1.0),
    "dotted": (1.3, 1.0),
    "faint": (0.8, 0.7),
}


def colour(index: int) -> str:
    """The name of a line's colour: `ink` for −1, else one of the series, in turn."""
    return "ink" if index < 0 else f"s{index % SERIES}"


def dash(index: int, kind: str) -> str:
    """A line's dashes: each turn of the colours has its own."""
    if kind == "dotted":
        return DASHES[2]
    return "" if index < 0 else DASHES[index // SERIES % len(DASHES)]


def contrast(a: str, b: str) -> float:
    """The contrast of two colours by WCAG 2, from 1 to 21.

    >>> round(contrast("#ffffff", "#000000"))
    21
    """
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def variables(theme: int) -> str:
    """The colours as CSS variables; theme 0 is light, 1 is dark."""
    return ";".join(f"--{name}:{pair[theme]}" for name, pair in COLOURS.items())


#: How figures look, in terms of the variables.
FIGURE_CSS = (
    "svg text{font:11px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--soft)}"
    "svg .t{font-size:12px;font-weight:600;fill:var(--ink)}svg .n{fill:var(--ink)}"
    "svg .g{stroke:var(--rule);fill:none}svg .a{stroke:var(--soft);fill:none}"
    "svg .l{fill:none;stroke:var(--c);stroke-width:1.4;stroke-linejoin:round}"
    "svg .strong{stroke-width:2.4}svg .dotted{stroke-dasharray:2 2.5;stroke-width:1.3}"
    "svg .faint{stroke-width:.8;opacity:.7;stroke:var(--many)}"
    "svg .d1{stroke-dasharray:6 3}svg .d2{stroke-dasharray:2 2.5}"
    "svg .d3{stroke-dasharray:8 3 2 3}"
    "svg .b{fill:var(--c);opacity:.16}svg .p{fill:var(--c);stroke:var(--paper);stroke-width:.7}"
    "svg .f{fill:var(--c)}svg path.f{shape-rendering:crispEdges}svg .k{fill:var(--soft)}"
    "svg .o{fill:var(--paper);stroke:var(--c);stroke-width:1.2}"
    "svg .halo{fill:var(--ink);stroke:var(--paper);stroke-width:3px;paint-order:stroke}"
    "svg .span{stroke:var(--soft);stroke-width:3.5}"
    + "".join(f".c{i}{{--c:var(--s{i})}}" for i in range(SERIES))
    + "".join(f".h{i}{{--c:var(--h{i})}}" for i in range(STEPS))
    + ".ink{--c:var(--ink)}.many{--c:var(--many)}"
)


def _luminance(text: str) -> float:
    channels = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
