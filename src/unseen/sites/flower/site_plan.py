"""A study as it is planned over sites whose data stay there: names, tasks, clients without rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from unseen.core import Client, Method, Split
from unseen.data import info
from unseen.data.dataset import Domain, lone_classes
from unseen.data.tables.cells import identity
from unseen.data.tables.encoding import feature_names
from unseen.data.tables.remarks import twins
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.sites.flower.terms import Facts, Terms
from unseen.studies.execution import plan as plans
from unseen.studies.execution.checks import check_columns, check_masks, has_labels, needs
from unseen.studies.execution.frozen import parts_of
from unseen.studies.execution.label_kinds import chosen_metrics, scale_of, times_of, totals_of
from unseen.studies.execution.prepare import Prepared, no_sums
from unseen.studies.execution.runtime import composed
from unseen.studies.execution.setting import Setting, initial_weights
from unseen.studies.settings import user_code
from unseen.studies.settings.holdout import Fixed, Groups, Growing, Task, plan
from unseen.studies.settings.study import StudySpec


def placeholders(task: Task, terms: Terms, sums: Tensor | None, setting: Setting) -> Prepared:
    """Return a task's clients without data: names, and two empty examples to look at shapes."""
    image = terms.shape if setting.study.frozen else None
    shape, columns, data = terms.shape, no_sums(terms.schema), terms.empty()
    totals = totals_of(data, setting.study)
    if totals is not None and sums is not None:
        columns = totals.of_table(sums)
    scale, times = scale_of(data, setting.study, sums), times_of(data, setting.study)
    if terms.schema is not None and columns is not None:
        shape = (len(feature_names(terms.schema, columns)),)
    if image is not None:
        trunk, _ = parts_of(setting.study, setting.model, setting.weights, image)
        shape = trunk.shape
    classes = len(terms.classes) if terms.classes is not None else None
    y = torch.zeros(2, dtype=torch.int64 if classes else torch.float32)
    y = torch.zeros(2, 2) if times else y
    y = torch.zeros(2, *terms.shape[1:], dtype=torch.int64) if terms.masks else y
    blank = Split(torch.zeros(2, *shape), y)
    sources = {name: Client(name, blank, blank, classes) for name in task.sources}
    others = (task.validation, task.targets)
    validation, targets = ({n: Client(n, None, blank, classes) for n in names} for names in others)
    outputs = times or classes or 1
    return Prepared(
        sources, validation, targets, shape, outputs, classes, columns, scale, sums, image=image,
        times=times, masks=terms.masks,
    )  # fmt: skip


def named(study: StudySpec) -> tuple[str, ...]:
    """Return the sites that the hold-out plan names; targets need not be there."""
    if isinstance(study.holdout, Fixed) and study.holdout.source != "others":
        return (*study.holdout.source, *study.holdout.validation)
    if isinstance(study.holdout, Growing):
        return study.holdout.growing
    return ()


def required(study: StudySpec) -> tuple[str, ...]:
    """Return the sites without which there is no task: all that the plan names but its targets."""
    if isinstance(study.holdout, Fixed):
        return named(study) or study.holdout.validation
    return named(study)


def roles_of(study: StudySpec, name: str, trains: bool) -> tuple[str, ...]:
    """Return what a site is in the study's tasks: source, validation, target, or several in turn.

    Who else takes part plays no role.
    """
    who = _members(study, name)
    roles = [role for role, names in who.items() if name in names and (trains or role != "source")]
    in_turn = not isinstance(study.holdout, Fixed | Growing)
    return tuple(roles if in_turn else roles[:1])


def _members(study: StudySpec, name: str) -> dict[str, tuple[str, ...]]:
    """Role -> the sites that have it in some task, as far as the study says it of this one."""
    holdout, only = study.holdout, study.targets
    if isinstance(holdout, Fixed):
        source = (name,) if holdout.source == "others" else holdout.source
        return {"target": holdout.target, "validation": holdout.validation, "source": source}
    if isinstance(holdout, Growing):
        return {"target": holdout.target, "source": holdout.growing}
    if holdout == "none":
        return {"source": (name,)}
    if isinstance(holdout, Groups):  # whose targets are named by groups
        return {"source": (name,), "target": (name,) if holdout.of is None else holdout.of}
    target = (name,) if only is None or not isinstance(holdout, str) else tuple(only)
    return {"source": () if {*target} == {name} and only is not None else (name,), "target": target}


def tasks_of(study: StudySpec, members: Mapping[str, str]) -> tuple[Task, ...]:
    """Return the study's tasks among these sites; a target that is not there is not evaluated."""
    able = {name for name, role in members.items() if role == "train"}
    only = study.targets
    if study.holdout == "leave-one-domain-out" and only is None:
        only = tuple(sorted(set(members) - able)) or None
    targets = study.holdout.target if isinstance(study.holdout, Fixed | Growing) else ()
    domains = sorted(able if study.holdout == "none" else {*members, *(only or ()), *targets})
    tasks = []
    for task in plan(study.holdout, domains, only):
        sources = [name for name in task.sources if name in members]
        if not isinstance(study.holdout, Fixed | Growing) or (
            getattr(study.holdout, "source", ()) == "others"
        ):
            sources = [name for name in sources if name in able]
        if unable := sorted(set(sources) - able):
            what = f"{', '.join(unable)} only evaluates (role in the kit's site.toml)"
            raise UnseenError(f"{what}, and is a source of task {task.name!r}.")
        if not sources:
            raise UnseenError(
                f"task {task.name!r} has no source among {', '.join(sorted(members))}."
            )
        here = [
            tuple(n for n in names if n in members) for names in (task.targets, task.validation)
        ]
        tasks.append(Task(task.name, tuple(sources), *here))
    return tuple(tasks)


def planned_study(
    study: StudySpec, out: Path, facts: Mapping[str, Facts], terms: Terms
) -> plans.Plan:
    """Return the study, checked as far as it can be without data, and its jobs."""
    plans.check_device(study.device)
    data = replace(terms.empty(), notes=tuple(remarks(facts, terms)))
    entry = info(parse(study.dataset)[0].name)
    check_columns(study, data)
    check_masks(study, data)
    metrics = chosen_metrics(study, data, entry.metrics)
    tasks = tasks_of(study, {name: fact.role for name, fact in facts.items()})
    if not any(task.targets for task in tasks):
        study = study.model_copy(update={"holdout": "none", "targets": None})
    lines = "\n".join(f"{name} {fact.digest}" for name, fact in sorted(facts.items()))
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    model = study.model or entry.model
    weights = initial_weights(study, model, out)
    setting = Setting(study, out, None, digest, model, metrics, 0.0, weights)
    methods = {m.name: m for m in (composed(text, study, data) for text in study.methods)}
    for name in methods:
        if compose(name).gather is not None:
            raise UnseenError(f"{name} pools the sites' data, which is what a federation forbids.")
    plans.check_selection(study, metrics, tasks)
    images = len(terms.shape) == 3 and not study.frozen
    refused = {n: why for n, m in methods.items() if (why := _lacks(m, images, terms))}
    code = user_code.code_of(methods, model=model)  # the data set's own code is at the sites
    planned = plans.Plan(setting, data, tuple(methods), tasks, refused, code)
    # The sites keep what belongs to a run: its settings are fixed from its start.
    plans.check_folder(planned, strict=True)
    return plans.marked(planned, any(f.stand_in for f in facts.values()))


def remarks(facts: Mapping[str, Facts], terms: Terms) -> list[str]:
    """Return what deserves a remark in the classes that the sites named, as in one process."""
    if terms.classes is None:
        return []
    codes = {identity(name): code for code, name in enumerate(terms.classes)}
    domains = [
        Domain(site, torch.empty(0), torch.tensor([codes[identity(n)] for n in own.classes or ()]))
        for site, own in facts.items()
    ]
    alike = twins(terms.classes, "class") if terms.schema is not None else []
    return alike + lone_classes(domains, terms.classes)


def _lacks(method: Method, images: bool, terms: Terms) -> str:
    """What a method needs that the sites' data are not, as far as the terms say it."""

    def has(ask: str) -> bool:
        if ask == "images":
            return images
        return has_labels(ask, terms.classes, terms.masks) is not False

    return needs([ask for ask in method.asks if not has(ask)], terms.masks)


def stated(study: StudySpec, facts: Mapping[str, Facts]) -> dict[str, int]:
    """Return the most examples that a reply of each site may claim, by what it said at the start.

    Oversampling repeats rows of the rarer classes.
    """
    times = {n: len(f.classes or ()) if study.training.oversample else 1 for n, f in facts.items()}
    return {n: f.examples * times[n] for n, f in facts.items() if f.examples is not None}
