"""What the four papers printed: every number of their tables as text, and what they come from.

>>> found = table("csac/table1")
>>> found.columns[0], found.rows["FedAvg"][0]
('M0', Figure(text='82.60', error='0.44'))
>>> table("csac/table4/vlcs").rows["Semantic average"][-1].text
'75.25'

A table whose rows or columns come in groups has these as parts, `csac/table2/alexnet`,
`ga/table1/pacs`. Pure functions over the package's files; nothing here is computed by training.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

from unseen.errors import UnseenError, nearest

__all__ = [
    "Figure",
    "Inconsistent",
    "Table",
    "captions",
    "contents",
    "inconsistent",
    "table",
    "tables",
]

PAPERS = ("ppdg", "csac", "fedilc", "ga")
#: The unit of tables of tests: p, and h = 1 where it is below 0.05.
TESTS = "p/h"


@dataclass(frozen=True)
class Figure:
    """A printed number: its digits as printed, and those of its standard error, if there is one.

    >>> str(Figure("0.780", "0.001")), Figure("0.780", "0.001").times(100)
    ('0.780 ± 0.001', Figure(text='78.0', error='0.1'))
    """

    text: str
    error: str | None = None

    @property
    def value(self) -> Decimal:
        """The number; of p / h (PPDG's Table 7) the p, of degrees the angle."""
        return Decimal(self.text.partition("/")[0].removesuffix("°"))

    def times(self, power: int) -> Figure:
        """The same digits in another unit; power: a power of ten, 100 for percent."""
        shift = Decimal(power).adjusted()
        texts = [t and str(Decimal(t).scaleb(shift)) for t in (self.text, self.error)]
        return Figure(texts[0] or "", texts[1])

    def __str__(self) -> str:
        return self.text if self.error is None else f"{self.text} ± {self.error}"


@dataclass(frozen=True)
class Table:
    """One table, or a part of one.

    columns: as printed, so names may repeat over the groups. tasks, metrics: what studies call a
    column and what is measured there, "" where they have no counterpart. groups: name -> number of
    columns. rows: label -> a figure per column; grouped rows are labelled `group/label`. cited:
    rows taken from other papers. average: the name of columns that are means of others. error: what
    stands after ±. environments: our names of the rows, where rows are environments and columns
    methods. studies: those that make it. methods: label -> the method of ours that makes the
    row, with the options that set it apart from other rows; one list for all tables of a paper.
    """

    name: str
    caption: str
    unit: str
    columns: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[Figure, ...]]
    groups: Mapping[str, int]
    cited: tuple[str, ...] = ()
    average: str = ""
    error: str = ""
    environments: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()
    methods: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many numbers; a standard error belongs to its number."""
        return sum(len(row) for row in self.rows.values())

    @property
    def parts(self) -> tuple[str, ...]:
        """Groups of columns, and of rows."""
        rows = dict.fromkeys(label.partition("/")[0] for label in self.rows if "/" in label)
        return (*self.groups, *rows)

    def part(self, name: str) -> Table:
        """The columns, or the rows, of one group."""
        if name not in self.parts:
            raise nearest(f"part of {self.name}", name, self.parts)
        if name not in self.groups:
            return replace(
                self,
                name=f"{self.name}/{name}",
                rows={k.partition("/")[2]: v for k, v in self.rows.items() if _in(k, name)},
                cited=tuple(k.partition("/")[2] for k in self.cited if _in(k, name)),
            )
        at = self.span(name)
        return replace(
            self,
            name=f"{self.name}/{name}",
            columns=self.columns[at],
            tasks=self.tasks[at],
            metrics=self.metrics[at],
            rows={label: row[at] for label, row in self.rows.items()},
            groups={},
        )

    def span(self, group: str) -> slice:
        """Where the columns of a group stand."""
        names = list(self.groups)
        start = sum(self.groups[name] for name in names[: names.index(group)])
        return slice(start, start + self.groups[group])

    def shown(self) -> dict[str, dict[str, dict[str, Figure]]]:
        """metric -> row -> task -> figure in the units of our tables, without cited rows."""
        if self.environments:
            return self._turned().shown()
        places = [place for place in zip(self.metrics, self.tasks, strict=True) if all(place)]
        if len(set(places)) < len(places):
            raise self._several("columns")
        found: dict[str, dict[str, dict[str, Figure]]] = {}
        for label, row in self.rows.items():
            if label in self.cited:
                continue
            for metric, task, figure in zip(self.metrics, self.tasks, row, strict=True):
                if metric and task:
                    percent = self.unit == "share" and "accuracy" in metric
                    texts = found.setdefault(metric, {}).setdefault(label, {})
                    texts[task] = figure.times(100) if percent else figure
        return found

    def _turned(self) -> Table:
        """The same figures with a row per method and a column per environment."""
        columns = zip(*self.rows.values(), strict=True)
        return replace(
            self,
            columns=tuple(self.rows),
            tasks=self.environments,
            metrics=self.metrics[:1] * len(self.rows),
            rows=dict(zip(self.columns, columns, strict=True)),
            environments=(),
        )

    def tests(self) -> dict[str, str]:
        """label -> p/h, where this is a table of tests: its one row, with methods as columns."""
        if self.unit != TESTS:
            return {}
        if len(self.rows) > 1:
            raise self._several("rows")
        (row,) = self.rows.values()
        return {label: figure.text for label, figure in zip(self.columns, row, strict=True)}

    def _several(self, what: str) -> UnseenError:
        return UnseenError(
            f"{self.name} has {what} of several data sets; name one part of it, such as "
            f"{self.name}/{self.parts[0]}. Parts: {', '.join(self.parts)}."
        )


@dataclass(frozen=True)
class Inconsistent:
    """An average that rounding cannot explain: it does not follow from its printed cells."""

    table: str
    row: str
    column: str
    printed: str
    recomputed: str


def table(name: str) -> Table:
    """A table by name, `csac/table1`, or a part of it, `csac/table4/pacs`."""
    known = tables()
    head, _, part = name.partition("/table")
    number, _, part = part.partition("/")
    whole = f"{head}/table{number}"
    if whole not in known:
        raise nearest("published table", name, known)
    return known[whole].part(part) if part else known[whole]


@cache
def tables() -> Mapping[str, Table]:
    """Every table of the four papers by name, in the order of the papers."""
    entries = ((paper, key, entry) for paper in PAPERS for key, entry in _entries(paper).items())
    return {
        f"{p}/{key}": _read(f"{p}/{key}", entry, _file(p)["methods"])
        for p, key, entry in entries
        if "rows" in entry
    }


def contents() -> dict[str, tuple[str, ...]]:
    """Tables and data figures -> the studies whose records they are made from.

    Sub-tables count as one: `fedilc/table4` is both a and b.
    """
    found: dict[str, tuple[str, ...]] = {}
    for paper in PAPERS:
        for key, entry in _entries(paper).items():
            name = f"{paper}/{key.rstrip('ab')}"
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *entry["studies"])))
    return found


def captions() -> dict[str, str]:
    """Tables and data figures -> what they show, in our words."""
    return {f"{p}/{key}": entry["caption"] for p in PAPERS for key, entry in _entries(p).items()}


def inconsistent() -> tuple[Inconsistent, ...]:
    """The averages that do not follow from their cells: they differ from the mean of the printed
    cells by more than half a last digit of the cells and half of their own."""
    return tuple(
        Inconsistent(found.name, label, found.columns[at], row[at].text, str(_short(mean, row[at])))
        for found in tables().values()
        for label, row in found.rows.items()
        for at, cells in _averages(found)
        if abs(row[at].value - (mean := _mean([row[i] for i in cells])))
        > (_digit(row[at]) + max(_digit(row[i]) for i in cells)) / 2
    )


def _averages(found: Table) -> Iterator[tuple[int, list[int]]]:
    """Columns that are means, with those that they are means of.

    An average is over its group; one that stands in a group by itself is over the last columns of
    all other groups.
    """
    spans = [found.span(name) for name in found.groups] or [slice(0, len(found.columns))]
    for span in spans:
        inside = list(range(span.start, span.stop))
        at = inside[-1]
        if not found.average or found.columns[at] != found.average:
            continue
        others = [other.stop - 1 for other in spans if other != span]
        yield at, inside[:-1] or others


def _mean(figures: Sequence[Figure]) -> Decimal:
    return sum((f.value for f in figures), Decimal()) / len(figures)


def _short(mean: Decimal, like: Figure) -> Decimal:
    """A mean with two digits more than the figure it stands beside."""
    return mean.quantize(_digit(like) / 100)


def _digit(figure: Figure) -> Decimal:
    """One unit of the last digit."""
    return Decimal(1).scaleb(int(figure.value.as_tuple().exponent))


def _in(label: str, group: str) -> bool:
    return label.partition("/")[0] == group


@cache
def _file(paper: str) -> Mapping[str, Any]:
    text = (resources.files("unseen.spec.published") / f"{paper}.toml").read_text("utf-8")
    return tomllib.loads(text)


def _entries(paper: str) -> Mapping[str, Any]:
    """Tables and figures."""
    return {key: entry for key, entry in _file(paper).items() if "caption" in entry}


def _read(name: str, entry: Mapping[str, Any], methods: Mapping[str, str]) -> Table:
    columns = tuple(entry["columns"])
    rows: dict[str, tuple[Figure, ...]] = {}
    for label, found in entry["rows"].items():
        group = {label: found} if isinstance(found, list) else found
        prefix = "" if isinstance(found, list) else f"{label}/"
        rows |= {prefix + key: tuple(map(_figure, texts)) for key, texts in group.items()}
    return Table(
        name,
        entry["caption"],
        entry["unit"],
        columns,
        tuple(entry.get("tasks", [""] * len(columns))),
        tuple(entry.get("metrics", [entry.get("metric", "")] * len(columns))),
        rows,
        entry.get("groups", {}),
        tuple(entry.get("cited", ())),
        entry.get("average", ""),
        entry.get("error", ""),
        tuple(entry.get("environments", ())),
        tuple(entry["studies"]),
        methods,
    )


def _figure(text: str) -> Figure:
    value, _, error = text.partition(" ± ")
    return Figure(value, error or None)
