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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from unseen.errors import UnseenError, check_known, nearest
from unseen.studies.settings.published import Exhibit, Figure

__all__ = [
    "Inconsistent", "Table", "captions", "contents", "exhibits", "inconsistent", "table", "tables",
]  # fmt: skip

PAPERS = ("ppdg", "csac", "fedilc", "ga")
#: The unit of tables of tests: p, and h = 1 where it is below 0.05.
TESTS = "p/h"


@dataclass(frozen=True)
class Table:
    """One table, or a part of one.

    Attributes:
        name: Its name, such as `csac/table1`.
        caption: What it shows, in our words.
        unit: Of its numbers.
        columns: As printed, so names may repeat over the groups.
        tasks, metrics: What studies call a column and what is measured there, "" where they have no
            counterpart.
        rows: Label -> a figure per column; grouped rows are labelled `group/label`.
        groups: Name -> number of columns.
        cited: Rows taken from other papers.
        average: The name of columns that are means of others.
        error: What stands after ±.
        environments: Our names of the rows, where rows are environments and columns methods.
        studies: Those that make it.
        methods: Label -> the method of ours that makes the row, with the options that set it apart
            from other rows; one list for all tables of a paper.
    """

    name: str
    caption: str
    unit: str
    columns: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[Figure, ...]]
    groups: Mapping[str, int] = field(default_factory=dict)
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
        """Return the columns, or the rows, of one group."""
        check_known(f"part of {self.name}", self.parts, name)
        full, inside = f"{self.name}/{name}", f"{name}/"
        if name in self.groups:
            at = self.span(name)
            rows = {label: row[at] for label, row in self.rows.items()}
            columns, tasks, metrics = self.columns[at], self.tasks[at], self.metrics[at]
            whole = replace(self, columns=columns, tasks=tasks, metrics=metrics, groups={})
            return replace(whole, name=full, rows=rows)
        cited = tuple(k.removeprefix(inside) for k in self.cited if k.startswith(inside))
        rows = {k.removeprefix(inside): v for k, v in self.rows.items() if k.startswith(inside)}
        return replace(self, name=full, rows=rows, cited=cited)

    def span(self, group: str) -> slice:
        names = list(self.groups)
        start = sum(self.groups[name] for name in names[: names.index(group)])
        return slice(start, start + self.groups[group])

    def by_metric(self) -> dict[str, dict[str, dict[str, Figure]]]:
        """Return metric -> row -> task -> figure in the units of our tables, without cited rows."""
        if self.environments:  # a row per method, and a column per environment
            columns = zip(*self.rows.values(), strict=True)
            turned = dict(zip(self.columns, columns, strict=True))
            metrics = self.metrics[:1] * len(self.rows)
            whole = replace(self, rows=turned, tasks=self.environments, metrics=metrics)
            return replace(whole, columns=tuple(self.rows), environments=()).by_metric()
        places = [place for place in zip(self.metrics, self.tasks, strict=True) if all(place)]
        if len(set(places)) < len(places):
            raise self._several("columns")
        figures: dict[str, dict[str, dict[str, Figure]]] = {}
        for label, row in self.rows.items():
            for metric, task, figure in zip(self.metrics, self.tasks, row, strict=True):
                if metric and task and label not in self.cited:
                    percent = self.unit == "share" and "accuracy" in metric
                    texts = figures.setdefault(metric, {}).setdefault(label, {})
                    texts[task] = figure.times(100) if percent else figure
        return figures

    def tests(self) -> dict[str, str]:
        """Return label -> p/h of a table of tests, which has one row and methods as columns."""
        if self.unit != TESTS:
            return {}
        if len(self.rows) > 1:
            raise self._several("rows")
        (row,) = self.rows.values()
        return {label: figure.text for label, figure in zip(self.columns, row, strict=True)}

    def exhibit(self) -> Exhibit:
        """Return what stands under our tables; of a table of several data sets, its parts alone."""
        shown = Exhibit(self.caption, metrics=self.measured, methods=self.methods, error=self.error)
        try:
            return replace(shown, figures=self.by_metric(), tests=self.tests())
        except Several:
            return replace(shown, parts=tuple(f"{self.name}/{part}" for part in self.parts))

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics of its columns, each once."""
        return tuple(dict.fromkeys(filter(None, self.metrics)))

    def _several(self, what: str) -> Several:
        return Several(
            f"{self.name} has {what} of several data sets.",
            remedy=f"Name one part of it, such as {self.name}/{self.parts[0]}. "
            f"Parts: {', '.join(self.parts)}.",
        )


class Several(UnseenError):
    """A table whose figures are of several data sets."""


class Inconsistent(NamedTuple):
    """An average that rounding cannot explain: it does not follow from its printed cells."""

    table: str
    row: str
    column: str
    printed: str
    recomputed: str


def table(name: str) -> Table:
    """Return a table by name, `csac/table1`, or a part of it, `csac/table4/pacs`."""
    by_name = tables()
    head, _, part = name.partition("/table")
    number, _, part = part.partition("/")
    whole = f"{head}/table{number}"
    if whole not in by_name:
        raise nearest("published table", name, by_name)
    return by_name[whole].part(part) if part else by_name[whole]


@cache
def tables() -> Mapping[str, Table]:
    """Return every table of the four papers by name, in the order of the papers."""
    return {name: _read(name, entry) for name, entry in _entries().items() if "rows" in entry}


def contents() -> dict[str, tuple[str, ...]]:
    """Return tables and data figures -> the studies whose records they are made from."""
    studies: dict[str, tuple[str, ...]] = {}
    for key, entry in _entries().items():
        name = key.rstrip("ab")
        studies[name] = tuple(dict.fromkeys((*studies.get(name, ()), *entry["studies"])))
    return studies


@cache
def exhibits() -> Mapping[str, Exhibit]:
    """Return every table, part of a table and data figure, as unseen shows it.

    Example:
        >>> exhibits()["fedilc/table4"].studies, exhibits()["fedilc/table4"].metrics
        (('fedilc/color-mnist', 'fedilc/eicu'), ('auroc', 'auprc'))
        >>> exhibits()["csac/table4"].parts
        ('csac/table4/pacs', 'csac/table4/vlcs')
    """
    whole = tables()
    parts = [one.part(part) for one in whole.values() for part in one.parts]
    every = {one.name: one.exhibit() for one in (*whole.values(), *parts)}
    texts = captions()
    for name, studies in contents().items():
        if name in every:
            every[name] = replace(every[name], studies=studies)
            continue
        # A figure, or a table in two: FedILC's Table 4.
        halves = [key for key in whole if key.rstrip("ab") == name]
        metrics = tuple(dict.fromkeys(m for key in halves for m in whole[key].measured))
        caption = texts[halves[0] if halves else name]
        every[name] = Exhibit(caption, studies, metrics, parts=tuple(halves))
    return every


def captions() -> dict[str, str]:
    """Return tables and data figures -> what they show, in our words."""
    return {name: entry["caption"] for name, entry in _entries().items()}


def inconsistent() -> tuple[Inconsistent, ...]:
    """Return the averages that do not follow from their cells."""
    averages = []
    for whole in tables().values():
        for at, cells in _averages(whole):
            for label, row in whole.rows.items():
                mean = sum((row[i].value for i in cells), Decimal()) / len(cells)
                rounding = (row[at].digit + max(row[i].digit for i in cells)) / 2
                if abs(row[at].value - mean) > rounding:
                    texts = row[at].text, str(mean.quantize(row[at].digit / 100))
                    averages.append(Inconsistent(whole.name, label, whole.columns[at], *texts))
    return tuple(averages)


def _averages(printed: Table) -> Iterator[tuple[int, list[int]]]:
    """Yield the columns that are means, with those that they are means of.

    An average is over its group; one that stands in a group by itself is over the last columns of
    all other groups.
    """
    spans = [printed.span(name) for name in printed.groups] or [slice(0, len(printed.columns))]
    for span in spans:
        *inside, at = range(span.start, span.stop)
        if printed.average and printed.columns[at] == printed.average:
            yield at, inside or [other.stop - 1 for other in spans if other != span]


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    """Return every table and figure by name, with its paper's methods."""
    every: dict[str, Mapping[str, Any]] = {}
    for paper in PAPERS:
        file = tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text("utf-8"))
        entries = {key: entry for key, entry in file.items() if "caption" in entry}
        every |= {f"{paper}/{k}": {**v, "methods": file["methods"]} for k, v in entries.items()}
    return every


def _read(name: str, entry: Mapping[str, Any]) -> Table:
    rows: dict[str, tuple[Figure, ...]] = {}
    for label, cells in entry["rows"].items():
        group = {label: cells} if isinstance(cells, list) else cells
        prefix = "" if isinstance(cells, list) else f"{label}/"
        rows |= {prefix + key: tuple(map(_figure, texts)) for key, texts in group.items()}
    count = len(entry["columns"])
    whole = {"tasks": [""] * count, "metrics": [entry.get("metric", "")] * count, **entry}
    whole.pop("metric", None)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in whole.items()}
    return Table(**fields | {"name": name, "rows": rows})


def _figure(text: str) -> Figure:
    value, _, error = text.partition(" ± ")
    return Figure(value, error or None)
