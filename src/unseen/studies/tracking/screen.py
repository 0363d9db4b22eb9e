"""A snapshot on a terminal, or as plain text in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from unseen.core.templates import render
from unseen.studies.results.formats import decimals, scale_of
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import Curve
from unseen.studies.tracking.state import Progress, Snapshot

if TYPE_CHECKING:
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
#: Columns of a curve; jobs and reasons that are listed one by one.
WIDE, LISTED = 12, 8


def renderable(snapshot: Snapshot) -> Any:
    """Return the whole snapshot, as rich prints it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    words = render(
        "unseen.studies.tracking", "screen.jinja", now=snapshot, most=LISTED, duration=duration
    ).splitlines()
    parts: list[Any] = [Text(snapshot.title, "bold"), *map(Text, words[:2])]
    if (share := snapshot.share()) is not None:
        bar = ProgressBar(total=1.0, completed=share, width=60)
        parts.append(Padding(bar, (0, 0, 1, 0), expand=False))
    if snapshot.jobs:
        parts.append(methods(snapshot))
    if at_work := snapshot.of("running", "stopped"):
        parts.append(jobs(snapshot, at_work[:LISTED]))
        if len(at_work) > LISTED:
            parts.append(Text(f"and {len(at_work) - LISTED} more"))
    return Group(*parts, *map(Text, words[2:]))


def methods(snapshot: Snapshot) -> Table:
    """Return a line per method: jobs, rounds, the last figures and the curves that led there."""
    from rich.table import Table

    unit = ", %" if scale_of(snapshot.metric) == 100 else ""
    title = f"{snapshot.metric}{unit}: mean over each method's jobs, in their last round"
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    for name in ("jobs", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("validation", "target"):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("by round", no_wrap=True, min_width=WIDE)
    by_method = {m: [j for j in snapshot.jobs if j.job.method == m] for m in snapshot.methods}
    cells = {
        m: [f"{sum(job.over for job in jobs)}/{len(jobs)}", rounds(jobs)]
        for m, jobs in by_method.items()
    }
    for read in (attrgetter("validation"), attrgetter("target")):
        joined = {m: joint(list(map(read, jobs))) for m, jobs in by_method.items()}
        values = [v for curve in joined.values() for v in curve.values()] or [0.0, 1.0]
        for method, curve in joined.items():
            now = last(map(read, by_method[method]), snapshot.metric)
            cells[method] += [now, spark(curve, min(values), max(values))]
    for method, fields in cells.items():
        table.add_row(method, *fields)
    return table


def jobs(snapshot: Snapshot, running: Sequence[Progress]) -> Table:
    """Return a line per job.

    Args:
        snapshot: The study.
        running: Its jobs that are running or stopped half-way.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("at work" if snapshot.active else "half-way", overflow="fold")
    for name in ("round", "validation", "target", "last record"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in running:
        of = f"/{snapshot.rounds}" if snapshot.rounds is not None else ""
        age = "" if job.last_write is None else f"{duration(snapshot.now - job.last_write)} ago"
        stopped = " (stopped)" if job.state == "stopped" and snapshot.active else ""
        figures = (last([curve], snapshot.metric) for curve in (job.validation, job.target))
        table.add_row(job.name, f"{job.rounds}{of}", *figures, age + stopped)
    return table


def rounds(jobs: Sequence[Progress]) -> str:
    """Return how far a method's jobs are: one number, or from the least to the most."""
    played = [job.rounds for job in jobs if job.state != "waiting"]
    low, high = min(played, default=0), max(played, default=0)
    return f"{high}" if low == high else f"{low}–{high}"


def last(curves: Iterable[Curve], metric: str) -> str:
    """Return the mean of the curves' last values, as tables show them.

    Args:
        curves: One per job.
        metric: What they show, which decides scale and decimals.
    """
    ends = [curve[max(curve)] for curve in curves if curve]
    return f"{mean(ends) * scale_of(metric):.{decimals(metric)}f}" if ends else ""


def joint(curves: Sequence[Curve]) -> Curve:
    """Return the mean by round over the curves that have it."""
    every = sorted(set().union(*curves))
    return {r: mean([curve[r] for curve in curves if r in curve]) for r in every}


def spark(curve: Curve, low: float, high: float) -> str:
    """Return a curve in at most 12 letters, each the mean of its share of the rounds.

    Args:
        curve: Round -> value.
        low: The value of the lowest bar.
        high: The value of the highest.

    Example:
        >>> spark({0: 0.1, 1: 0.5, 2: 0.9}, 0.1, 0.9)
        '▁▅█'
    """
    values = [curve[r] for r in sorted(curve)]
    count = min(len(values), WIDE)
    bounds = [len(values) * i // count for i in range(count + 1)] if count else []
    parts = [mean(values[a:b]) for a, b in pairwise(bounds)]
    steps = len(BARS) - 1
    return "".join(BARS[round((v - low) / ((high - low) or 1) * steps)] for v in parts)


def duration(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> duration(4.2), duration(312), duration(7900), duration(200000)
        ('4 s', '5 min', '2 h 12 min', '2 d 7 h')
    """
    seconds = max(seconds, 0)
    hours, minutes = divmod(round(seconds / 60), 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
