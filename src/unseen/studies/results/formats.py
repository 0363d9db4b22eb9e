"""A table's rows of (text, mark) as plain text, Markdown, LaTeX, csv or lines of a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from unseen.studies.results.metric_name import MetricName

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

#: The header, then a row per method; a field is its text and its mark within the column.
Rows = Sequence[Sequence[tuple[str, str]]]
#: How many columns of a terminal a text takes.
Measure = Callable[[str], int]
BEST, SECOND, PLAIN = "best", "second", ""
LEGEND = (
    "bold: the best mean among the methods, underlined: the second best; neither says anything of "
    "significance"
)
#: How many tasks Markdown, LaTeX, plain text and the report show as columns; where there are more,
#: tasks are rows, with at most `BLOCK` methods side by side.
LIMIT, BLOCK = 12, 8
#: How many rows a page of LaTeX holds.
PAGE = 40
#: How many lines the targets may take in a terminal; more of them are only in files.
LINES = 200
#: A number replaces a name that is longer than this share of the terminal's width.
SHARE = 3
STYLES = {PLAIN: "", BEST: "bold", SECOND: "underline"}
UNITS = {1: "", 10: " in nats x 10", 100: " in percent", 1000: " x 1000"}
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "|": r"\textbar{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
}


def plain(title: str, grids: Sequence[Rows], notes: Sequence[str]) -> str:
    """Return plain text with aligned columns, and an empty line between grids."""
    tables = []
    for rows in grids:
        fields = _aligned(_flat(rows), len)
        header, *body = ("".join(blanks + text for blanks, text, _ in row) for row in fields)
        tables.append("\n".join([header, "-" * len(header), *body]))
    return "\n".join([*filter(None, [title]), "\n\n".join(tables), *notes])


def markdown(title: str, grids: Sequence[Rows], notes: Sequence[str]) -> str:
    """Return tables as GitHub reads them: the best bold, the second best underlined."""
    tags = {PLAIN: "{}", BEST: "**{}**", SECOND: "<ins>{}</ins>"}
    lines = [f"**{_markdown(title)}**", ""] if title else []
    for rows in grids:
        header, *body = [[tags[mark].format(_markdown(text)) for text, mark in row] for row in rows]
        fields = [header, [":--", *["--:"] * (len(header) - 1)], *body]
        lines += [*(f"| {' | '.join(row)} |" for row in fields), ""]
    return "\n".join(lines + [f"- {_markdown(note)}" for note in notes]) + "\n"


def latex(caption: str, grids: Sequence[Rows], notes: Sequence[str], unit: str = "target") -> str:
    """Return tables for the package booktabs: the best bold, the second best underlined.

    Args:
        caption: Above the first table, and the beginning of the captions of the others.
        grids: The tables; all but the first are cut into tables of at most a page.
        notes: Lines under the first table.
        unit: What a row of the other tables is.
    """
    first, *others = grids
    floats = [_float(caption, first, notes)]
    for rows in others:
        header, *body = rows
        names = f"{header[1][0]} to {header[-1][0]}" if len(header) > 2 else header[1][0]
        pieces = [body[i : i + PAGE] for i in range(0, len(body), PAGE)]
        floats += [_float(f"{caption}; by {unit}, {names}", [header, *p], []) for p in pieces]
    return "\n".join(floats)


def _float(caption: str, rows: Rows, notes: Sequence[str]) -> str:
    tags = {PLAIN: "{}", BEST: r"\textbf{{{}}}", SECOND: r"\underline{{{}}}"}
    fields = [[tags[mark].format(_latex(text)) for text, mark in row] for row in rows]
    header, *body = (" & ".join(row) + r" \\" for row in fields)
    tabular = rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}", tabular]
    lines += [r"\toprule", header, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    lines += [r"\par\smallskip"] if notes else []
    lines += [rf"{{\footnotesize\raggedright {_latex(note)}\par}}" for note in notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def comma_separated(rows: Iterable[Sequence[object]]) -> str:
    """Return raw fields as csv, which has no place for notes."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


@dataclass(frozen=True)
class Terminal:
    """A table that rich prints as wide as the terminal is, without breaking a figure or a name.

    Attributes:
        title: Above the table.
        rows: The whole table, shown where it fits.
        summaries: One row per method, shown with `turned` where `rows` does not fit.
        turned: One row per target.
        notes: Lines under the table.
        tail: The note on the percentile, which only the summaries may have.
        legend: What bold and underlined mean.
    """

    title: str
    rows: Rows
    summaries: Rows
    turned: Rows
    notes: Sequence[str]
    tail: Sequence[str]
    legend: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield every line by itself."""
        from rich.cells import cell_len
        from rich.text import Text

        tables, notes = self.fitted(options.max_width, cell_len)
        if self.title:
            yield Text(self.title, "bold")
        for rows in tables:
            yield Text()
            for i, row in enumerate(_aligned(rows, cell_len)):
                line = Text(no_wrap=True)
                for blanks, text, mark in row:
                    line.append(blanks).append(text, STYLES[mark])
                yield line
                if i == 0:
                    yield Text("─" * line.cell_len, no_wrap=True)
        yield Text()
        yield from map(Text, notes)

    def fitted(self, width: int, measure: Measure) -> tuple[list[Rows], list[str]]:
        """Return the tables that a terminal of this width shows, and the lines under them."""
        rows, summaries, turned = map(_flat, (self.rows, self.summaries, self.turned))
        first, *notes = self.notes
        under = [first, *self.legend]
        if sum(_widths(rows, measure)) <= width:
            return [rows], [*under, *notes]
        texts = dict.fromkeys([row[0][0] for row in rows] + [text for text, _ in rows[0]])
        long = [text for text in texts if measure(text) > width // SHARE]
        numbers = {name: f"[{i}]" for i, name in enumerate(long, 1)}
        keys = [f"{number}: {name}" for name, number in numbers.items()]
        short = _keyed(rows, numbers)
        if sum(_widths(short, measure)) <= width:
            return [short], [*keys, *under, *notes]
        cut = partial(_cut, width=width, measure=measure)
        tables, targets = (list(cut(_keyed(grid, numbers))) for grid in (summaries, turned))
        # Each piece has a rule and an empty line.
        if sum(len(piece) + 2 for piece in targets) > LINES:
            targets = []
            keys.append(
                f"the {len(turned) - 1} {turned[0][0][0]}s would take more than {LINES} lines here:"
                " they are in table.csv and table.md, and in --format csv or markdown"
            )
        return [*tables, *targets], [*keys, *under, *self.tail, *notes]


def parts(rows: Rows, tasks: int, corner: str) -> tuple[Rows, Rows]:
    """Split a table of many tasks into its summaries by method and its tasks as rows.

    Args:
        rows: The table.
        tasks: How many columns, after the first, are tasks.
        corner: The first field of the header in which methods are columns.

    Returns:
        The columns after the tasks, and the tasks as rows with methods as columns. Methods, or
        published rows, without any figure in a part are left out of it.

    Example:
        >>> rows = [["method", "a", "b", "average"], ["fedavg", "1", "2", "1.5"]]
        >>> rows.append(["old", "3", "", ""])
        >>> first, second = parts([[(text, "") for text in row] for row in rows], 2, "target")
        >>> [[text for text, _ in row] for row in first]
        [['method', 'average'], ['fedavg', '1.5']]
        >>> [[text for text, _ in row] for row in second]
        [['target', 'fedavg', 'old'], ['a', '1', '3'], ['b', '2', '']]
    """

    def with_figures(rows: Rows) -> Rows:
        header, *body = rows
        return [header, *(row for row in body if any(text for text, _ in row[1:]))]

    at_tasks = [[(corner, PLAIN), *rows[0][1 : 1 + tasks]], *(row[: 1 + tasks] for row in rows[1:])]
    turned = [list(row) for row in zip(*with_figures(at_tasks), strict=True)]
    return with_figures([[row[0], *row[1 + tasks :]] for row in rows]), turned


def blocks(rows: Rows) -> list[Rows]:
    """Cut rows into pieces of at most `BLOCK` columns, each beginning with the first column."""
    starts = range(1, len(rows[0]), BLOCK)
    return [[[row[0], *row[i : i + BLOCK]] for row in rows] for i in starts]


def _cut(rows: Rows, width: int, measure: Measure) -> Iterator[Rows]:
    """Cut rows into pieces of at most `width`, each beginning with the first column."""
    widths = _widths(rows, measure)
    first = 1
    while first < len(widths):
        end, total = first + 1, widths[0] + widths[first]
        while end < len(widths) and total + widths[end] <= width:
            total += widths[end]
            end += 1
        yield [[row[0], *row[first:end]] for row in rows]
        first = end


def _widths(rows: Rows, measure: Measure) -> list[int]:
    """Return the width of each column, with two spaces before all but the first."""
    columns = enumerate(zip(*rows, strict=True))
    return [2 * (j > 0) + max(measure(text) for text, _ in column) for j, column in columns]


def _aligned(rows: Rows, measure: Measure) -> Iterator[list[tuple[str, str, str]]]:
    """Yield each row as (blanks, text, mark): the first column to the left, others to the right."""
    widths = _widths(rows, measure)
    for (name, mark), *others in rows:
        fields = [("", name + " " * (widths[0] - measure(name)), mark)]
        for (text, mark), width in zip(others, widths[1:], strict=True):
            fields.append((" " * (width - measure(text)), text, mark))
        yield fields


def _keyed(rows: Rows, numbers: Mapping[str, str]) -> Rows:
    """Replace the long names in the first row and in the first column by their numbers."""
    header, *body = rows
    top = [(numbers.get(text, text), mark) for text, mark in header]
    return [top, *([(numbers.get(t, t), m), *row] for (t, m), *row in body)]


def _flat(rows: Rows) -> Rows:
    return [[(line(text), mark) for text, mark in row] for row in rows]


def scale_of(metric: str) -> int:
    """Return the unit of what is shown over that of the records."""
    return MetricName.parse(metric).scale


def decimals(metric: str, largest: float = 0.0) -> int:
    """Return how many decimals a number is shown with.

    Args:
        metric: The metric's name.
        largest: The largest absolute value of the numbers next to it.

    Example:
        >>> decimals("accuracy"), decimals("rmse", 4.2), decimals("rmse", 1234.5)
        (1, 3, 1)
        >>> decimals("loss", 2e8)
        0
    """
    if scale_of(metric) == 100:
        return 1
    return 3 if largest < 1000 else 1 if largest < 100_000 else 0


def caption(metric: str, seeds: int, lower: bool) -> str:
    """Return the line that says what a number is and over how many seeds.

    Args:
        metric: The metric's name.
        seeds: How many seeds there are; a single one is marked as such.
        lower: Whether less of the metric is better.
    """
    over = f"mean ± standard error over {seeds} seeds"
    if seeds == 1:
        over = "one seed: no standard error, differences may be noise"
    best = MetricName.parse(metric).best
    better = f"{'lower' if lower else 'higher'} is better" if best is None else f"best at {best}"
    return f"{metric}{UNITS[scale_of(metric)]}, {over}; {better}"


def counted(number: int, unit: str) -> str:
    """Return a number with its unit.

    Example:
        >>> counted(1, "epoch"), counted(5, "epoch")
        ('1 epoch', '5 epochs')
    """
    return f"{number} {unit}{'s' if number > 1 else ''}"


def line(text: str) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<~])", r"\\\1", line(text))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in line(text))
