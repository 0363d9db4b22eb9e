"""From a folder of records to the study that they are of."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unseen.errors import UnseenError, nearest
from unseen.methods import METHODS
from unseen.methods.compose import method as compose
from unseen.studies.report.study_report import (
    Folder,
    Omission,
    Run,
    StudyReport,
    natural,
    read_folder,
)
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.selection import no_selection, selected
from unseen.studies.results.study_folder import JobFolder
from unseen.studies.results.study_results import Results
from unseen.studies.settings.study import StudySpec, recorded
from unseen.studies.settings.training import Recipe


@dataclass(frozen=True)
class Choice:
    """What the reader asks for instead of what the study says.

    Attributes:
        metric: What to show.
        selection: The rule that chooses a round.
        reference: The method to test against.
    """

    metric: str | None = None
    selection: str | None = None
    reference: str | None = None


def read(path: Path, choice: Choice) -> StudyReport:
    """Return the study of a folder of records.

    Args:
        path: The folder.
        choice: What to show of it.

    Raises:
        UnseenError: There is nothing to show.
    """
    folder = read_folder(path.resolve())
    if isinstance(folder, Omission):
        reasons = [folder]
    else:
        try:
            return part(folder, choice)
        except UnseenError as error:
            reasons = [Omission(str(folder.path), str(error)), *folder.omissions]
    listed = "; ".join(f"{item.place}: {item.reason}" for item in reasons)
    raise UnseenError(
        f"there is nothing to report: {listed}.",
        remedy="Name what --out of `unseen study` was, once a job is finished.",
    )


def results_in(folder: Path) -> Results:
    """Return the results in a folder by what its study.json says; no data are read."""
    return read(folder, Choice()).results


def part(folder: Folder, choice: Choice) -> StudyReport:
    """Return a study from what its folder says, or else its identity and records.

    Args:
        folder: Its folder.
        choice: What to show of it.

    Raises:
        UnseenError: No job is finished.
    """
    omissions, jobs = [*folder.omissions], folder.runs
    if not jobs:
        raise UnseenError("no job is finished")
    study = _study(folder, jobs, omissions)
    better = main_metric(study.metric, folder.identity.get("metrics", ()))
    metric, rule = choice.metric or better, choice.selection or study.selection
    runs = []
    for job in (job for job in jobs if job.state == "done"):
        try:
            run = selected(job.source, job.target, rule, better, job.constant)
            if metric not in run.metrics:
                raise nearest("metric", metric, run.metrics)
            runs.append(Run(job, run))
        except UnseenError as error:
            omissions.append(Omission("/".join(job.folder.parts[-5:]), str(error)))
    if not runs:
        raise UnseenError(omissions[-1].reason if omissions else "every job diverged")
    metrics = runs[0].result.metrics
    runs += [Run(job, no_selection(job.job, metrics)) for job in jobs if job.state == "diverged"]
    methods = _methods(folder, runs)
    tasks = (*(study.targets or ()), *sorted({run.task for run in runs}, key=natural))
    report = StudyReport(
        study,
        folder,
        tuple(runs),
        methods,
        tuple(dict.fromkeys(tasks)),
        metric,
        rule,
        _reference(methods, choice.reference, study.reference),
        (),
    )
    return replace(report, omissions=(*omissions, *_missing(report)))


def _study(folder: Folder, jobs: Sequence[JobFolder], omissions: list[Omission]) -> StudySpec:
    """Return the study of its folder; where that cannot be read, that of identity and records."""
    place = str(folder.path / "study.json")
    recorded_only = {
        "methods": tuple(dict.fromkeys(job.job.method for job in jobs)),
        "seeds": tuple(sorted({job.job.seed for job in jobs})),
    }
    settings = dict(folder.settings) or dict(folder.identity["settings"]) | recorded_only
    training = settings.get("training", {})
    readable = {key: value for key, value in settings.items() if key in StudySpec.model_fields}
    unknown = sorted(settings.keys() - readable)
    if isinstance(training, dict):
        readable["training"] = {k: v for k, v in training.items() if k in Recipe.model_fields}
        unknown += sorted(f"training.{key}" for key in training.keys() - readable["training"])
    if unknown:
        reason = f"settings of another version are not read: {', '.join(unknown)}"
        omissions.append(Omission(place, reason))
    try:
        return StudySpec(**recorded(readable))
    except UnseenError as error:
        omissions.append(Omission(place, str(error)))
        return StudySpec(dataset=str(settings.get("dataset", "study")), **recorded_only)


def _methods(folder: Folder, runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the methods in the study's order; else in that of the package's list."""
    methods = dict.fromkeys(run.method for run in runs)
    if folder.settings:
        listed = map(_named, folder.settings.get("methods", ()))
        return tuple(dict.fromkeys((*listed, *methods)))
    order = {name: i for i, name in enumerate(METHODS)}
    return tuple(sorted(methods, key=lambda m: (order.get(re.split(r"[(+]", m)[0], len(order)), m)))


def _named(expression: str) -> str:
    try:
        return compose(expression).name
    except UnseenError:
        return expression


def _reference(methods: Sequence[str], asked: str | None, studied: str | None) -> str | None:
    text = asked or studied
    if text and (name := _named(text)) in methods:
        return name
    if asked:
        raise nearest("method to compare with", asked, methods)
    return "fedavg" if "fedavg" in methods and len(methods) > 1 else None


def _missing(report: StudyReport) -> Iterator[Omission]:
    stopped = bool(report.folder.omissions)
    total = len(report.tasks) * len(report.seeds)
    for method in report.methods:
        there = sum(run.method == method for run in report.runs)
        if there < total and method not in report.refused:
            why = "" if stopped or there else ": it has no records"
            yield Omission(method, f"{there} of {total} jobs are shown{why}")
