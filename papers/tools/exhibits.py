"""Write docs/results/coverage.md: which of the papers' tables and figures have run, and on what.

    python papers/tools/exhibits.py   # reads docs/results/coverage.toml and the records next to it

coverage.toml says which folder of records belongs to which exhibit, and in what a run departs from
the paper. The exhibits and their printed numbers are those of `unseen_papers.published`;
every number of ours is computed from the records. `--check` writes nothing and fails where the page
differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from verdicts import Archive

from unseen.core import record_lines
from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError, choice
from unseen.studies.results import fairness, records
from unseen.studies.results.comparison import LEVEL, holm, t_test
from unseen.studies.results.formats import decimals, scale_of
from unseen.studies.results.metric_name import SOURCE
from unseen.studies.results.published_rows import Printed, printed
from unseen.studies.results.selection import Selected, selected
from unseen.studies.results.statistics import Cell, mean
from unseen_papers import published

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAPERS = {"ppdg": "PPDG", "csac": "CSAC", "fedilc": "FedILC", "ga": "FedDG-GA"}
#: What a run is to an exhibit, the strongest first.
KINDS = {
    "real": "real run",
    "other-network": "the paper's data, another network or budget",
    "substitute": "other data",
}
NONE = "none"
AVERAGE = "average"
#: A printed number's place: metric, row, column.
Place = tuple[str, str, str]


@dataclass(frozen=True)
class Ran:
    """What a folder of records shows of some exhibits.

    Attributes:
        exhibits: Published tables or parts of tables, `ga/table1/pacs`, or figures.
        kind: One of `KINDS`.
        folder: Below docs/results.
        what: What ran, and in what it departs from the paper.
        why: What of the printed figures it reproduces, and what explains the rest.
        selection, by: The rule that chooses the round, and the metric by which it does.
        reference: Of a table of tests, the method that is tested against the others.
        metrics: Printed metric -> the one of ours that is computed as the paper's code does.
    """

    exhibits: tuple[str, ...]
    kind: str
    folder: str
    what: str
    why: str
    selection: str = "source-validation"
    by: str = "accuracy"
    reference: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A printed row, and the one of ours that is compared with it."""

    metric: str
    label: str
    method: str
    columns: tuple[str, ...]
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    @property
    def places(self) -> set[Place]:
        """The cells of which both have a figure."""
        pairs = zip(self.columns, self.theirs, self.ours, strict=True)
        return {(self.metric, self.label, column) for column, a, b in pairs if a and b}


def read(path: Path) -> tuple[Ran, ...]:
    """Return the entries of coverage.toml."""
    known = published.captions()
    found = []
    for entry in tomllib.loads(path.read_text("utf-8"))["ran"]:
        one = Ran(**{**entry, "exhibits": tuple(entry["exhibits"])})
        choice("kind", one.kind, tuple(KINDS))
        for name in one.exhibits:
            if whole(name) not in known:
                raise UnseenError(
                    f"coverage.toml names {name!r}, which no paper has.",
                    remedy=f"Name one of {', '.join(known)}, or a part of a table.",
                )
        found.append(one)
    return tuple(found)


def whole(exhibit: str) -> str:
    """Return the exhibit that a part belongs to.

    Example:
        >>> whole("ga/table1/pacs"), whole("csac/figure5")
        ('ga/table1', 'csac/figure5')
    """
    return "/".join(exhibit.split("/")[:2])


def has_results(exhibit: str) -> bool:
    """Return whether an exhibit prints what a study records: no figure, set-up or run time."""
    if whole(exhibit) not in published.tables():
        return False
    return any(published.table(exhibit).metrics)


class Reader:
    """Our figures, read from packed records."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.selections = cache(self._selections)

    def _selections(
        self, folder: str, selection: str, by: str
    ) -> tuple[tuple[Selected, Sequence[record_lines.Record]], ...]:
        """Return the chosen round of every finished job, with its source records."""
        found = []
        for place in sorted(self.archive.folder(folder).glob("records/*/*/seed-*")):
            if not records.is_done(place):
                raise UnseenError(f"{place} is damaged: its records are not those of its mark.")
            if "diverged" not in records.mark(place):
                source = record_lines.read_lines(place / "source.jsonl")
                target = record_lines.read_lines(place / "target.jsonl")
                found.append((selected(source, target, selection, by), source))
        if not found:
            raise UnseenError(f"{folder} has no finished job; correct coverage.toml.")
        return tuple(found)

    def figures(self, ran: Ran, metric: str) -> dict[str, dict[str, dict[int, float]]]:
        """Return method -> column -> seed -> figure; the average over all tasks is a column."""
        runs = self.selections(ran.folder, ran.selection, ran.by)
        of_sources = SOURCE in metric.split()
        chosen = fairness.of_sources(metric, runs)[1] if of_sources else [run for run, _ in runs]
        found: dict[str, dict[str, dict[int, float]]] = {}
        for run in chosen:
            if (value := run.metrics.get(metric)) is not None:
                row = found.setdefault(run.method, {})
                row.setdefault(run.task, {})[run.seed] = value
        tasks = {task for row in found.values() for task in row}
        for row in found.values():
            seeds = set.intersection(*(set(row.get(task, {})) for task in tasks))
            row[AVERAGE] = {s: mean([row[t][s] for t in sorted(tasks)]) for s in sorted(seeds)}
        return found

    def lines(self, ran: Ran, part: str) -> Iterator[Line]:
        """Yield the printed rows of a table that ran."""
        one = published.table(part)
        if one.unit == published.TESTS:
            yield self._tests(ran, one)
            return
        for metric in one.by_metric():
            own = self.figures(ran, ran.metrics.get(metric, metric))
            paper = printed(part, metric)
            for label in paper.rows:
                for method, row in own.items():
                    if paper.row_of(method) == label:
                        yield _line(metric, label, method, paper, row)

    def _tests(self, ran: Ran, one: published.Table) -> Line:
        """Return p / h of paired t-tests, corrected by Holm's procedure, beside the printed."""
        own, tests = self.figures(ran, one.metrics[0]), one.tests()
        reference = _pairs(own[ran.reference])
        p = {}
        for label in tests:
            other = _pairs(own[next(m for m in own if _made(m, one.methods[label]))])
            value = t_test([reference[k] - other[k] for k in sorted(reference.keys() & other)])
            assert value is not None, "there are several pairs"
            p[label] = value
        corrected = dict(zip(p, holm(list(p.values())), strict=True))
        ours = tuple(
            f"{x:.{'3f' if x >= 0.001 else '1e'}}/{int(x < LEVEL)}" for x in corrected.values()
        )
        return Line("p/h", "p/h", ran.reference, tuple(tests), tuple(tests.values()), ours)


def _made(method: str, by: str) -> bool:
    """Return whether a method of ours makes a row, as `row_of` decides."""
    return Printed({by: {}}, {by: by}).row_of(method) == by


def _pairs(row: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, int], float]:
    return {(t, s): v for t, values in row.items() if t != AVERAGE for s, v in values.items()}


def _line(
    metric: str, label: str, method: str, paper: Printed, row: Mapping[str, Mapping[int, float]]
) -> Line:
    scale, digits = scale_of(metric), decimals(metric)
    ours = []
    for column in paper.rows[label]:
        values = tuple(row.get(column, {}).values())
        text = Cell(values, 0, len(values)).text(lambda x: f"{scale * x:.{digits}f}")
        ours.append(text if values else "")
    theirs = paper.rows[label]
    return Line(metric, label, method, tuple(theirs), tuple(map(str, theirs.values())), tuple(ours))


def places(reader: Reader, ran: Sequence[Ran]) -> dict[str, dict[str, set[Place]]]:
    """Return table -> kind -> its cells, each counted once, by the strongest kind."""
    found: dict[str, dict[str, set[Place]]] = {}
    for one in sorted(ran, key=lambda r: list(KINDS).index(r.kind)):
        for part in filter(has_results, one.exhibits if one.kind != "substitute" else ()):
            kinds = found.setdefault(whole(part), {})
            before = set().union(*kinds.values())
            group = part.removeprefix(whole(part))
            cells = {
                (metric, f"{group} {label}", column)
                for line in reader.lines(one, part)
                for metric, label, column in line.places
            }
            kinds.setdefault(one.kind, set()).update(cells - before)
    return found


def kind_of(exhibit: str, ran: Sequence[Ran]) -> str:
    """Return the strongest kind of run that an exhibit has."""
    kinds = {one.kind for one in ran if exhibit in {base(e) for e in one.exhibits}}
    return next((kind for kind in KINDS if kind in kinds), NONE)


def base(name: str) -> str:
    """Return the exhibit that a name belongs to: FedILC's Tables 4a and 4b are one."""
    return whole(name).rstrip("ab")


def page(path: Path, reader: Reader) -> list[str]:
    """Return the page, line by line."""
    ran = read(path)
    cells = places(reader, ran)
    exhibits = list(published.contents())
    return [
        *HEAD.strip().splitlines(), "",
        *_counts(exhibits, ran, cells), "",
        "## Exhibit by exhibit", "",
        *_exhibits(exhibits, ran, cells), "",
        *(line for one in ran for line in _section(one, reader)),
    ]  # fmt: skip


HEAD = """
# Coverage of the four papers

Which of the papers' tables and figures have run, on what, and what came out beside what was
printed. `python papers/tools/exhibits.py` writes this page from the printed tables, the records
kept here and [coverage.toml](coverage.toml).

- **Real run**: the paper's data and method, with a network and schedule as described. What departs
  stands under the heading of the run.
- **The paper's data, another network or budget**: compare gains between rows, not levels.
- **Other data**: compare signs at most. No cell counts.

A cell is a printed number. It counts where our records hold the same row and the same column,
once, by the strongest kind of run. Rows that a paper cites from others count among the printed ones
alone.
"""


def _counts(
    exhibits: Sequence[str], ran: Sequence[Ran], cells: Mapping[str, Mapping[str, set[Place]]]
) -> Iterator[str]:
    yield (
        "| paper | exhibits | real run | another network | other data | none | cells | real run "
        "| another network |"
    )
    yield f"|:--|{'--:|' * 8}"
    total = [0] * 8
    for paper, name in PAPERS.items():
        own = [e for e in exhibits if e.startswith(f"{paper}/")]
        kinds = [kind_of(e, ran) for e in own]
        numbers = sum(t.count for key, t in published.tables().items() if key.startswith(paper))
        found = [
            sum(len(by.get(kind, ())) for key, by in cells.items() if key.startswith(paper))
            for kind in ("real", "other-network")
        ]
        row = [len(own), *(kinds.count(k) for k in (*KINDS, NONE)), numbers, *found]
        total = [a + b for a, b in zip(total, row, strict=True)]
        yield f"| {name} | {' | '.join(map(str, row))} |"
    yield f"| **all** | {' | '.join(map(str, total))} |"


def _exhibits(
    exhibits: Sequence[str], ran: Sequence[Ran], cells: Mapping[str, Mapping[str, set[Place]]]
) -> Iterator[str]:
    yield "| exhibit | what it shows | run | cells with a figure of ours | records |"
    yield "|:--|:--|:--|--:|:--|"
    captions, tables = published.captions(), published.tables()
    for exhibit in exhibits:
        names = [name for name in captions if base(name) == exhibit]
        counts = [(tables[n].count, cells.get(n, {})) for n in names if n in tables]
        every = sum(count for count, _ in counts)
        by = {kind: sum(len(c.get(kind, ())) for _, c in counts) for kind in KINDS}
        text = f"{by['real']} of {every}" if counts else ""
        text += f", another network {by['other-network']}" if by["other-network"] else ""
        folders = dict.fromkeys(one.folder for one in ran if exhibit in map(base, one.exhibits))
        links = ", ".join(f"[{name}]({name}/table.md)" for name in folders)
        kind = KINDS.get(kind_of(exhibit, ran), NONE)
        yield f"| {_title(exhibit)} | {captions[names[0]]} | {kind} | {text} | {links} |"


def _title(exhibit: str) -> str:
    """Return an exhibit as a reader names it.

    Example:
        >>> _title("ga/table1/pacs"), _title("fedilc/table4a/eicu")
        ('FedDG-GA, Table 1 (pacs)', 'FedILC, Table 4a (eicu)')
    """
    paper, name, *part = exhibit.split("/")
    number = name.removeprefix("table").removeprefix("figure")
    kind = "Table" if name.startswith("table") else "Figure"
    return f"{PAPERS[paper]}, {kind} {number}" + (f" ({'/'.join(part)})" if part else "")


def _section(ran: Ran, reader: Reader) -> Iterator[str]:
    """Yield what ran, and its cells beside the printed ones."""
    if ran.kind == "substitute":
        return
    parts = list(filter(has_results, ran.exhibits))
    yield from (f"## {', '.join(map(_title, ran.exhibits))}: {KINDS[ran.kind]}", "")
    yield from (f"{ran.what} ([records]({ran.folder}/table.md))", "", ran.why, "")
    for part in parts:
        yield from _table(part, list(reader.lines(ran, part)))


def _table(part: str, lines: Sequence[Line]) -> Iterator[str]:
    if not lines:
        raise UnseenError(f"no row of {part} has records; correct coverage.toml.")
    for metric in dict.fromkeys(line.metric for line in lines):
        own = [line for line in lines if line.metric == metric]
        columns = own[0].columns
        yield f"| {_title(part)}: {metric} | {' | '.join(columns)} |"
        yield f"|:--|{'--:|' * len(columns)}"
        for label in dict.fromkeys(line.label for line in own):
            rows = [line for line in own if line.label == label]
            yield f"| {label}, printed | {' | '.join(rows[0].theirs)} |"
            yield from (f"| `{row.method}` | {' | '.join(row.ours)} |" for row in rows)
        yield ""


def written(results: Path = RESULTS) -> str:
    """Return the page of the records in a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        reader = Reader(Archive(results, Path(scratch)))
        return "\n".join(page(results / "coverage.toml", reader)).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it differs")
    asked = parser.parse_args(arguments)
    place, text = RESULTS / "coverage.md", written()
    if asked.check:
        same = place.exists() and place.read_text("utf-8") == text
        print("up to date" if same else f"{place} is not what the records say")
        return int(not same)
    write_atomically(place, text.encode())
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
