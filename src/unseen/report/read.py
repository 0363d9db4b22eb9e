"""From folders of records to studies of one protocol each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unseen.errors import UnseenError, nearest
from unseen.expression import parse
from unseen.methods import METHODS
from unseen.methods.compose import method as compose
from unseen.report.folders import Folder, Omission, read_folder
from unseen.report.study_report import Run, StudyReport, natural
from unseen.results.records import Job
from unseen.results.selection import (
    Selected,
    less_is_better,
    main_metric,
    no_selection,
    selected,
)
from unseen.results.study_folder import JobFolder
from unseen.spec.study import Recipe, StudySpec, recorded


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


def read(
    paths: Sequence[Path], choice: Choice
) -> tuple[tuple[StudyReport, ...], tuple[Omission, ...]]:
    """Return the parts of a page, and what could not be read; UnseenError if nothing is left."""
    folders, left = [], []
    for path in dict.fromkeys(p.resolve() for p in paths):
        folder = read_folder(path)
        if isinstance(folder, Folder):
            folders.append(folder)
        else:
            left.append(folder)
    groups: dict[str, list[Folder]] = {}
    for folder in folders:
        groups.setdefault(json.dumps(folder.identity, sort_keys=True), []).append(folder)
    parts = []
    for group in groups.values():
        try:
            parts.append(part(group, choice))
        except UnseenError as error:
            left += [Omission(str(f.path), str(error)) for f in group]
            left += [item for f in group for item in f.left]
    if not parts:
        raise UnseenError(
            "there is nothing to report: "
            + "; ".join(f"{item.place}: {item.reason}" for item in left)
            + ". A report is made from the folder that `unseen study --out` wrote to, once a job "
            "is finished."
        )
    return tuple(parts), tuple(left)


def part(folders: Sequence[Folder], choice: Choice) -> StudyReport:
    """Return one protocol's study from what its folders say, or else its identity and records."""
    left = [item for folder in folders for item in folder.left]
    jobs = list(_once((job for folder in folders for job in folder.runs), left))
    if not jobs:
        raise UnseenError("no job is finished")
    study = _study(folders, jobs, left)
    better = main_metric(study.metric, folders[0].identity.get("metrics", ()))
    metric, rule = choice.metric or better, choice.selection or study.selection
    runs = []
    for job in jobs:
        try:
            if job.state == "done":
                runs.append(Run(job, _selected(job, rule, better, metric)))
        except UnseenError as error:
            left.append(Omission(_place(job), str(error)))
    if not runs:
        raise UnseenError(left[-1].reason if left else "every job diverged")
    metrics = runs[0].chosen.metrics
    runs += [Run(job, no_selection(job.job, metrics)) for job in jobs if job.state == "diverged"]
    methods, tasks = _methods(folders, runs), _tasks(study, runs)
    page_part = StudyReport(
        study, tuple(folders), tuple(runs), methods, tasks, metric, rule, None, ()
    )
    reference = _reference(page_part, choice)
    return replace(page_part, reference=reference, left=(*left, *_missing(page_part)))


def _selected(job: JobFolder, rule: str, better: str, metric: str) -> Selected:
    lower = less_is_better(better)
    run = selected(job.source, job.target, rule, better, lower, job.constant)
    if metric not in run.metrics:
        raise nearest("metric", metric, run.metrics)
    return run


def _once(jobs: Iterable[JobFolder], left: list[Omission]) -> Iterable[JobFolder]:
    """Yield each job once; the same job of a second folder is left out."""
    seen: dict[Job, JobFolder] = {}
    for job in jobs:
        first = seen.setdefault(job.job, job)
        if first is job:
            yield job
            continue
        same = first.mark["records"] == job.mark["records"]
        kind = "the same records as" if same else "other records of the same job than"
        left.append(Omission(_place(job), f"{kind} {_place(first)}, which is shown"))


def _study(folders: Sequence[Folder], jobs: Sequence[JobFolder], left: list[Omission]) -> StudySpec:
    """The study as its folder has it; where that cannot be read, what identity and records show."""
    shown = {
        "methods": tuple(dict.fromkeys(job.job.method for job in jobs)),
        "seeds": tuple(sorted({job.job.seed for job in jobs})),
    }
    written = next((dict(f.settings) for f in folders if f.settings), None)
    settings = written or dict(folders[0].identity["settings"]) | shown
    usable = {key: value for key, value in settings.items() if key in StudySpec.model_fields}
    unknown = sorted(set(settings) - set(usable))
    training = usable.get("training", {})
    if isinstance(training, dict):
        usable["training"] = {k: v for k, v in training.items() if k in Recipe.model_fields}
        unknown += sorted(f"training.{k}" for k in set(training) - set(usable["training"]))
    if unknown:
        reason = f"settings of another version are not read: {', '.join(unknown)}"
        left.append(Omission(str(folders[0].path / "study.json"), reason))
    try:
        return StudySpec(**recorded(usable))
    except UnseenError as error:
        left.append(Omission(str(folders[0].path / "study.json"), str(error)))
        return StudySpec(dataset=str(settings.get("dataset", "study")), **shown)


def _methods(folders: Sequence[Folder], runs: Sequence[Run]) -> tuple[str, ...]:
    """In the study's order; else in that of the package's list."""
    methods = dict.fromkeys(run.method for run in runs)
    if any(folder.settings for folder in folders):
        listed = [m for f in folders for m in f.settings.get("methods", ())]
        return tuple(dict.fromkeys((*map(_named, listed), *methods)))
    order = {name: i for i, name in enumerate(METHODS)}
    return tuple(sorted(methods, key=lambda m: (order.get(_first(m), len(order)), m)))


def _named(expression: str) -> str:
    """A method as its records call it."""
    try:
        return compose(expression).name
    except UnseenError:
        return expression


def _first(expression: str) -> str:
    try:
        return parse(expression)[0].name
    except UnseenError:
        return expression


def _tasks(study: StudySpec, runs: Sequence[Run]) -> tuple[str, ...]:
    tasks = sorted({run.task for run in runs}, key=natural)
    return tuple(dict.fromkeys((*(study.targets or ()), *tasks)))


def _reference(page_part: StudyReport, choice: Choice) -> str | None:
    """The method to test against: as asked for, as the study says, or fedavg if it is there."""
    methods, reference = page_part.methods, choice.reference or page_part.study.reference
    reference = _named(reference) if reference else None
    if reference is not None and reference in methods:
        return reference
    if choice.reference:
        raise nearest("method to compare with", choice.reference, methods)
    return "fedavg" if "fedavg" in methods and len(methods) > 1 else None


def _missing(page_part: StudyReport) -> list[Omission]:
    """Jobs that the study asks for and that no folder has."""
    stopped = [item.place for folder in page_part.folders for item in folder.left]
    wanted, left = len(page_part.tasks) * len(page_part.seeds), []
    for method in page_part.methods:
        there = sum(run.method == method for run in page_part.runs)
        if there < wanted and method not in page_part.refused:
            reason = f"{there} of {wanted} jobs are shown"
            left.append(
                Omission(method, reason + ("" if stopped or there else ": it has no records"))
            )
    return left


def _place(job: JobFolder) -> str:
    return "/".join(job.folder.parts[-5:])
