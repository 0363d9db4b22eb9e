"""Loss and metrics over rounds: all methods at each target, and each method at every client."""

from __future__ import annotations

from collections.abc import Iterator

from unseen.report.figures import INK, Figure, Line, Lines, Section, on_one_scale
from unseen.report.series import (
    MANY,
    averaged,
    best,
    by_round,
    coloured,
    domains,
    present,
    scalar,
)  # fmt: skip
from unseen.report.study_report import Run, StudyReport
from unseen.results.records import Record
from unseen.results.statistics import mean
from unseen.results.study_folder import curve


def section(part: StudyReport) -> Section:
    """Return the chapter on training."""
    figures = [compared(part, metric) for metric in curve_metrics(part)]
    figures += [figure for method in part.methods for figure in of_method(part, method)]
    text = (
        "Means over seeds. The triangles on the axis mark the rounds that selection chose, one per "
        "seed. All panels of one metric have the same scale; the files next to this page hold "
        "every value."
    )
    drawn = on_one_scale([figure for figure in figures if figure.panels])
    return Section("curves", "Training curves", text, drawn)


def curve_metrics(part: StudyReport) -> tuple[str, ...]:
    """Return loss, accuracy and the study's metric, as far as they are recorded."""
    plain = [m for m in part.metrics if "@" not in m]
    return tuple(m for m in dict.fromkeys(("loss", "accuracy", part.metric)) if m in plain)


def compared(part: StudyReport, metric: str) -> Figure:
    """Return a metric at each target over rounds, one line per method.

    Of many targets, the mean over them. Source: FedILC, Figures 3 and 5 to 7.
    """
    lead = best(part)
    style = coloured(part.methods, lead)
    panels = []
    for title, tasks in part.panels.items():
        lines = []
        for method in part.methods:
            runs = [run for task in tasks for run in part.of.get((method, task), ())]
            colour, kind = style(method)
            group = "other methods" if kind == "faint" else ""
            curves = [curve(run.raw.target, metric) for run in runs]
            lines.append(averaged(curves, method, colour, kind, group=group))
        panels.append(_panel(title, metric, present(lines)))
    each = "" if part.main.many else "one panel per target, "
    caption = f"{metric} at the target, {each}one line per method"
    if len(part.methods) > MANY:
        caption += f"; in colour the {len(lead)} with the best averages or compared with"
    return Figure(f"compare-{metric}", f"{metric} at the target", caption, _full(panels))


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a method's metrics at every client and the target (CSAC, Figure 6 d)."""
    for metric in curve_metrics(part):
        panels = []
        for task in part.tasks:
            if runs := part.of.get((method, task), ()):
                lines = present(_clients(part, runs, metric))
                marks = tuple(sorted({float(run.chosen.round) for run in runs}))
                panels.append(_panel(task, metric, lines, marks))
        caption = (
            f"{metric} of the global model at the sources' validation splits and at the target; "
            "band: lowest to highest seed"
        )
        caption += "; dotted: mean loss of the clients while they train" * (metric == "loss")
        key = f"curves-{metric}-{method}"
        yield Figure(key, f"{method}: {metric}", caption, _full(panels), fold=method)
    yield from _locals(part, method)


def _clients(part: StudyReport, runs: tuple[Run, ...], metric: str) -> Iterator[Line | None]:
    """Yield a line per client, the loss in training, and the target on top."""
    colours = domains(part)
    names = [name for name in colours if any(r["domain"] == name for r in runs[0].raw.source)]
    for name in names:
        curves = [curve(run.raw.source, metric, name) for run in runs]
        if len(names) > MANY:
            yield averaged(curves, name, 0, "faint", group="a source")
        else:
            yield averaged(curves, name, colours[name])
    if metric == "loss":
        yield averaged([_training(run) for run in runs], "in training", 7, "dotted")
    curves = [curve(run.raw.target, metric) for run in runs]
    yield averaged(curves, "target", INK, "strong", band=True)


def _training(run: Run) -> dict[int, float]:
    """Return the mean over clients of the loss that they report."""
    losses = by_round(scalar(run, "loss").values())
    return {r: mean(values) for r, values in losses.items()}


def _locals(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield every local model on every domain, if recorded (CSAC, Figure 6 a to c)."""
    metric = "accuracy" if "accuracy" in curve_metrics(part) else curve_metrics(part)[0]
    panels = []
    for task in part.tasks:
        runs = part.of.get((method, task), ())
        rows = [run.raw.cross for run in runs if run.raw.cross]
        for client in dict.fromkeys(r["client"] for records in rows for r in records):
            lines = present(_domains(part, rows, client, metric))
            panels.append(_panel(f"{task}: local model of {client}", metric, lines))
    if panels:
        caption = f"{metric} of each client's local model on every domain"
        key, title = f"locals-{method}", f"{method}: local models"
        yield Figure(key, title, caption, _full(panels), fold=method)


def _domains(
    part: StudyReport, rows: list[list[Record]], client: str, metric: str
) -> Iterator[Line | None]:
    colours = domains(part)
    rows_of_client = [[r for r in records if r["client"] == client] for records in rows]
    for name in dict.fromkeys(r["domain"] for records in rows_of_client for r in records):
        roles = {r["role"] for records in rows_of_client for r in records if r["domain"] == name}
        curves = [curve(records, metric, name) for records in rows_of_client]
        if "target" in roles:
            yield averaged(curves, "target", INK, "strong")
        else:
            yield averaged(curves, name, colours.get(name, 7))


def _panel(
    title: str, metric: str, lines: tuple[Line, ...], marks: tuple[float, ...] = ()
) -> Lines:
    return Lines(title, "round", metric, lines, "accuracy" in metric, marks)


def _full(panels: list[Lines]) -> tuple[Lines, ...]:
    return tuple(panel for panel in panels if panel.lines)
