"""What a site would refuse of a study later, found before it is approved, by its own data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from unseen.core import Turn
from unseen.core.round import due
from unseen.data import info
from unseen.data.dataset import DataSet
from unseen.engine.inprocess import single
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.local.train import reads_validation
from unseen.privacy import channel, kinds
from unseen.sites.flower.site import Site, load
from unseen.sites.flower.site_plan import roles_of
from unseen.sites.policy import spending
from unseen.sites.policy.few_rows import kept_names
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.sites.policy.site_policy import CHANNELS
from unseen.sites.policy.study_rules import breaches, label_of, method_breaches
from unseen.studies.execution.checks import check_clients, check_noised
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.execution.method_checks import check_batches
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Setting
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec


@dataclass(frozen=True)
class Refusal:
    """What would be refused.

    `trains` says whether this site could then not train; else its figures alone would not leave.
    """

    rule: str
    why: str
    remedy: str = ""
    trains: bool = True

    def __str__(self) -> str:
        return f"{self.why} (rule {self.rule})" + (f" -> {self.remedy}" if self.remedy else "")


def refusals(site: Site, study: StudySpec) -> tuple[list[Refusal], DataSet | None]:
    """Return all that the site would refuse, and its data, where the study itself is allowed."""
    if broken := of_study(site, study):
        return broken, None
    data, roles = load(site, study), roles_of(study, site.name, site.role == "train")
    return list(of_data(site, study, data, roles)), data


def of_study(site: Site, study: StudySpec) -> list[Refusal]:
    """Return what the study alone breaks; nothing more is looked at if that is foreign code."""
    remedy = "change the study, or this site's rules"
    return [Refusal(breach.rule, breach.why, remedy) for breach in breaches(site.policy, study)]


def of_data(site: Site, study: StudySpec, data: DataSet, roles: Sequence[str]) -> Iterator[Refusal]:
    """Yield what would be refused because of this site's rows and keys.

    The study breaks no rule by itself; `roles` are what the site is in its tasks.
    """
    rows, least = len(data.domains[0].y), site.policy.least.examples
    if ("source" in roles or site.role == "train") and rows < least:
        remedy = "bring more rows, or lower least.examples in site.toml"
        yield Refusal("least.examples", f"{rows} rows are here, and {least} are the least", remedy)
        return
    for why, remedy in kept_names(site.policy, data, label_of(study.dataset)):
        yield Refusal("columns", why, remedy)
    yield from _keys(site, study, roles)
    yield from _sites(site, study, roles)
    yield from _figures(site, study, roles)
    if "source" in roles:
        for seed in study.seed_list:
            refusals = list(_source(site, study, data, seed))
            yield from refusals
            if refusals:  # another seed splits as many rows
                return
        if data.classes is None or len(data.classes) > 1:
            yield from _answers(site, study, data)
    for role in (role for role in roles if role != "source"):
        if rows < least and study.privacy.metrics != "none":
            remedy = f"lower least.examples to {rows} in site.toml, or leave this site out"
            why = f"{rows} rows are measured as {role}, and {least} are the least"
            yield Refusal("least.examples", why, remedy, trains=False)


def rows_by_split(study: StudySpec, data: DataSet, name: str) -> tuple[int, int]:
    """Return how many rows a site trains on and holds back, with the study's first seed."""
    client = prepared_here(study, data, name).everyone[name]
    return len(client.split("train")), len(client.split("validation"))


def prepared_here(study: StudySpec, data: DataSet, name: str, seed: int | None = None) -> Prepared:
    """Return a site's rows as it would train on them, with the study's first seed by default."""
    first = study.seed_list[0] if seed is None else seed
    return prepare(data, Task("preflight", (name,), (), ()), study, first)


def runtime_here(
    study: StudySpec, data: DataSet, prepared: Prepared, method: str, seed: int
) -> Runtime:
    """Return what a site would run, by its own data alone: others may add categories."""
    entry = info(parse(study.dataset)[0].name)
    metrics = chosen_metrics(study, data, entry.metrics)
    setting = Setting(study, Path(), None, "", study.model or entry.model, metrics)
    return Runtime.of(setting, data, prepared, method, seed, clients=3)


def _keys(site: Site, study: StudySpec, roles: Sequence[str]) -> Iterator[Refusal]:
    if study.privacy.kind not in CHANNELS:
        return
    for name in channel.read(study.privacy.channel, study.privacy.server).files:
        if not ((site.kit or Path()) / name).is_file():
            remedy = "the organiser makes the keys: unseen federation provision --renew KIND"
            why = f"privacy.channel = {study.privacy.channel!r} needs {name} in this kit"
            yield Refusal("study", why, remedy)
    publics = (site.kit or Path()) / kinds.PUBLICS
    if study.privacy.kind == "masks" and "source" in roles and publics.is_file():
        keys = json.loads(publics.read_text("utf-8"))
        if strangers := sorted({*_named(study)} - {*keys}):
            why = f"this site has no key to mask its rows from {', '.join(strangers)}"
            yield Refusal("least.sites", why, f"carry the new {publics.name} to this kit")


def _named(study: StudySpec) -> tuple[str, ...]:
    """The sources that the plan names."""
    named = getattr(study.holdout, "source", ())
    return named if isinstance(named, tuple) else ()


def _figures(site: Site, study: StudySpec, roles: Sequence[str]) -> Iterator[Refusal]:
    """Yield what of this site's metrics its rules keep here."""
    if study.privacy.metrics == "none":
        return
    for kind in dict.fromkeys("validation" if role == "source" else "target" for role in roles):
        if kind not in site.policy.evaluate:
            remedy = f"evaluate = [..., {kind!r}] in site.toml lets them leave"
            yield Refusal(
                "evaluate", f"metrics of its rows as {kind} do not leave", remedy, trains=False
            )


def _sites(site: Site, study: StudySpec, roles: Sequence[str]) -> Iterator[Refusal]:
    named, least = _named(study), site.policy.least.sites
    if "source" in roles and 0 < len(named) < least:
        why = f"{len(named)} sites train together, and {least} are the least"
        yield Refusal("least.sites", why, "name more sites as sources, or lower least.sites")


def _source(site: Site, study: StudySpec, data: DataSet, seed: int) -> Iterator[Refusal]:
    """Yield what would be refused of a site that trains, with one seed."""
    try:
        prepared = prepared_here(study, data, site.name, seed)
    except UnseenError as error:
        yield Refusal("study", error.what.rstrip("."), error.remedy)
        return
    client, policy = prepared.everyone[site.name], site.policy
    train, rest = len(client.split("train")), len(client.split("validation"))
    least, rows = policy.least.examples, train + rest
    there = f"of {rows} rows {train} are trained on and {rest} held back"
    remedies = f"lower least.examples in site.toml to {max(1, min(train, rest))}"
    if train < least:
        why = f"{there}, and {least} are the least to train on"
        yield Refusal("least.examples", why, f"{remedies}, or bring more rows")
        return
    measured = study.privacy.metrics != "none" and "validation" in policy.evaluate
    if rest < least and measured:
        share = least / rows
        larger = f"validation = {share:.2f} in the study holds back {least}, or "
        other = 'privacy.metrics = "none" asks for no figures'
        remedy = f"{larger * (share <= 0.5)}{remedies}, or {other}"
        why = f"{there}, and figures of fewer than {least} do not leave"
        yield Refusal("least.examples", why, remedy, trains=False)
    if data.classes is not None and len(data.classes) < 2:
        return  # what a method is then made of depends on the other sites' classes
    for text in study.methods:
        yield from _method(site, study, data, prepared, text, seed)


def _method(
    site: Site, study: StudySpec, data: DataSet, prepared: Prepared, text: str, seed: int
) -> Iterator[Refusal]:
    """Yield what would be refused of one method, completed for this site's data."""
    policy, client = site.policy, prepared.everyone[site.name]
    train, rest = len(client.split("train")), len(client.split("validation"))
    try:
        runtime = runtime_here(study, data, prepared, text, seed)
        method = runtime.method
        check_clients(prepared, study, Task("preflight", (site.name,), (), ()), not method.fits)
        if not method.fits:
            check_batches(runtime.model.module, prepared.sources, study)
        check_noised(study, data, runtime.model.module)
    except UnseenError as error:  # a part that does not fit is left out of the study, by name
        if type(error) is UnseenError:
            yield Refusal("study", f"{text}: {error.what.rstrip('.')}", error.remedy)
        return
    for why in method_breaches(policy, method):
        yield Refusal("methods", why, "leave the method out, or allow it in [methods]")
    rounds = max(study.rounds, method.rounds or 0)
    if rounds > policy.most.rounds:
        why = f"{text} takes {rounds} rounds, and {policy.most.rounds} are the most"
        yield Refusal("most.rounds", why, "ask for fewer, or raise most.rounds in site.toml")
    least = policy.least
    for exchange in (exchange for exchange in method.exchanges if exchange.slots):
        validates = any(map(reads_validation, single(exchange.local)))
        if validates and "validation" not in policy.evaluate:
            why = f"{text} sends figures of its held-back rows, and these do not leave"
            yield Refusal("evaluate", why, 'evaluate = ["validation"] in site.toml lets them')
        _, steps, behind = spending.trained_counts(client, exchange.local, validates)
        if steps is not None and steps < least.steps:
            why = f"{text} takes {steps} steps on {train} rows, and {least.steps} are the least"
            yield Refusal("least.steps", why, "take smaller batches or more epochs")
        if behind < least.examples:
            why = f"{text}: {exchange.name} would be made of {behind} of {train + rest} rows"
            why += f", and {least.examples} are the least"
            remedy = f"hold back more rows, or lower least.examples in site.toml to {behind}"
            yield Refusal("least.examples", why, remedy)


def _answers(site: Site, study: StudySpec, data: DataSet) -> Iterator[Refusal]:
    """Yield where one task of the study asks for more answers than this site gives, or more ε."""
    most, lines = site.policy.most, SiteLedger(site.account).lines()
    seed, seeds = study.seed_list[0], len(study.seed_list)
    prepared = prepared_here(study, data, site.name)
    count, planned = 1, list[dict[str, Any]]()
    train = len(prepared.everyone[site.name].split("train"))
    for text in study.methods:
        try:
            runtime = runtime_here(study, data, prepared, text, seed)
        except UnseenError:  # said before
            continue
        roster = _named(study) or (site.name, "another", "a third")
        for round, exchange in product(range(runtime.rounds), runtime.method.exchanges):
            if not due(exchange, round, runtime.rounds):
                continue
            count += seeds
            turn = Turn(seed, round, runtime.rounds, exchange.name, site.name, 0, roster)
            if exchange.slots and most.epsilon is not None:
                released = spending.releases_of(exchange, train, turn, site.policy.least.sites)
                for own in range(count - seeds, count):
                    line = {"answer": str(own), "releases": released, "trained": True}
                    planned.append(line)
    if count > most.questions:
        why = f"a task of the study asks for {count} answers, and {most.questions} are the most"
        yield Refusal("most.questions", why, "ask for fewer rounds, or raise most.questions")
    if planned:
        whole, last = [*lines, *planned[:-1]], planned[-1]
        if why := spending.over_budget(whole, last, most.epsilon, most.delta):
            yield Refusal("most.epsilon", why, "ask for fewer rounds, or for more noise")
