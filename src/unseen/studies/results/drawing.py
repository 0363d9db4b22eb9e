"""A study's results as a figure of matplotlib, for a notebook or a file."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unseen.studies.results.formats import scale_of
from unseen.studies.results.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Columns of panels.
WIDE = 3


def dots(table: Table) -> Figure:
    """Return a panel for each column: a method's mean and its standard error over seeds."""
    figure, axes = _panels(len(table.columns), 0.9 + 0.28 * len(table.methods))
    for c, (column, axis) in enumerate(zip(table.columns, axes, strict=False)):
        for m, row in enumerate(table.cells):
            mean, error, _ = row[c].fields()
            if not isinstance(mean, str):
                spread = [table.scale * (error or 0.0)]
                axis.errorbar(table.scale * mean, m, xerr=spread, fmt="o", color=f"C{m % 10}")
        axis.set_title(column, fontsize="medium")
        axis.set_yticks(range(len(table.methods)), table.methods)
        axis.set_ylim(len(table.methods) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
    figure.suptitle(table.caption, fontsize="small")
    return figure


def lines(records: Sequence[dict[str, Any]], metric: str, tasks: Sequence[str]) -> Figure:
    """Return a panel for each target: a method's mean over seeds, round by round.

    Args:
        records: Evaluations at targets.
        metric: What to draw.
        tasks: The targets, one panel each.
    """
    values: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for record in records:
        if (value := record.get(metric)) is not None:
            values[record["task"], record["method"], record["round"]].append(value)
    methods = list(dict.fromkeys(method for _, method, _ in values))
    figure, axes = _panels(len(tasks), 2.6)
    scale = scale_of(metric)
    for task, axis in zip(tasks, axes, strict=False):
        for method in methods:
            rounds = sorted(r for t, m, r in values if (t, m) == (task, method))
            means = [scale * fmean(values[task, method, r]) for r in rounds]
            axis.plot([r + 1 for r in rounds], means, label=method)
        axis.set_title(task, fontsize="medium")
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"{metric}, percent" if scale == 100 else metric)
    axes[0].legend(fontsize="small")
    return figure


def picture(width: float, height: float) -> Figure:
    """Return an empty figure that a notebook shows without a magic command; it has no window.

    Args:
        width: In inches.
        height: In inches.
    """
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=120)
            return content.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def _panels(count: int, height: float) -> tuple[Figure, list[Any]]:
    """Return a figure with as many panels, and these."""
    across = min(count, WIDE)
    down = -(-count // across)
    figure = picture(3.6 * across, height * down)
    grid = figure.subplots(down, across, sharey="row", squeeze=False)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes
