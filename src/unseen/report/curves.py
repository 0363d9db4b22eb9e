"""Curves over rounds: one value per round and seed, averaged over the seeds.

Loss and metrics of all methods at each target, and of each method at every client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from unseen.report.figures import INK, Figure, Kind, Line, Lines, Section, on_one_scale
from unseen.report.study_report import Run, StudyReport
from unseen.results.records import Record
from unseen.results.statistics import mean
from unseen.results.study_folder import Curve, curve

#: The most lines that colours can distinguish.
MANY = 10


def averaged(
    curves: Sequence[Curve],
    name: str,
    colour: int,
    kind: Kind = "plain",
    band: bool = False,
    group: str = "",
) -> Line:
    """Return the mean over seeds, with a band from the lowest to the highest.

    Args:
        curves: One per run.
        name: The line's.
        colour: The number of its series.
        kind: How it is drawn.
        band: Whether to add the band, where there is more than one run.
        group: What the legend calls it together with others.
    """
    values = dict(sorted(by_round(curves).items()))
    banded = list(values.values()) if band and len(curves) > 1 else []
    return Line(
        name, tuple(map(float, values)), tuple(map(mean, values.values())),
        tuple(map(min, banded)), tuple(map(max, banded)), colour, kind, group=group,
    )  # fmt: skip


def present(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that have values."""
    return tuple(line for line in lines if line.x)


def domains(part: StudyReport) -> dict[str, int]:
    """Return every source domain of a study -> its colour, the same in all figures."""
    return {name: i for i, name in enumerate(part.domains)}


def trained(run: Run) -> list[Record]:
    """Return the rounds of the exchange that trains the model."""
    return [r for r in run.raw.rounds if r.get("exchange") == "train"]


def scalar(run: Run, name: str) -> dict[str, dict[int, float]]:
    """Return client -> round -> a number that the clients reported while they trained."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in trained(run):
        values = record.get("scalars", {}).get(name, ())
        for client, value in zip(record["clients"], values, strict=False):
            if isinstance(value, int | float):
                found[client][record["round"]] = float(value)
    return found


def coloured(names: Sequence[str], highlight: Sequence[str]) -> Callable[[str], tuple[int, Kind]]:
    """Return how to draw each of many lines: those to highlight in colour, the others faint.

    Args:
        names: All lines.
        highlight: Those in colour where there are more than `MANY`.
    """
    few = len(names) <= MANY
    ranked = {name: i for i, name in enumerate(names if few else highlight)}
    return lambda name: (ranked[name], "plain") if name in ranked else (0, "faint")


def by_round(curves: Iterable[Curve]) -> Mapping[int, list[float]]:
    """Return round -> the values of the curves that have one."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for line in curves:
        for r, value in line.items():
            rounds[r].append(value)
    return rounds


def section(part: StudyReport) -> Section:
    """Return the chapter on training."""
    figures = [compared(part, metric) for metric in curve_metrics(part)]
    figures += [figure for method in part.methods for figure in of_method(part, method)]
    return Section("curves", on_one_scale(figures))


def curve_metrics(part: StudyReport) -> tuple[str, ...]:
    """Return loss, accuracy and the study's metric, as far as they are recorded."""
    names = dict.fromkeys(("loss", "accuracy", part.metric))
    return tuple(m for m in names if m in part.metrics and "@" not in m)


def compared(part: StudyReport, metric: str) -> Figure:
    """Return a metric at each target over rounds, one line per method.

    Of many targets, the mean over them.

    Source:
        FedILC, Figures 3 and 5 to 7.
    """
    lead = best(part)
    style = coloured(part.methods, lead)
    panels = []
    for title, tasks in part.panels.items():
        lines = []
        for method in part.methods:
            colour, kind = style(method)
            group = "other methods" if kind == "faint" else ""
            curves = [curve(run.raw.target, metric) for run in part.of(method, *tasks)]
            lines.append(averaged(curves, method, colour, kind, group=group))
        panels.append(_panel(title, metric, lines))
    each = "" if part.main.many else "one panel per target, "
    caption = f"{metric} at the target, {each}one line per method"
    if len(part.methods) > MANY:
        caption += f"; in colour the {len(lead)} with the best averages or compared with"
    return Figure(f"compare-{metric}", f"{metric} at the target", caption, tuple(panels))


def best(part: StudyReport, count: int = 6) -> list[str]:
    """Return the methods that lead the table, and the one that they are compared with."""
    sign = 1 if part.main.lower else -1
    cells = part.main_column("average")
    scores = [(sign * mean(cell.values), m) for m, cell in cells.items() if cell.values]
    lead = [method for _, method in sorted(scores)[:count]]
    return list(dict.fromkeys(filter(None, (*lead, part.reference))))


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a method's metrics at every client and the target.

    Source:
        CSAC, Figure 6 d.
    """
    for metric in curve_metrics(part):
        panels = []
        for task in part.tasks:
            runs = part.of(method, task)
            marks = tuple(sorted({float(run.chosen.round) for run in runs}))
            panels.append(_panel(task, metric, _clients(part, runs, metric), marks))
        caption = (
            f"{metric} of the global model at the sources' validation splits and at the target; "
            "band: lowest to highest seed"
        )
        caption += "; dotted: mean loss of the clients while they train" * (metric == "loss")
        key = f"curves-{metric}-{method}"
        yield Figure(key, f"{method}: {metric}", caption, tuple(panels), fold=method)
    yield _locals(part, method)


def _clients(part: StudyReport, runs: Sequence[Run], metric: str) -> Iterator[Line]:
    """Yield a line per client, the loss in training, and the target on top."""
    seen = {r["domain"] for run in runs[:1] for r in run.raw.source}
    sources = {name: colour for name, colour in domains(part).items() if name in seen}
    for name, colour in sources.items():
        curves = [curve(run.raw.source, metric, name) for run in runs]
        if len(sources) > MANY:
            yield averaged(curves, name, 0, "faint", group="a source")
        else:
            yield averaged(curves, name, colour)
    if metric == "loss":
        yield averaged([_training(run) for run in runs], "in training", 7, "dotted")
    curves = [curve(run.raw.target, metric) for run in runs]
    yield averaged(curves, "target", INK, "strong", band=True)


def _training(run: Run) -> dict[int, float]:
    """Return the mean over clients of the loss that they report."""
    losses = by_round(scalar(run, "loss").values())
    return {r: mean(values) for r, values in losses.items()}


def _locals(part: StudyReport, method: str) -> Figure:
    """Return every local model on every domain, as far as recorded (CSAC, Figure 6 a to c)."""
    metrics = curve_metrics(part)
    metric = "accuracy" if "accuracy" in metrics else metrics[0]
    panels = []
    for task in part.tasks:
        crossed = [run.raw.cross for run in part.of(method, task)]
        for client in dict.fromkeys(r["client"] for records in crossed for r in records):
            rows = [[r for r in records if r["client"] == client] for records in crossed if records]
            title = f"{task}: local model of {client}"
            panels.append(_panel(title, metric, _domains(part, rows, metric)))
    caption = f"{metric} of each client's local model on every domain"
    key, title = f"locals-{method}", f"{method}: local models"
    return Figure(key, title, caption, tuple(panels), fold=method)


def _domains(part: StudyReport, rows: Sequence[list[Record]], metric: str) -> Iterator[Line]:
    """Yield one client's model at every domain; `rows` are its evaluations, run by run."""
    colours = domains(part)
    roles = {r["domain"]: r["role"] for records in rows for r in records}
    for name, role in roles.items():
        curves = [curve(records, metric, name) for records in rows]
        if role == "target":
            yield averaged(curves, "target", INK, "strong")
        else:
            yield averaged(curves, name, colours.get(name, 7))


def _panel(
    title: str, metric: str, lines: Iterable[Line], marks: tuple[float, ...] = ()
) -> Lines:  # fmt: skip
    return Lines(title, "round", metric, present(lines), "accuracy" in metric, marks)
