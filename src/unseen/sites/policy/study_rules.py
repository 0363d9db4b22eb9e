"""The rules of a site that a study alone can break, before any question and any data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unseen.core import Method
from unseen.data import heart
from unseen.data.tables.sheet import names_of
from unseen.expression import fold, nested, parse
from unseen.methods.compose import METHODS, MODIFIERS
from unseen.methods.compose import method as compose
from unseen.privacy.dp import read as read_noise
from unseen.sites.policy.site_policy import CHANNELS, SIGHTS, SitePolicy
from unseen.studies.settings.study import StudySpec


class Breach(NamedTuple):
    """A rule of site.toml and what a study or a question breaks it by."""

    rule: str
    why: str


#: Threads that any machine can run at once, if slowly.
THREADS = 16
Check = Callable[[SitePolicy, StudySpec], Iterator[str]]


def expressions(study: StudySpec) -> list[str]:
    """Return all settings of a study that name parts."""
    recipe = study.training
    texts = [study.dataset, *study.methods, recipe.optimiser, recipe.schedule, recipe.server]
    privacy = study.privacy
    texts += [privacy.channel, privacy.examples, privacy.clients]
    return [*filter(None, (*texts, study.model, recipe.augment))]


def columns_of(expression: str) -> list[tuple[str, str]]:
    """Return the columns that a data set's expression names, each with every use of it.

    Example:
        >>> columns_of("table(path='v.csv', domain='site', label='died', groups=['sex', 'died'])")
        [('site', 'domain'), ('died', 'label'), ('sex', 'group'), ('died', 'group')]
    """
    (call,) = parse(expression)
    if call.name == "heart-disease":
        return [("num", "label"), *((name, "feature") for name in heart.CATEGORICAL)]
    uses: list[tuple[str, str]] = []
    if call.name == "table":
        options = {"domain": "domain", "label": "label", "event": "label", "unit": "unit"}
        many = {"groups": "group", "text": "text", "categorical": "feature"}
        for option, use in (options | many).items():
            value: Any = call.arguments.get(option)
            uses += [(name, use) for name in (names_of(value) if value is not None else ())]
    return uses


def label_of(expression: str) -> str:
    """Return what the label of a data set is called."""
    uses = columns_of(expression)
    return next((name for name, use in uses if use == "label"), "classes")


def _code(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    """Yield the parts outside unseen that the site has not allowed."""
    for expression in expressions(study):
        for call in nested(expression):
            if ":" in call.name and call.name not in policy.code:
                yield f"the study names {call.name!r}, which is not a part of unseen"


def _files(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    """Yield the paths that lead out of the data's folder."""
    for expression in expressions(study):
        for call in nested(expression):
            for option, value in call.arguments.items():
                if isinstance(value, str) and (Path(value).is_absolute() or ".." in value):
                    what = f"the option {option} = {value!r} of {call.name} leads out of the data"
                    yield f"{what}; a study names paths below it"


def _datasets(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    name = parse(study.dataset)[0].name
    if policy.datasets is not None and name not in policy.datasets:
        yield f"the data set is {name!r}, and allowed are {', '.join(policy.datasets)}"


def _columns(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    columns = columns_of(study.dataset)
    if policy.columns is None:
        if policy.approval == "auto" and columns:
            yield "approval is 'auto', and no [columns] says what may be read"
        return
    for name, use in columns:
        # A site's own file needs no column that names the site.
        if use != "domain" and not policy.allows(name, use):
            yield f"the column {name!r} may not be used as {use}"


def parts_of(expression: str) -> set[str]:
    """Return the names that a method is made of, those of the members of a mixture, too.

    Example:
        >>> sorted(parts_of("stack(members=['glm', 'fedavg+ga'])"))
        ['fedavg', 'ga', 'glm', 'stack']
    """
    parts = {*map(fold, (*METHODS, *MODIFIERS))} | {call.name for call in parse(expression)}
    names = {call.name for call in nested(expression)}
    return {name for name in names if name in parts or ":" in name}


def _methods(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    for text in study.methods:
        rules = policy.methods
        if rules.names and (others := parts_of(text) - set(rules.names)):
            yield f"{text} is made of {', '.join(sorted(others))}, and methods.names lists others"
        yield from method_breaches(policy, compose(text))


def method_breaches(policy: SitePolicy, method: Method) -> Iterator[str]:
    """Yield what a method shows of a site beyond what its policy allows."""
    limit, sight = policy.methods.sees, sight_of(method)
    if SIGHTS.index(sight) > SIGHTS.index(limit):
        yield f"the rule of {method.name} sees {sight} of updates, and {limit} are the most"
    if method.shares and not policy.methods.extras:
        yield f"{method.name} also sends {'; '.join(method.shares)}"


def sight_of(method: Method) -> str:
    """Return what the server's rules of a method see of updates at the most."""
    rules = [slot.combine for exchange in method.exchanges for slot in exchange.slots.values()]
    sights = [rule.sees for rule in rules if rule is not None]
    return max(sights, key=SIGHTS.index, default=SIGHTS[0])


def _channel(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    if study.privacy.kind not in CHANNELS:
        yield f"the channel is {study.privacy.kind!r}, and there are {', '.join(CHANNELS)}"
    elif CHANNELS.index(study.privacy.kind) < CHANNELS.index(policy.least.channel):
        least = f"{policy.least.channel} is the least"
        yield f"the channel is {study.privacy.kind}, in which the server reads more; {least}"


def _blind(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    if policy.least.blind and study.privacy.server != "blind":
        yield "the server would hold the model, and must be blind"


def _batch_size(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    if (size := study.training.batch_size) < policy.least.batch_size:
        yield f"a step is of {size} examples, and {policy.least.batch_size} are the least"


def _steps(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    if (steps := study.training.steps) is not None and steps < policy.least.steps:
        yield f"a reply is of {steps} steps, and {policy.least.steps} are the least"


def _examples(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    recipe, least = study.training, policy.least.examples
    if recipe.steps is not None and (count := recipe.steps * recipe.batch_size) < least:
        yield f"a reply is made of {count} examples, and {least} are the least"


def _rounds(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    if study.rounds > policy.most.rounds:
        yield f"it has {study.rounds} rounds, and {policy.most.rounds} are the most"


def _noise(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    least = policy.least.noise
    if not least and policy.most.epsilon is None:
        return
    noises = [dp for dp in read_noise(study.privacy.examples, study.privacy.clients) if dp]
    secret = [dp.noise for dp in noises if dp.seed is None]
    if not secret or not max(secret):
        yield f"it asks for no secret noise, and {least or 'some'} is the least"
    elif max(secret) < least:
        yield f"its noise is {max(secret):g}, and {least:g} is the least"


def _threads(policy: SitePolicy, study: StudySpec) -> Iterator[str]:
    """Yield whether a step would take more threads than a machine can run: it would not end."""
    most = max(os.cpu_count() or 1, THREADS)
    if study.threads > most:
        yield f"a step would take {study.threads} threads, and {most} are the most here"


#: Rule -> what of a study breaks it. The first decides whether the others can look at all.
RULES: Mapping[str, Check] = {
    "code": _code, "files": _files, "datasets": _datasets, "columns": _columns,
    "methods": _methods, "least.channel": _channel, "least.blind": _blind,
    "least.batch_size": _batch_size, "least.steps": _steps, "least.examples": _examples,
    "most.rounds": _rounds, "least.noise": _noise, "study": _threads,
}  # fmt: skip


def breaches(policy: SitePolicy, study: StudySpec) -> Iterator[Breach]:
    """Yield every rule that a study breaks, those apart that need the data or a question."""
    for rule, check in RULES.items():
        words = [Breach(rule, why) for why in check(policy, study)]
        yield from words
        if rule == "code" and words:  # what is not allowed is not called, nor asked what it does
            return
