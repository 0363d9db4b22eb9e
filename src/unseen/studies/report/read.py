"""From folders of records to the study of their protocol."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from unseen.studies.results.records import Job
from unseen.studies.results.selection import no_selection, selected
from unseen.studies.results.study_file import flat
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


def read(paths: Sequence[Path], choice: Choice) -> tuple[StudyReport, tuple[Omission, ...]]:
    """Return a study from the folders of its records, and the folders that could not be read.

    Args:
        paths: The folders.
        choice: What to show of them.

    Raises:
        UnseenError: Nothing is left, or the folders' protocols differ.
    """
    opened = [read_folder(path) for path in dict.fromkeys(p.resolve() for p in paths)]
    omissions = [one for one in opened if isinstance(one, Omission)]
    folders = [one for one in opened if isinstance(one, Folder)]
    for folder in folders[1:]:
        if folder.identity != folders[0].identity:
            raise UnseenError(
                f"{folder.path} and {folders[0].path} hold studies of different protocols: "
                f"{', '.join(differences(folder.identity, folders[0].identity))} differ.",
                remedy="Write a report of each.",
            )
    try:
        return part(folders, choice), tuple(omissions)
    except UnseenError as error:
        omissions += [Omission(str(folder.path), str(error)) for folder in folders]
        omissions += [item for folder in folders for item in folder.omissions]
    reasons = "; ".join(f"{item.place}: {item.reason}" for item in omissions)
    raise UnseenError(
        f"there is nothing to report: {reasons}.",
        remedy="Name what --out of `unseen study` was, once a job is finished.",
    )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of what decides a job's figures and differs between two studies."""
    a, b = (dict(flat(dict(identity))) for identity in (one, other))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return [name.removeprefix("settings.") for name in names]


def results_in(folder: Path) -> Results:
    """Return the results in a folder by what its study.json says; no data are read."""
    report, _ = read([folder], Choice())
    return report.views[0]


def part(folders: Sequence[Folder], choice: Choice) -> StudyReport:
    """Return one protocol's study from what its folders say, or else its identity and records.

    Args:
        folders: Its folders, which have the same identity.
        choice: What to show of them.

    Raises:
        UnseenError: No job is finished.
    """
    omissions = [item for folder in folders for item in folder.omissions]
    jobs = list(_once((job for folder in folders for job in folder.runs), omissions))
    if not jobs:
        raise UnseenError("no job is finished")
    study = _study(folders, jobs, omissions)
    better = main_metric(study.metric, folders[0].identity.get("metrics", ()))
    metric, rule = choice.metric or better, choice.selection or study.selection
    runs = []
    for job in (job for job in jobs if job.state == "done"):
        try:
            run = selected(job.source, job.target, rule, better, job.constant)
            if metric not in run.metrics:
                raise nearest("metric", metric, run.metrics)
            runs.append(Run(job, run))
        except UnseenError as error:
            omissions.append(Omission(_place(job), str(error)))
    if not runs:
        raise UnseenError(omissions[-1].reason if omissions else "every job diverged")
    metrics = runs[0].result.metrics
    runs += [Run(job, no_selection(job.job, metrics)) for job in jobs if job.state == "diverged"]
    methods = _methods(folders, runs)
    tasks = (*(study.targets or ()), *sorted({run.task for run in runs}, key=natural))
    report = StudyReport(
        study,
        tuple(folders),
        tuple(runs),
        methods,
        tuple(dict.fromkeys(tasks)),
        metric,
        rule,
        _reference(methods, choice.reference, study.reference),
        (),
    )
    return replace(report, omissions=(*omissions, *_missing(report)))


def _once(jobs: Iterable[JobFolder], omissions: list[Omission]) -> Iterator[JobFolder]:
    firsts: dict[Job, JobFolder] = {}
    for job in jobs:
        first = firsts.setdefault(job.job, job)
        if first is job:
            yield job
            continue
        same = first.mark["records"] == job.mark["records"]
        kind = "the same records as" if same else "other records of the same job than"
        omissions.append(Omission(_place(job), f"{kind} {_place(first)}, which is shown"))


def _study(
    folders: Sequence[Folder], jobs: Sequence[JobFolder], omissions: list[Omission]
) -> StudySpec:
    """Return the study of its folder; where that cannot be read, that of identity and records."""
    place = str(folders[0].path / "study.json")
    recorded_only = {
        "methods": tuple(dict.fromkeys(job.job.method for job in jobs)),
        "seeds": tuple(sorted({job.job.seed for job in jobs})),
    }
    file = next((dict(f.settings) for f in folders if f.settings), None)
    settings = file or dict(folders[0].identity["settings"]) | recorded_only
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


def _methods(folders: Sequence[Folder], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the methods in the study's order; else in that of the package's list."""
    methods = dict.fromkeys(run.method for run in runs)
    if any(folder.settings for folder in folders):
        listed = [_named(m) for f in folders for m in f.settings.get("methods", ())]
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
    stopped = any(folder.omissions for folder in report.folders)
    total = len(report.tasks) * len(report.seeds)
    for method in report.methods:
        there = sum(run.method == method for run in report.runs)
        if there < total and method not in report.refused:
            why = "" if stopped or there else ": it has no records"
            yield Omission(method, f"{there} of {total} jobs are shown{why}")


def _place(job: JobFolder) -> str:
    return "/".join(job.folder.parts[-5:])
