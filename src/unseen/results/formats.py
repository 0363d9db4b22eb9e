"""A table's rows of (text, mark) as plain text, Markdown, LaTeX or csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from unseen.results.metric_name import MetricName
from unseen.results.statistics import RESAMPLES

#: The header, then a row per method; a field is its text and what it is among its column.
Rows = Sequence[Sequence[tuple[str, str]]]
BEST, SECOND, PLAIN = "best", "second", ""
LEGEND = (
    "bold: the best mean among the methods, underlined: the second best; neither says anything of "
    "significance"
)
#: Rows that one page of LaTeX holds.
PAGE = 40
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "|": r"\textbar{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "×": r"$\times$", "−": "$-$",
}  # fmt: skip


def plain(title: str, grids: Sequence[Rows], notes: Sequence[str]) -> str:
    """Plain text, columns aligned, an empty line between grids."""
    tables = ["\n".join(_aligned(rows)) for rows in grids]
    return "\n".join([*filter(None, [title]), "\n\n".join(tables), *notes])


def _aligned(rows: Rows) -> list[str]:
    texts = [[line(text) for text, _ in row] for row in rows]
    first, *widths = (max(map(len, column)) for column in zip(*texts, strict=True))
    lines = ["  ".join([r[0].ljust(first), *map(str.rjust, r[1:], widths)]) for r in texts]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def markdown(title: str, grids: Sequence[Rows], notes: Sequence[str]) -> str:
    """Tables as GitHub reads them: best bold, second best underlined."""
    tags = {PLAIN: "{}", BEST: "**{}**", SECOND: "<ins>{}</ins>"}
    lines = [f"**{_markdown(title)}**", ""] if title else []
    for rows in grids:
        header, *body = [[tags[mark].format(_markdown(text)) for text, mark in row] for row in rows]
        fields = [header, [":--", *["--:"] * (len(header) - 1)], *body]
        lines += [*(f"| {' | '.join(row)} |" for row in fields), ""]
    return "\n".join(lines + [f"- {_markdown(note)}" for note in notes]) + "\n"


def latex(caption: str, grids: Sequence[Rows], notes: Sequence[str], unit: str = "target") -> str:
    """Tables for the package booktabs: best bold, second best underlined.

    Further grids are tables of their own, the notes under the first; none is longer than a page.
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
    """Raw fields as csv, which has no place for notes."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def scale_of(metric: str) -> int:
    """Return the unit of what is shown over that of the records."""
    return MetricName.parse(metric).scale


def decimals(metric: str, largest: float = 0.0) -> int:
    """How many a number is shown with. largest: the largest that stands beside it.

    >>> decimals("accuracy"), decimals("rmse", 4.2), decimals("rmse", 1234.5), decimals("loss", 2e8)
    (1, 3, 1, 0)
    """
    if scale_of(metric) == 100:
        return 1
    return 3 if largest < 1000 else 1 if largest < 100_000 else 0


def caption(metric: str, seeds: int, spread: str, lower: bool) -> str:
    """What a number is and over how many seeds; one seed is marked as such."""
    error, interval = "± standard error", f"[95% bootstrap interval, {RESAMPLES} samples]"
    over = f"mean {interval if spread == 'interval' else error} over {seeds} seeds"
    if seeds == 1:
        over = "one seed: no standard error, differences may be noise"
    units = {1: "", 10: " in nats x 10", 100: " in percent", 1000: " x 1000"}
    unit = units[scale_of(metric)]
    return f"{metric}{unit}, {over}; {'lower' if lower else 'higher'} is better"


def line(text: str) -> str:
    """The text on one line, single spaces."""
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<~])", r"\\\1", line(text))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in line(text))
