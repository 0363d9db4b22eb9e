"""A bar of what is done: a line that moves in a terminal, an output that changes in a notebook.

In a notebook rich needs ipywidgets, and a saved notebook then holds a widget that nothing draws.
Our bar there is plain text in one output of the cell, and ends as one short line.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

#: (how many are done, what is at work).
Shown = Callable[[int, str], None]
#: Characters of a notebook's bar, and the fewest seconds between two drawings of it.
WIDTH, PAUSE = 40, 0.2


@contextmanager
def progress_bar(total: int, count: int, unit: str, visible: bool) -> Iterator[Shown]:
    """Show a bar, with the time left.

    Args:
        total: How many there are.
        count: How many are done already.
        unit: What is counted, such as `jobs`.
        visible: Whether there is a bar where somebody can see it; in a file there is none.
    """
    console = Console()
    if not (visible and (console.is_terminal or console.is_jupyter)):
        yield lambda count, text: None
        return
    open_bar = _in_notebook if console.is_jupyter else _in_terminal
    with open_bar(total, count, unit) as show:
        yield show


@contextmanager
def _in_terminal(total: int, count: int, unit: str) -> Iterator[Shown]:
    from rich import progress as rich

    times = (rich.TimeElapsedColumn(), "left:", rich.TimeRemainingColumn())
    columns = ("{task.description}", rich.BarColumn(), rich.MofNCompleteColumn(), unit, *times)
    # Ten drawings a second, as usual, take a tenth of a core from what they tell of.
    with rich.Progress(*columns, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("running", total=total, completed=count)
        yield lambda count, text: progress.update(task, completed=count, description=text)


@contextmanager
def _in_notebook(total: int, count: int, unit: str) -> Iterator[Shown]:
    from IPython.display import display

    start = moment = time.monotonic()
    last = count

    def draw(line: str) -> None:
        handle.update({"text/plain": line}, raw=True)

    def show(reached: int, text: str) -> None:
        nonlocal moment, last
        last, now = reached, time.monotonic()
        if now - moment >= PAUSE:
            moment, gain = now, reached - count
            left = (now - start) / gain * (total - reached) if gain > 0 else None
            draw(line_of(reached, total, unit, now - start, left, text))

    bundle = {"text/plain": line_of(count, total, unit, 0.0, None, "")}
    handle = display(bundle, raw=True, display_id=True)
    try:
        yield show
    finally:
        draw(f"{last} of {total} {unit} in {clock(time.monotonic() - start)}")


def line_of(count: int, total: int, unit: str, past: float, left: float | None, text: str) -> str:
    """Return a notebook's line.

    Example:
        >>> line_of(1, 4, "jobs", 61.0, 183.0, "fedavg")[WIDTH:]
        ' 1/4 jobs · 1:01, left: 3:03 · fedavg'
    """
    filled = round(WIDTH * min(1.0, count / total)) if total else WIDTH
    bar = "█" * filled + "░" * (WIDTH - filled)
    remaining = "?" if left is None else clock(left)
    line = f"{bar} {count}/{total} {unit} · {clock(past)}, left: {remaining}"
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
