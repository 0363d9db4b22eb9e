"""The same drawings as PNG, through matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from unseen.report.scene import Disc, Path, Scene, Text
from unseen.report.theme import COLOURS, DASHES, KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Dots per inch at 100 pixels of a scene to the inch: twice the size of the page's.
DPI = 200


def to_png(scene: Scene) -> bytes:
    """The drawing in light colours."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.family": "sans-serif", "path.simplify": False}):
        figure = Figure(figsize=(scene.width / 100, scene.height / 100), dpi=DPI)
        figure.patch.set_facecolor(_light("paper"))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, scene.width)
        axes.set_ylim(scene.height, 0)
        for level, mark in enumerate(scene.marks):
            _draw(axes, mark, level)
        buffer = io.BytesIO()
        # Without the version that matplotlib writes, the same figure is the same file.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, mark: Path | Disc | Text, level: int) -> None:
    classes = mark.look.split()
    tint = _light(_tint(classes))
    if isinstance(mark, Text):
        _text(axes, mark, classes, level)
    elif isinstance(mark, Disc):
        edge = {"p": _light("paper"), "o": tint}.get(classes[0], "none")
        tint = _light("paper") if "o" in classes else tint
        size = (mark.radius * 2 * 0.72) ** 2
        axes.scatter([mark.x], [mark.y], s=size, c=[tint], edgecolors=edge, linewidths=0.5,
                     zorder=level)  # fmt: skip
    elif mark.closed:
        opacity = 0.16 if "b" in classes else 1.0
        shade = _light("soft") if "k" in classes else tint
        axes.fill(*zip(*mark.points, strict=True), color=shade, alpha=opacity, lw=0, zorder=level)
    elif mark.points:
        axes.plot(*zip(*mark.points, strict=True), zorder=level, **_stroke(classes, tint))


def _text(axes: Axes, mark: Text, classes: list[str], level: int) -> None:
    strong = "t" in classes
    shade = "ink" if strong or {"n", "halo"} & set(classes) else "soft"
    aligned = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
    # A pixel of the scene is 0.72 points; a dollar sign would start a formula.
    words = mark.words.replace("$", r"\$")
    axes.text(mark.x, mark.y, words, color=_light(shade), ha=aligned, va="baseline",
              fontsize=(12 if strong else 11) * 0.68, zorder=level,
              fontweight="bold" if strong else "normal")  # fmt: skip


def _stroke(classes: list[str], tint: str) -> dict[str, Any]:
    if "g" in classes or "a" in classes:
        return {"color": _light("rule" if "g" in classes else "soft"), "lw": 0.72}
    if "span" in classes:
        return {"color": _light("soft"), "lw": 2.5}
    kind = next((k for k in KINDS if k in classes), "plain")
    width, opacity = KINDS[kind]
    which = 2 if kind == "dotted" else next((i for i in (1, 2, 3) if f"d{i}" in classes), 0)
    dashes = [float(part) * 0.72 for part in DASHES[which].split()]
    shade = _light("many") if kind == "faint" else tint
    style: dict[str, Any] = {"color": shade, "lw": width * 0.72, "alpha": opacity}
    return style | ({"dashes": [d / style["lw"] for d in dashes]} if dashes else {})


def _tint(classes: list[str]) -> str:
    for name in classes:
        if name in ("ink", "many") or (name[0] == "h" and name[1:].isdigit()):
            return name
        if name[0] == "c" and name[1:].isdigit():
            return f"s{name[1:]}"
    return "ink"


def _light(name: str) -> str:
    return COLOURS[name][0]
