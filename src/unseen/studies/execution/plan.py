"""What a study comes to: everything checked before any training, and the jobs that are missing."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product, starmap
from pathlib import Path
from typing import Any

import torch

from unseen.core.exchange import Method
from unseen.core.metrics.evaluation import (
    METRICS,
    check_ordered,
)
from unseen.data import info as info_of
from unseen.data.dataset import DataSet
from unseen.data.networks.pretrained import PRETRAINED, from_data
from unseen.engine.stacked import NO_STEPS, unstackable
from unseen.errors import UnseenError, check_known, nearest, noting
from unseen.expression import parse
from unseen.studies.execution.checks import (
    check_clients,
    check_events,
    check_in_process,
    check_masks,
    check_model,
    check_private,
)
from unseen.studies.execution.doubts import (
    Doubt,
    doubts_of,
    empty_columns,
    of_empty,
    of_unscaled,
    sentences,
    unscaled_columns,
)
from unseen.studies.execution.frozen import featured
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.execution.method_checks import check_method, left_out
from unseen.studies.execution.prepare import check_sizes, prepare
from unseen.studies.execution.runtime import (
    composed,
    first_model,
    first_network_and_report,
)
from unseen.studies.execution.search import jobs_of, tuned
from unseen.studies.execution.setting import FREE, Setting, digest_of, initial_weights, keep, read
from unseen.studies.execution.spaces import check_space, extremes
from unseen.studies.results import records, selection, study_file
from unseen.studies.results.records import Job
from unseen.studies.settings import user_code
from unseen.studies.settings.holdout import Task, plan
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.study import StudySpec, recorded


@dataclass(frozen=True)
class Plan:
    """A checked study.

    Attributes:
        setting: What all its jobs share.
        data: The data set.
        methods: All methods, by their canonical expressions.
        tasks: The tasks of its hold-out plan.
        not_applicable: Methods that this data or model cannot serve, with the reason.
        code: Digests of the user's own parts.
        warnings: What deserves one.
        alone: Methods whose models train one after the other although the study asks for batches of
            models, with the reason.
        stand_in: Whether the data are a synthetic stand-in, by their marker or by what the folder's
            study file says of them.
    """

    setting: Setting
    data: DataSet
    methods: tuple[str, ...]
    tasks: tuple[Task, ...]
    not_applicable: dict[str, str]
    code: user_code.Code
    warnings: tuple[str, ...] = ()
    alone: dict[str, str] = field(default_factory=dict)
    stand_in: bool = False

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        methods = (name for name in self.methods if name not in self.not_applicable)
        tasks = [task.name for task in self.tasks]
        return tuple(starmap(Job, product(methods, tasks, self.setting.study.seed_list)))

    @cached_property
    def missing(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if not records.is_done(job.folder(self.setting.out)))

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides what a job computes."""
        return {
            "settings": self.setting.study.model_dump(mode="json", exclude=FREE),
            "model": self.setting.model,
            "metrics": list(self.setting.metrics),
            "data": f"{self.data.name} {self.setting.data}",
        } | ({"weights": str(self.setting.weights)} if self.setting.weights else {})

    def check_code(self) -> None:
        """Refuse to show records of other code than today's as what today's code does."""
        study_file.check_code(self.setting.out, self.code, self.methods)

    def content(self) -> study_file.Content:
        return study_file.Content(
            identity=self.identity,
            study=self.setting.study.model_dump(mode="json"),
            tasks=[task.name for task in self.tasks],
            not_applicable=self.not_applicable,
            stand_in=self.stand_in,
            notes=self.data.notes,
            code=self.code,
        )


def prepare_study(study: StudySpec, out: Path, data_dir: str | Path | None = None) -> Plan:
    """Read the data, check everything that can be checked before training, list the jobs."""
    check_device(study.device)
    check_in_process(study)
    place = data_dir or os.environ.get("UNSEEN_DATA")
    directory = Path(place).expanduser() if place else None
    info = info_of(parse(study.dataset)[0].name)
    model = study.model or info.model
    # Before images are decoded, which may take hours.
    weights = initial_weights(study, model, directory)
    data = featured(read(study.dataset, directory), study, model, weights, directory)
    check_masks(study, data)
    metrics = chosen_metrics(study, data, info.metrics)
    setting = Setting(study, out, directory, digest_of(data), model, metrics, weights=weights)
    keep(setting, data)
    methods = {m.name: m for m in (composed(text, study, data) for text in study.methods)}
    if study.reference is not None:
        check_known("method to compare with", methods, study.reference)
    tasks = plan(study.holdout, data.names, study.targets)
    check_selection(study, metrics, tasks)
    sources = {name for task in tasks for name in task.sources}
    check_sizes([domain for domain in data.domains if domain.name in sources])
    warnings, refused = check_tasks(setting, data, tasks, methods)
    warnings += check_search(
        setting, data, tasks, [name for name in methods if name not in refused]
    )
    alone = alone_of(setting, data, tasks, methods) if study.stacked else {}
    slow = (
        f"{name} trains one model after the other: {reason}"
        for name, reason in alone.items()
        if reason != NO_STEPS
    )
    warnings = (*data.notes, *warnings, *slow)
    code = user_code.code_of(methods, model=model, dataset=study.dataset)
    planned = Plan(setting, data, tuple(methods), tasks, refused, code, warnings, alone)
    return marked(planned, data.stand_in)


def marked(planned: Plan, stand_in: bool) -> Plan:
    """Mark the study as on a stand-in if the data are one now or were when its folder was begun."""
    check_folder(planned)
    before = {} if differs(planned) else study_file.read(planned.setting.out)
    return replace(planned, stand_in=stand_in or bool(before.get("stand_in")))


def check_device(device: str) -> None:
    """Refuse a device that this machine lacks."""
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UnseenError(f"device must be cpu or cuda (or cuda:1, ...); found {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UnseenError(f"device = {device!r}, but torch finds no GPU here.", remedy="Use 'cpu'.")


def check_selection(study: StudySpec, metrics: Sequence[str], tasks: Sequence[Task]) -> None:
    """Refuse a selection rule or a metric that the records will not serve."""
    selection.rule(study.selection)
    rule = parse(study.selection)[0].name
    if rule == "target-oracle" and not all(task.targets for task in tasks):
        raise UnseenError(
            "selection = 'target-oracle' looks at a target, and holdout = 'none' leaves none.",
            remedy="Take source-validation.",
        )
    if rule == "ood-validation" and not all(task.validation for task in tasks):
        raise UnseenError(
            "selection = 'ood-validation' needs domains that are neither source nor target.",
            remedy="Name them as validation = [...] in the study's [holdout].",
        )
    offered = (*metrics, *(f"worst {m}@{column}" for m in metrics for column in study.groups))
    for name in (study.metric, (study.tune or Tune()).metric):
        check_ordered(name)
        if name is not None and name not in offered:
            raise nearest("metric", name, (*METRICS, *offered[len(metrics) :]))


def check_tasks(
    setting: Setting, data: DataSet, tasks: Sequence[Task], methods: dict[str, Method]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Check clients and model of every task.

    Returns:
        What deserves a warning; and the methods that cannot run, with the reason.
    """
    study, seed = setting.study, setting.study.seed_list[0]
    count, warnings, refused = study.participation, list[str](), dict[str, str]()
    doubts: list[Doubt] = []
    empty, flat = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
    steps = not all(method.fits for method in methods.values())
    for task in tasks:
        prepared = prepare(data, task, study, seed)
        if isinstance(count, int) and count > len(prepared.sources):
            what = f"participation = {count} clients per round, but task {task.name!r} has "
            what += f"{len(prepared.sources)} source " + (
                "clients." if study.partition else "domains."
            )
            raise UnseenError(what, remedy="A share, such as 0.5, fits every task.")
        network, report = first_network_and_report(setting, prepared, seed)
        # A package's head is always of ImageNet's classes, and the data folder's file has none.
        of_imagenet = study.weights == PRETRAINED or from_data(setting.model)
        if report is not None and report.notes and not of_imagenet:
            warnings.append(str(report))
        check_model(network, prepared, study)
        check_clients(prepared, study, task, steps)
        doubts += doubts_of(prepared, study, data.classes or (), steps)
        empty[task.name] = empty_columns(prepared, data.schema)
        flat[task.name] = unscaled_columns(prepared, data.schema)
        if prepared.times:
            check_events(prepared, task)
        warnings += check_private(study, data, network, prepared.sources)
        for name, method in methods.items():
            if reason := check_method(setting, prepared, method, network, seed):
                refused[name] = reason
            else:
                warnings += left_out(setting, prepared, method, network, seed)
    doubtful = [*sentences(doubts), *of_empty(empty), *of_unscaled(flat), *warnings]
    return tuple(dict.fromkeys(doubtful)), refused


def check_search(
    setting: Setting, data: DataSet, tasks: Sequence[Task], methods: Sequence[str]
) -> tuple[str, ...]:
    """Check what a search will try, at the fewest sources that a trial has.

    Returns:
        What deserves a warning.
    """
    study, plans = setting.study, dict[str, tuple[Setting, dict[str, Method]]]()
    if study.tune is None:
        return ()
    warnings = check_space(study)
    jobs_of(study, methods, tasks)  # refuses a grid of what is not a list
    inner = [task for outer in tasks for task in study.tune.tasks(outer)]
    fewest = min(inner, key=lambda task: len(task.sources))
    trains = study.tune.length
    for name in methods:
        for text, settings in extremes(study, name):
            values = ", ".join(f"{key}={value}" for key, value in settings.items())
            with noting(
                f"This is a trial of the search: {', '.join(filter(None, (text, values)))}."
            ):
                changed, _ = plans.setdefault(values, (tuned(setting, {**settings, **trains}), {}))
                plans[values][1][text] = composed(text, changed.study, data)
    for values, (changed, trials) in plans.items():
        more = f", with {values}" * bool(values)
        with noting(f"This is a trial of the search, without the sources left out{more}."):
            check_tasks(changed, data, (fewest,), trials)
    return tuple(warnings)


def alone_of(
    setting: Setting, data: DataSet, tasks: Sequence[Task], methods: Mapping[str, Method]
) -> dict[str, str]:
    """Return the methods whose models cannot train in a batch, with the reason."""
    seed = setting.study.seed_list[0]
    prepared = prepare(data, tasks[0], setting.study, seed)
    model = first_model(setting, prepared, seed, device="cpu")
    reasons = {name: unstackable(m, model, prepared.sources) for name, m in methods.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def check_folder(planned: Plan, strict: bool = False) -> None:
    """Refuse to mix two studies in one folder.

    Settings under which no job was ever finished bind nobody, unless `strict`.
    """
    difference, out = differs(planned), planned.setting.out
    if not study_file.read(out) and (jobs := of_others(planned)):
        what = f"{out} has no {study_file.NAME}, and records of other settings ({jobs[0].method})."
        raise UnseenError(what, remedy="Choose another --out, or remove that folder.")
    if difference and (strict or study_file.has_results(out)):
        what = f"{out} holds another study: {difference}."
        raise UnseenError(what, remedy="Choose another --out, or remove that folder.")


def of_others(planned: Plan) -> list[Job]:
    """Return the finished jobs whose own mark says that other settings made their records."""
    now, out = planned.setting.digest, planned.setting.out
    finished = [job for job in planned.jobs if records.is_done(job.folder(out))]
    return [j for j in finished if records.mark(j.folder(out)).get("settings", now) != now]


def differs(planned: Plan) -> str:
    """Return what the folder's study file says otherwise; nothing where it says nothing."""
    try:
        identity = study_file.read(planned.setting.out)["identity"]
        settings = recorded(identity["settings"])
    except (ValueError, KeyError, TypeError):
        return ""
    now = planned.identity
    # The metrics that are recorded decide, not how the study asks for them.
    settings["metrics"] = now["settings"]["metrics"]
    # A setting that is younger than the folder had its default.
    usual = {"settings": StudySpec().model_dump(mode="json", exclude=FREE)}
    return _difference(identity | {"settings": settings}, now, usual)


def holds(folder: Path, study: StudySpec) -> bool:
    """Return whether a folder has results of a study of these settings, whose data are not read."""
    try:
        settings = recorded(study_file.read(folder)["identity"]["settings"])
    except (ValueError, KeyError, TypeError):
        return False
    usual = StudySpec().model_dump(mode="json", exclude=FREE)
    now = study.model_dump(mode="json", exclude=FREE)
    return study_file.has_results(folder) and not _difference(settings, now, usual)


def _difference(before: Any, now: Any, usual: Any, prefix: str = "") -> str:
    usual = usual if isinstance(usual, dict) else {}
    parts = []
    for key in sorted({*before, *now}):
        a, b = before.get(key, usual.get(key)), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            parts.append(_difference(a, b, usual.get(key), f"{prefix}{key}."))
        elif json.dumps(a) != json.dumps(b):  # 1 client is not 1.0, all of them
            parts.append(f"{prefix}{key} was {a!r} and is {b!r}")
    return ", ".join(filter(None, parts))
