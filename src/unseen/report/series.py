"""Curves from records: one value per round and seed, averaged over the seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from unseen.report.figures import INK, Kind, Line
from unseen.report.study_report import Run, StudyReport
from unseen.results.records import Record
from unseen.results.statistics import mean
from unseen.results.study_folder import Curve

#: The most lines that can be told apart by colour.
MANY = 10


def averaged(
    curves: Sequence[Curve],
    name: str,
    colour: int,
    kind: Kind = "plain",
    band: bool = False,
    group: str = "",
) -> Line | None:
    """Return the mean over seeds, with a band from the lowest to the highest.

    Args:
        curves: One per run.
        name: The line's.
        colour: The number of its series.
        kind: How it is drawn.
        band: Whether to add the band, where there is more than one run.
        group: What the legend calls it together with others.

    Returns:
        The line; None without any value.
    """
    rounds = sorted({r for curve in curves for r in curve})
    values = [[curve[r] for curve in curves if r in curve] for r in rounds]
    if not rounds:
        return None
    banded = band and len(curves) > 1
    return Line(
        name,
        tuple(map(float, rounds)),
        tuple(map(mean, values)),
        tuple(map(min, values)) if banded else (),
        tuple(map(max, values)) if banded else (),
        colour,
        kind,
        group=group,
    )


def present(lines: Iterable[Line | None]) -> tuple[Line, ...]:
    """Return the lines that have values."""
    return tuple(line for line in lines if line is not None)


def domains(part: StudyReport) -> dict[str, int]:
    """Return every source domain of a study -> its colour, the same in all figures."""
    return {name: i for i, name in enumerate(part.domains)}


def trained(run: Run, name: str = "train") -> list[Record]:
    """The rounds of the exchange that trains the model."""
    return [r for r in run.raw.rounds if r.get("exchange") == name]


def scalar(run: Run, name: str, exchange: str = "train") -> dict[str, dict[int, float]]:
    """client -> round -> a number that the clients reported."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in trained(run, exchange):
        values = record.get("scalars", {}).get(name, ())
        for client, value in zip(record["clients"], values, strict=False):
            if isinstance(value, int | float):
                found[client][record["round"]] = float(value)
    return found


def coloured(
    names: Sequence[str], highlight: Sequence[str], colours: Mapping[str, int] | None = None
) -> Callable[[str], tuple[int, Kind]]:
    """Return how to draw each of many lines: those to highlight in colour, the others faint.

    Args:
        names: All lines.
        highlight: Those in colour where there are more than `MANY`.
        colours: Their colours where there are fewer; in the order of `names` by default.
    """
    if len(names) <= MANY:
        chosen = {name: i for i, name in enumerate(names)} if colours is None else colours
        return lambda name: (chosen.get(name, INK), "plain")
    ranked = {name: i for i, name in enumerate(highlight)}
    return lambda name: (ranked[name], "plain") if name in ranked else (0, "faint")


def best(part: StudyReport, count: int = 6) -> list[str]:
    """Return the methods that lead the table, and the one that they are compared with."""
    table = part.main
    average = list(table.columns).index("average")
    scores = [
        (mean(row[average].values) * (1 if table.lower else -1), method)
        for method, row in zip(table.methods, table.cells, strict=True)
        if row[average].values
    ]
    lead = [method for _, method in sorted(scores)[:count]]
    compared = [part.reference] if part.reference else []
    return list(dict.fromkeys((*lead, *compared)))


def by_round(curves: Iterable[Curve]) -> dict[int, list[float]]:
    """Return round -> the values of the curves that have one."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for line in curves:
        for r, value in line.items():
            rounds[r].append(value)
    return dict(rounds)
