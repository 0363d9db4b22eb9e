"""A table of more tasks than columns fit: summaries by method, and the tasks turned into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from unseen.results.formats import PLAIN, Rows

#: Tasks that Markdown, LaTeX, plain text and the report show as columns.
LIMIT = 12
#: Methods that stand side by side where tasks are rows in these.
BLOCK = 8


def parts(rows: Rows, tasks: int, corner: str) -> tuple[Rows, Rows]:
    """The columns behind the first `tasks` ones, and these turned: a row each, methods as columns.

    Methods, or published rows, without any figure in a part are not in it.

    >>> rows = [["method", "a", "b", "average"], ["fedavg", "1", "2", "1.5"], ["old", "3", "", ""]]
    >>> first, second = parts([[(text, "") for text in row] for row in rows], 2, "target")
    >>> [[text for text, _ in row] for row in first]
    [['method', 'average'], ['fedavg', '1.5']]
    >>> [[text for text, _ in row] for row in second]
    [['target', 'fedavg', 'old'], ['a', '1', '3'], ['b', '2', '']]
    """
    header, *body = rows
    summed = [[row[0], *row[1 + tasks :]] for row in body]
    sited = [row[: 1 + tasks] for row in body]
    kept = [row for row in sited if any(text for text, _ in row[1:])]
    columns = [[(corner, PLAIN), *header[1 : 1 + tasks]], *kept]
    turned = [list(row) for row in zip(*columns, strict=True)]
    summaries = [row for row in summed if any(text for text, _ in row[1:])]
    return [[header[0], *header[1 + tasks :]], *summaries], turned


def blocks(rows: Rows, columns: int) -> list[Rows]:
    """The rows cut into some of at most so many columns, each beginning with the first."""
    ends = range(1, len(rows[0]), columns)
    return [[[row[0], *row[i : i + columns]] for row in rows] for i in ends]


def fitted(rows: Rows, width: int, measure: Callable[[str], int]) -> Iterator[Rows]:
    """The rows cut so that each piece is at most `width` wide, with two spaces between columns."""
    widths = [max(measure(row[j][0]) for row in rows) for j in range(len(rows[0]))]
    first = 1
    while first < len(widths):
        end, used = first, widths[0]
        while end < len(widths) and (end == first or used + 2 + widths[end] <= width):
            used += 2 + widths[end]
            end += 1
        yield [[row[0], *row[first:end]] for row in rows]
        first = end


def wide(rows: Rows, measure: Callable[[str], int]) -> int:
    """How wide the rows are, uncut."""
    columns = zip(*rows, strict=True)
    return sum(2 + max(measure(text) for text, _ in column) for column in columns) - 2


def keys(rows: Rows, limit: int, measure: Callable[[str], int]) -> dict[str, str]:
    """Name -> the number that stands for it, of the names longer than `limit`: those at the left
    and at the top."""
    names = dict.fromkeys([row[0][0] for row in rows] + [text for text, _ in rows[0]])
    long = [name for name in names if measure(name) > limit]
    return {name: f"[{i}]" for i, name in enumerate(long, 1)}


def keyed(rows: Rows, names: Mapping[str, str]) -> Rows:
    """The rows with numbers for their long names."""
    header, *body = rows
    top = [(names.get(text, text), mark) for text, mark in header]
    return [top, *([(names.get(t, t), m), *row] for (t, m), *row in body)]


def length(pieces: Sequence[Rows]) -> int:
    """Lines that the pieces take in a terminal: each with a rule and an empty line."""
    return sum(len(rows) + 2 for rows in pieces)
