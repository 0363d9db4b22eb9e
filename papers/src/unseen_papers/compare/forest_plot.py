"""The forest plot of a comparison by site: one dot a site, the mean with its interval below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from unseen.studies.results.formats import scale_of
from unseen_papers.compare.by_site import Effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: In inches: of a column, of a line, and of what is above and below the lines.
WIDE, LINE, REST = 4.2, 0.17, 1.2
#: Columns that stand side by side.
ACROSS = 3
DOT, MEAN, ZERO = "#7a8794", "#0b5cad", "#b0b7be"


def forest(effects: Sequence[tuple[str, str, Effect]]) -> bytes:
    """Return the plot as SVG, a column for each comparison, three side by side.

    Args:
        effects: (data set, metric, comparison), at least one.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style = resources.files("unseen.studies.report") / "drawing.mplstyle"
    bands = [effects[first : first + ACROSS] for first in range(0, len(effects), ACROSS)]
    heights = [
        LINE * (max(len(effect.differences) for _, _, effect in band) + 2) + REST for band in bands
    ]
    with matplotlib.rc_context(fname=str(style)):
        matplotlib.rcParams["svg.hashsalt"] = "unseen"
        wide = min(len(effects), ACROSS)
        sheet = Figure((WIDE * wide, sum(heights)), layout="constrained")
        grid = sheet.add_gridspec(len(bands), wide, height_ratios=heights)
        for place, (name, metric, effect) in enumerate(effects):
            axes = sheet.add_subplot(grid[divmod(place, ACROSS)])
            times = scale_of(metric)
            ordered = sorted(effect.differences.items(), key=lambda pair: pair[1])
            axes.axvline(0, color=ZERO, linewidth=1)
            places = range(2, len(ordered) + 2)
            axes.plot([d * times for _, d in ordered], places, "o", color=DOT, markersize=4)
            low, high = effect.interval or (effect.mean, effect.mean)
            axes.plot([low * times, high * times], [0, 0], color=MEAN, linewidth=2.5)
            axes.plot([effect.mean * times], [0], "D", color=MEAN, markersize=7)
            axes.set_yticks([0, *places], ["mean of sites", *(site for site, _ in ordered)])
            axes.tick_params("y", labelsize=8 if len(ordered) < 40 else 6)
            axes.set_ylim(-1, len(ordered) + 2)
            axes.grid(axis="x", color="#e4e7ea")
            unit = f"{metric}, percentage points" if times > 1 else metric
            axes.set_xlabel(f"better by ({unit})", fontsize=9)
            axes.set_title(f"{name}\n{effect.method} − {effect.other}", fontsize=9)
        settle(sheet)
        file = io.BytesIO()
        sheet.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def settle(sheet: Figure) -> None:
    """Lay a figure out for good, at millionths of its size.

    Note:
        The layout's solver may differ in the last bits from call to call, and with them the names
        of clip paths, so that the same comparison would not give the same file.
    """
    sheet.draw_without_rendering()
    sheet.set_layout_engine("none")
    for axes in sheet.axes:
        left, bottom, width, height = (round(float(v), 6) for v in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
