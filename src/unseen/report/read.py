"""From folders of records to studies of one protocol each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, nearest
from unseen.expression import parse
from unseen.methods import METHODS
from unseen.methods.compose import method as compose
from unseen.report.folders import Folder, Omission, Raw, read_folder
from unseen.report.study_report import Part, Run, natural
from unseen.results.selection import Selected, less_is_better, main_metric, selected
from unseen.spec.study import Recipe, StudySpec, recorded


@dataclass(frozen=True)
class Choice:
    """What the reader asks for instead of what the study says."""

    metric: str | None = None
    selection: str | None = None
    reference: str | None = None


def read(paths: Sequence[Path], choice: Choice) -> tuple[tuple[Part, ...], tuple[Omission, ...]]:
    """The parts of a page, and what could not be read at all; UnseenError if nothing is left."""
    folders, left = [], []
    for path in dict.fromkeys(p.resolve() for p in paths):
        found = read_folder(path)
        if isinstance(found, Folder):
            folders.append(found)
        else:
            left.append(found)
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


def part(folders: Sequence[Folder], choice: Choice) -> Part:
    """One protocol's study: from what the folders say of it, or else from identity and records."""
    left = [item for folder in folders for item in folder.left]
    runs = list(_once((raw for folder in folders for raw in folder.runs), left))
    if not runs:
        raise UnseenError("no job is finished")
    study = _study(folders, runs, left)
    metrics = tuple(folders[0].identity.get("metrics", ()))
    better = main_metric(study.metric, metrics)
    metric, rule = choice.metric or better, choice.selection or study.selection
    chosen = []
    failed = [raw for raw in runs if "diverged" in raw.mark]
    for raw in runs:
        if "diverged" in raw.mark:
            continue
        try:
            lower = less_is_better(better)
            found = selected(raw.source, raw.target, rule, better, lower, raw.constant)
            if metric not in found.metrics:
                raise nearest("metric", metric, found.metrics)
            chosen.append(Run(raw, found))
        except UnseenError as error:
            left.append(Omission(_place(raw), str(error)))
    if not chosen:
        raise UnseenError(left[-1].reason if left else "every job diverged")
    for raw in failed:
        job, none = raw.job, dict.fromkeys(chosen[0].chosen.metrics)
        chosen.append(Run(raw, Selected(job.method, job.task, job.seed, -1, none)))
    methods, tasks = _methods(study, folders, chosen), _tasks(study, chosen)
    made = Part(study, tuple(folders), tuple(chosen), methods, tasks, metric, rule, None, ())
    return replace(made, reference=_reference(made, choice), left=(*left, *_missing(made)))


def _once(raws: Iterable[Raw], left: list[Omission]) -> Iterable[Raw]:
    """Each job once; the same job of a second folder is left out."""
    seen: dict[Any, Raw] = {}
    for raw in raws:
        first = seen.setdefault(raw.job, raw)
        if first is raw:
            yield raw
            continue
        same = first.mark["records"] == raw.mark["records"]
        kind = "the same records as" if same else "other records of the same job than"
        left.append(Omission(_place(raw), f"{kind} {_place(first)}, which is shown"))


def _study(folders: Sequence[Folder], runs: Sequence[Raw], left: list[Omission]) -> StudySpec:
    """The study as its folder has it; where that cannot be read, what identity and records show."""
    shown = {
        "methods": tuple(dict.fromkeys(raw.job.method for raw in runs)),
        "seeds": tuple(sorted({raw.job.seed for raw in runs})),
    }
    written = next((dict(f.settings) for f in folders if f.settings), None)
    settings = written or dict(folders[0].identity["settings"]) | shown
    known = {key: value for key, value in settings.items() if key in StudySpec.model_fields}
    unknown = sorted(set(settings) - set(known))
    training = known.get("training", {})
    if isinstance(training, dict):
        known["training"] = {k: v for k, v in training.items() if k in Recipe.model_fields}
        unknown += sorted(f"training.{k}" for k in set(training) - set(known["training"]))
    if unknown:
        reason = f"settings of another version are not read: {', '.join(unknown)}"
        left.append(Omission(str(folders[0].path / "study.json"), reason))
    try:
        return StudySpec(**recorded(known))
    except UnseenError as error:
        left.append(Omission(str(folders[0].path / "study.json"), str(error)))
        return StudySpec(dataset=str(settings.get("dataset", "study")), **shown)


def _methods(study: StudySpec, folders: Sequence[Folder], runs: Sequence[Run]) -> tuple[str, ...]:
    """In the study's order; else in that of the package's list."""
    found = dict.fromkeys(run.method for run in runs)
    if any(folder.settings for folder in folders):
        listed = [m for f in folders for m in f.settings.get("methods", ())]
        return tuple(dict.fromkeys((*map(_named, listed), *found)))
    order = {name: i for i, name in enumerate(METHODS)}
    return tuple(sorted(found, key=lambda m: (order.get(_first(m), len(order)), m)))


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
    found = sorted({run.task for run in runs}, key=natural)
    return tuple(dict.fromkeys((*(study.targets or ()), *found)))


def _reference(made: Part, choice: Choice) -> str | None:
    """The method to test against: as asked for, as the study says, or fedavg if it is there."""
    asked = choice.reference or made.study.reference
    asked = _named(asked) if asked else None
    if asked is not None and asked in made.methods:
        return asked
    if choice.reference:
        raise nearest("method to compare with", choice.reference, made.methods)
    return "fedavg" if "fedavg" in made.methods and len(made.methods) > 1 else None


def _missing(made: Part) -> list[Omission]:
    """Jobs that the study asks for and that no folder has."""
    stopped = [item.place for folder in made.folders for item in folder.left]
    wanted, left = len(made.tasks) * len(made.seeds), []
    for method in made.methods:
        there = sum(run.method == method for run in made.runs)
        if there < wanted and method not in made.refused:
            reason = f"{there} of {wanted} jobs are shown"
            left.append(
                Omission(method, reason + ("" if stopped or there else ": it has no records"))
            )
    return left


def _place(raw: Raw) -> str:
    return "/".join(raw.folder.parts[-5:])
