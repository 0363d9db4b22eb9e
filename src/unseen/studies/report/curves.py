"""Curves over rounds: one value per round and seed, averaged over the seeds.

Loss and metrics of all methods at each target and of each method at every client, and the weights
of aggregation.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from unseen.core.record_lines import Record
from unseen.studies.report.figures import INK, Figure, Kind, Line, Lines, Section, on_one_scale
from unseen.studies.report.study_report import Run, StudyReport, cells_of
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import Curve, curve

#: The most lines that colours can distinguish.
MANY = 10
#: Weights that move less than this are constant.
MOVES = 1e-9
#: (block of the model, client) -> round -> weight; the block is 0 for the whole model.
Weights = dict[tuple[int, str], dict[int, float]]


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
        name,
        tuple(map(float, values)),
        tuple(map(mean, values.values())),
        tuple(map(min, banded)),
        tuple(map(max, banded)),
        colour,
        kind,
        group=group,
    )


def scalar(run: Run, name: str) -> dict[str, dict[int, float]]:
    """Return client -> round -> a number that the clients reported while they trained."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for record in run.trained:
        values = record.get("scalars", {}).get(name, ())
        for client, value in zip(record["clients"], values, strict=False):
            if isinstance(value, int | float):
                series[client][record["round"]] = float(value)
    return series


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
    """Return a metric at each target, or the mean of many, over rounds: a line per method.

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
        panels.append(panel(title, metric, lines))
    each = "" if part.main.many else "one panel per target, "
    caption = f"{metric} at the target, {each}one line per method"
    if len(part.methods) > MANY:
        caption += f"; in colour the {len(lead)} with the best averages or compared with"
    return Figure(f"compare-{metric}", f"{metric} at the target", caption, tuple(panels))


def best(part: StudyReport, count: int = 6) -> list[str]:
    """Return the methods that lead the table, and the one that they are compared with."""
    sign = 1 if part.main.lower else -1
    cells = cells_of(part.main, "average")
    scores = [(sign * mean(cell.values), m) for m, cell in cells.items() if cell.values]
    lead = [method for _, method in sorted(scores)[:count]]
    return list(dict.fromkeys(filter(None, (*lead, part.reference))))


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a method's metrics at every client and the target, and its local models everywhere.

    Source:
        CSAC, Figure 6.
    """
    metrics = curve_metrics(part)
    for metric in metrics:
        panels = []
        for task in part.tasks:
            runs = part.of(method, task)
            marks = tuple(sorted({float(run.result.round) for run in runs}))
            panels.append(panel(task, metric, _clients(part, runs, metric), marks))
        caption = (
            f"{metric} of the global model at the sources' validation splits and at the target; "
            "band: lowest to highest seed"
        )
        caption += "; dotted: mean loss of the clients while they train" * (metric == "loss")
        key = f"curves-{metric}-{method}"
        yield Figure(key, f"{method}: {metric}", caption, tuple(panels), fold=method)
    metric, panels = "accuracy" if "accuracy" in metrics else metrics[0], []
    for task in part.tasks:
        crossed = [run.raw.cross for run in part.of(method, task)]
        for client in dict.fromkeys(r["client"] for records in crossed for r in records):
            rows = [[r for r in records if r["client"] == client] for records in crossed if records]
            title = f"{task}: local model of {client}"
            panels.append(panel(title, metric, _domains(part, rows, metric)))
    caption = f"{metric} of each client's local model on every domain"
    yield Figure(f"locals-{method}", f"{method}: local models", caption, tuple(panels), fold=method)


def _clients(part: StudyReport, runs: Sequence[Run], metric: str) -> Iterator[Line]:
    names = {r["domain"] for run in runs[:1] for r in run.raw.source}
    sources = {name: colour for name, colour in part.domains.items() if name in names}
    for name, colour in sources.items():
        curves = [curve(run.raw.source, metric, name) for run in runs]
        if len(sources) > MANY:
            yield averaged(curves, name, 0, "faint", group="a source")
        else:
            yield averaged(curves, name, colour)
    if metric == "loss":
        reported = (by_round(scalar(run, "loss").values()) for run in runs)
        losses = [{r: mean(values) for r, values in rounds.items()} for rounds in reported]
        yield averaged(losses, "in training", 7, "dotted")
    curves = [curve(run.raw.target, metric) for run in runs]
    yield averaged(curves, "target", INK, "strong", band=True)


def _domains(part: StudyReport, rows: Sequence[list[Record]], metric: str) -> Iterator[Line]:
    roles = {r["domain"]: r["role"] for records in rows for r in records}
    for name, role in roles.items():
        curves = [curve(records, metric, name) for records in rows]
        if role == "target":
            yield averaged(curves, "target", INK, "strong")
        else:
            yield averaged(curves, name, part.domains.get(name, 7))


def panel(
    title: str, quantity: str, lines: Iterable[Line], marks: tuple[float, ...] = (), **more: Any
) -> Lines:
    """Return lines over rounds, without those that have no values."""
    present = tuple(line for line in lines if line.x)
    return Lines(title, "round", quantity, present, "accuracy" in quantity, marks, **more)


def weight_curves(part: StudyReport) -> Section:
    """Return the chapter on weights, without methods whose weights are constant.

    Source:
        CSAC, Figure 5; GA.
    """
    figures = [figure for method in part.methods for figure in weights_of(part, method)]
    return Section("weights", on_one_scale(figures))


def weights_of(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a panel per target, and per block where a rule weighs blocks of the model apart."""
    panels = []
    for task in part.tasks:
        of_runs = [model_weights(run) for run in part.of(method, task)]
        series = [line for weights in of_runs for line in weights.values()]
        if not any(max(line.values()) - min(line.values()) > MOVES for line in series):
            continue
        clients = dict.fromkeys(key for weights in of_runs for key in weights)
        for block in sorted({block for block, _ in clients}):
            lines = [
                averaged(
                    [one.get((block, name), {}) for one in of_runs], name, part.domains.get(name, 7)
                )
                for at, name in clients
                if at == block
            ]
            panels.append(panel(f"{task}, block {block}" if block else task, "weight", lines))
    if panels:
        caption = "one line per client"
        if "block" in panels[0].title:
            caption += ", a panel per block of parameters, in the order of the net"
        title = f"{method}: aggregation weights"
        yield Figure(f"weights-{method}", title, caption, tuple(panels), fold=method)


def model_weights(run: Run) -> Weights:
    """Return the weights of the model's slot in the rounds of training."""
    weights: Weights = defaultdict(dict)
    for record in run.trained:
        rows = record.get("weights", {}).get("model") or []
        blocks = enumerate(rows, 1) if rows and isinstance(rows[0], list) else [(0, rows)]
        for block, row in blocks:
            for client, value in zip(record["clients"], row, strict=False):
                weights[block, client][record["round"]] = float(value)
    return weights
