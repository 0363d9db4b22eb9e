"""A bar of what is done: a line that moves in a terminal, an output that changes in a notebook.

In a notebook rich needs ipywidgets, and a saved notebook then holds a widget that nothing draws.
Our bar there is plain text in one output of the cell, and ends as one short line. A file gets a
line every half minute.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Protocol

from rich.console import Console

#: Characters of a notebook's bar, and the fewest seconds between two drawings of it.
WIDTH, PAUSE = 40, 0.2
#: Seconds between two lines of a file; the variable says how many, for programs that follow them.
LINE = float(os.environ.get("UNSEEN_PROGRESS_SECONDS", "30"))


class Shown(Protocol):
    """Shows how far the work is.

    Args:
        count: How many are done.
        text: What ended last.
        total: How many there are, if that has changed.
        left: Seconds that the rest takes, where that is known better than by the mean.
    """

    def __call__(
        self, count: int, text: str, /, total: int | None = None, left: float | None = None
    ) -> None: ...


@dataclass(frozen=True)
class Reached:
    """How far the work is.

    Attributes:
        total: How many there are.
        unit: What is counted.
        count: How many are done.
        first: How many were done at the start.
        text: What ended last.
        past: Seconds since the start.
        exact: Seconds that the rest takes, where that is known; None for the mean of those done.
    """

    total: int
    unit: str
    count: int
    first: int
    text: str = ""
    past: float = 0.0
    exact: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes; None where nothing has ended yet."""
        gain = self.count - self.first
        if self.exact is not None or gain <= 0:
            return self.exact
        return self.past / gain * (self.total - self.count)

    @property
    def line(self) -> str:
        """The line without a bar."""
        return line_of(self.count, self.total, self.unit, self.past, self.left, self.text)


@contextmanager
def progress_bar(total: int, count: int, unit: str, visible: bool) -> Iterator[Shown]:
    """Show a bar, with the time left.

    Args:
        total: How many there are.
        count: How many are done already.
        unit: What is counted, such as `jobs`.
        visible: Whether there is a bar; in a file it is a line every half minute.
    """
    if not visible:
        yield lambda count, text, total=None, left=None: None
        return
    console = Console()
    way = _in_notebook if console.is_jupyter else _in_log
    with (_in_terminal if console.is_terminal else way)(Reached(total, unit, count, count)) as draw:
        yield Drawing(Reached(total, unit, count, count), draw, time.monotonic())


@dataclass
class Drawing:
    """Draws how far the work is, each time that something ends; see `Shown`."""

    reached: Reached
    draw: Callable[[Reached], None]
    start: float = field(default_factory=time.monotonic)

    def __call__(
        self, count: int, text: str, /, total: int | None = None, left: float | None = None
    ) -> None:
        past = time.monotonic() - self.start
        own = total if total is not None else self.reached.total
        self.reached = replace(
            self.reached, count=count, text=text, total=own, past=past, exact=left
        )
        self.draw(self.reached)


@contextmanager
def _in_terminal(first: Reached) -> Iterator[Callable[[Reached], None]]:
    from rich import progress as rich
    from rich.text import Text

    class Left(rich.ProgressColumn):
        """Counts down from the time that was left when something ended last."""

        def render(self, task: rich.Task) -> Text:
            left, at = task.fields["left"], task.fields["at"]
            past = (task.elapsed or 0.0) - at
            return Text("left: ?" if left is None else f"left: {clock(max(0.0, left - past))}")

    columns = (
        "{task.description}",
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        first.unit,
        rich.TimeElapsedColumn(),
        Left(),
    )
    # Ten drawings a second, as usual, take a tenth of a core from what they tell of.
    with rich.Progress(*columns, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(
            "running", total=first.total, completed=first.count, left=None, at=0.0
        )
        yield lambda now: progress.update(
            task,
            completed=now.count,
            total=now.total,
            description=now.text or "running",
            left=now.left,
            at=now.past,
        )


@contextmanager
def _in_log(first: Reached) -> Iterator[Callable[[Reached], None]]:
    latest, start, ended = [first], time.monotonic(), Event()

    def write() -> None:
        while not ended.wait(LINE):
            now = replace(latest[0], past=time.monotonic() - start)
            print(now.line, file=sys.stderr, flush=True)

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield lambda now: latest.__setitem__(0, now)
    finally:
        ended.set()
        writer.join()


@contextmanager
def _in_notebook(first: Reached) -> Iterator[Callable[[Reached], None]]:
    from IPython.display import display

    latest, start = first, time.monotonic()
    moment = start

    def draw(now: Reached) -> None:
        nonlocal latest, moment
        latest = now
        if start + now.past - moment >= PAUSE:
            moment = start + now.past
            handle.update({"text/plain": f"{bar_of(now)} {now.line}"}, raw=True)

    handle = display({"text/plain": f"{bar_of(first)} {first.line}"}, raw=True, display_id=True)
    try:
        yield draw
    finally:
        text = (
            f"{latest.count} of {latest.total} {latest.unit} in {clock(time.monotonic() - start)}"
        )
        handle.update({"text/plain": text}, raw=True)


def bar_of(now: Reached) -> str:
    """Return a notebook's bar."""
    filled = round(WIDTH * min(1.0, now.count / now.total)) if now.total else WIDTH
    return "█" * filled + "░" * (WIDTH - filled)


def line_of(count: int, total: int, unit: str, past: float, left: float | None, text: str) -> str:
    """Return the line of a notebook or a file.

    Example:
        >>> line_of(1, 4, "jobs", 61.0, 183.0, "fedavg")
        '1/4 jobs · 1:01, left: 3:03 · fedavg'
    """
    line = f"{count}/{total} {unit} · {clock(past)}, left: {'?' if left is None else clock(left)}"
    return f"{line} · {text}" if text else line


def clock(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are some.

    Example:
        >>> clock(61), clock(3_661)
        ('1:01', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
