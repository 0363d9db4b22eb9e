"""The answer as one page that opens from disk: a headline, a dot plot of recipes, what it cost."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from unseen.core.atomic import write_atomically
from unseen.core.templates import render
from unseen.expression import parse
from unseen.studies.choice.answer import Choice, Row
from unseen.studies.choice.choice_page import (
    SERVER,
    against_constant,
    against_primary,
    against_references,
    next_command,
    page,
    size,
    whole_range,
)
from unseen.studies.choice.expectation import LEVEL
from unseen.studies.choice.terminal_answer import NAMES, to_know_more
from unseen.studies.choice.terminal_answer import why as reason_for
from unseen.studies.choice.texts import chance_text, figure_text
from unseen.studies.choice.trials import ALONE, BASE, CONSTANT, POOLED, REFERENCES
from unseen.studies.report import theme
from unseen.studies.results.metric_name import MetricName
from unseen.version import __version__

#: The page.
HTML = "choice.html"
#: Radii of the smallest and the largest site's dot, in pixels.
RADII = (2.0, 6.0)


class Dot(NamedTuple):
    """A site in the plot: its place in percent of the width, its radius in pixels, and words."""

    x: float
    radius: float
    title: str


class Bar(NamedTuple):
    """A recipe in the plot, places in percent of the width.

    Attributes:
        recipe: Its name.
        kind: `recommended`, `reference` or "".
        low, mean, high: The interval and its middle.
        text: The figure and its interval.
        dots: The sites.
        facts: What the server sees, what a site sends, seconds, the chance to be better than
            `BASE`.
    """

    recipe: str
    kind: str
    low: float
    mean: float
    high: float
    text: str
    dots: Sequence[Dot]
    facts: Sequence[str]


def html(choice: Choice, next_command: str) -> str:
    """Return the page.

    Args:
        choice: The answer.
        next_command: What to type next.
    """
    row = choice.row(choice.recipe)
    expected = row.expected
    figure = partial(figure_text, metric=choice.metric, largest=abs(expected.high))
    notes = [
        *against_references(choice),
        *(f"{x[0].upper()}{x[1:]}." for x in to_know_more(choice)[:1]),
        *choice.changes,
        *(f"Not judged: {n}, which {why}." for n, why in choice.refused.items()),
        *not_tried(choice),
    ]
    low, high = ends(choice)
    facts = [
        (choice.recipe, "recommended recipe"),
        (f"{figure(expected.mean)}", f"{choice.metric} at a new site"),
        (f"{figure(expected.low)} to {figure(expected.high)}", f"{LEVEL:.0%} of new sites"),
        *(
            (chance_text(chance), f"chance to be better than {NAMES.get(name, name)}")
            for name, chance in row.against.items()
        ),
    ]
    return render(
        "unseen.studies.choice",
        "choice.html.jinja",
        title=title_of(choice),
        about=about(choice),
        facts=facts,
        compared=reason_for(choice),
        bars=bars(choice),
        before=before(choice),
        primary=" ".join(against_primary(choice)),
        ends=(figure(low), figure(high)),
        metric=choice.metric,
        level=f"{LEVEL:.0%}",
        notes=notes,
        command=next_command,
        base=BASE,
        version=__version__,
        theme=theme,
        style=(resources.files("unseen.studies.report") / "style.css").read_text("utf-8"),
    )


def before(choice: Choice) -> list[str]:
    """Return the warnings that come before the figure."""
    content = choice.to_json()
    open_ends = [f"Not finished: {name}, {reason}." for name, reason in choice.unfinished.items()]
    return [*choice.doubts, *whole_range(content), *against_constant(content), *open_ends]


def not_tried(choice: Choice) -> list[str]:
    """Return a sentence on the recipes that were not played."""
    names = [name + (f" ({more})" if more else "") for name, more in choice.not_tried.items()]
    return [f"Not tried: {', '.join(names)}. A larger --budget plays them."] if names else []


def title_of(choice: Choice) -> str:
    """Return the name of the data: of a table its file's, without the folder."""
    path = options_of_data(choice).get("path")
    name = choice.study.get("name", choice.data.split()[0])
    return PurePath(path).name if isinstance(path, str) else str(name)


def options_of_data(choice: Choice) -> Mapping[str, Any]:
    """Return the options of the data set's expression."""
    dataset = choice.study.get("dataset")
    return parse(str(dataset))[0].arguments if dataset else {}


def about(choice: Choice) -> str:
    """Return which label is predicted, and at which sites."""
    label, sites = options_of_data(choice).get("label"), sorted(choice.rows_at)
    named = f"label {label}; " if isinstance(label, str) else ""
    names = ", ".join(sites[:8]) + (f" and {len(sites) - 8} more" if len(sites) > 8 else "")
    return f"{named}{len(sites)} sites: {names}"


def ends(choice: Choice) -> tuple[float, float]:
    """Return the ends of the plot: all intervals and figures, with a little room."""
    values = [v for row in choice.rows for v in (row.expected.low, row.expected.high)]
    values += [v for figures in choice.figures.values() for v in figures.values()]
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 1.0
    first, last = MetricName.parse(choice.metric).range or (low - room, high + room)
    return max(low - room, first), min(high + room, last)


def bars(choice: Choice) -> list[Bar]:
    """Return the recipes, best first."""
    low, high = ends(choice)

    def place(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    return [bar(choice, row, place) for row in choice.rows]


def bar(choice: Choice, row: Row, place: Callable[[float], float]) -> Bar:
    """Return one recipe with its sites."""
    figure = partial(figure_text, metric=choice.metric, largest=abs(row.expected.high))
    most = max(choice.rows_at.values(), default=1)
    least, largest = RADII
    dots = [
        Dot(
            place(value),
            round(least + (largest - least) * (choice.rows_at.get(site, 0) / most) ** 0.5, 1),
            f"{site}: {figure(value)} ({choice.rows_at.get(site, 0):,} rows)",
        )
        for site, value in choice.figures[row.recipe].items()
    ]
    kind = "recommended" if row.recipe == choice.recipe else ""
    kind = kind or ("reference" if row.recipe in REFERENCES else "")
    sees = {ALONE: "", CONSTANT: "", POOLED: "all rows"}.get(row.recipe, SERVER[row.sees])
    chance = row.against.get(BASE)
    facts = (
        sees,
        size(row.sent),
        f"{row.seconds:.1f}" if row.recipe != CONSTANT else "",
        chance_text(chance) if chance is not None else "",
    )
    own = row.expected
    text = f"{figure(own.mean)} ({figure(own.low)} to {figure(own.high)})"
    return Bar(
        row.recipe, kind, place(own.low), place(own.mean), place(own.high), text, dots, facts
    )


#: The page to read, and the data.
PAGE, DATA = "choice.md", "choice.json"


class Written(NamedTuple):
    """Where the files of an answer are."""

    html: Path
    page: Path
    data: Path


def write(choice: Choice, factors: Sequence[float], folder: Path) -> Written:
    """Write the pages and the file that `unseen train --recipe` reads.

    Args:
        choice: The answer.
        factors: What learning rates were multiplied by.
        folder: Where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Written(folder / HTML, folder / PAGE, folder / DATA)
    data = json.dumps(choice.to_json(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(files.page, page(choice, factors).encode())
    write_atomically(files.html, html(choice, next_command(files.data)).encode())
    write_atomically(files.data, data.encode())
    return files
