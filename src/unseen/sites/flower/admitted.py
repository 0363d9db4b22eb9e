"""A question that a site answers, and what the answer takes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from unseen.core import Exchange, Model, Turn
from unseen.data import info
from unseen.data.dataset import DataSet
from unseen.data.entry import Info
from unseen.data.networks.pretrained import PRETRAINED
from unseen.data.networks.weight_files import Source
from unseen.engine import client_memories
from unseen.engine.inprocess import single
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.methods.local.train import reads_validation
from unseen.privacy import blind, channel, kinds
from unseen.privacy.dp import NoisedRows, mechanism
from unseen.sites.flower import terms
from unseen.sites.flower.script import (
    Agreement,
    Due,
    Position,
    before,
    due_at,
    role_in,
    tasks_by_plan,
)
from unseen.sites.flower.site import Site, load, sums_received
from unseen.sites.flower.site_question import EXCHANGE, SUMS, Question, match
from unseen.sites.flower.terms import Refused, Terms
from unseen.sites.policy.approvals import SHORT, Proposal
from unseen.sites.policy.site_ledger import Line, SiteLedger
from unseen.sites.policy.spending import trained_counts
from unseen.studies.execution.checks import check_clients
from unseen.studies.execution.frozen import featured
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Setting, initial_weights
from unseen.studies.execution.spaces import as_tried
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

TASK_ROLES = ("source", "validation", "target")


class Admitted:
    """A question that access control let in, and what its answer takes, made when it is needed.

    `unseen.sites.flower.gate.admit` alone makes it, once the study is signed, allowed by the
    site's rules and approved. Whatever it says follows from the approved study, the site's data and
    what the run's sites agreed on.

    `rows` is the digest of the rows of its reply, noise and all, before a channel sealed them.
    """

    def __init__(self, site: Site, question: Question) -> None:
        self.site, self.question, self.rows = site, question, ""
        self.kind, self.agreed, self.parcel = question.kind, question.agreed, question.parcel

    @property
    def position(self) -> Position:
        """What is asked for; a hello asks for nothing of a run."""
        assert self.question.position is not None
        return self.question.position

    @property
    def agreement(self) -> Agreement:
        assert self.question.head.agreement is not None
        return self.question.head.agreement

    @property
    def proposal(self) -> Proposal:
        return self.question.proposal

    @cached_property
    def lines(self) -> Sequence[Line]:
        """The lines of the site's ledger, which is held until the answer is written into it."""
        return SiteLedger(self.site.account).lines()

    @property
    def study(self) -> StudySpec:
        """The study as it is played: as agreed, with a trial's values where it has a search."""
        return self.played[0]

    @property
    def method(self) -> str:
        """The expression of what is played; none in a hello."""
        return self.played[1]

    @cached_property
    def played(self) -> tuple[StudySpec, str]:
        """The study and the method's expression; a trial is made here of what was agreed to."""
        position = self.question.position
        if position is None:
            return self.agreed, ""
        trial, texts = position.trial, {compose(text).name: text for text in self.agreed.methods}
        asked = position.method if trial is None else trial.method
        if asked not in texts:
            raise Refused(f"the study has no method {asked!r}", "study")
        if (self.agreed.tune is None) != (trial is None):
            raise Refused("a study with a search is played by its trials, no other.", "study")
        if trial is None:
            return self.agreed, texts[asked]
        try:
            played = as_tried(self.agreed, asked, trial.values, trial.searching)
        except UnseenError as error:  # it speaks of the study alone
            raise Refused(str(error), "study") from None
        if position.method not in (asked, name := compose(played[1]).name):
            what = f"the trial is of {name!r}"
            raise Refused(f"{what}, and the message says {position.method!r}.", "study")
        return played

    @property
    def entry(self) -> Info:
        """What the catalogue says of the study's data."""
        return info(parse(self.study.dataset)[0].name)

    @property
    def network(self) -> str:
        """The expression of the study's network."""
        return self.study.model or self.entry.model

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """What the study records."""
        return chosen_metrics(self.study, self.terms.empty(), self.entry.metrics)

    @cached_property
    def channel(self) -> channel.Channel:
        """The study's channel."""
        return channel.read(self.study.privacy.channel, self.study.privacy.server)

    @property
    def strangers(self) -> list[str]:
        """Who takes part, and is not among those whose keys this site has for masks."""
        if not self.channel.masked:
            return []
        publics = (self.site.kit or Path()) / kinds.PUBLICS
        keys = json.loads(publics.read_text("utf-8")) if publics.is_file() else {}
        return sorted({*self.whole_task.sources} - {*keys})

    @property
    def fewest(self) -> int:
        """Of how many sites a sum of rows is, at least, that this one opens; 1: of no sum.

        Where noise protects the sum alone, this is as many as open a sum of all who were to take
        part, since the site counts on the noise of these.
        """
        exchanges = self.runtime.method.exchanges
        noised = (mechanism(exchange.local, NoisedRows) for exchange in exchanges)
        planned = [own.count(self.turn) for own in noised if own and own.dp.trust == "sum"]
        return self.channel.fewest(max(planned, default=0), self.site.policy.least.sites)

    @cached_property
    def counts(self) -> tuple[int, int | None, int]:
        """Training examples, steps of a reply, and examples behind it."""
        client = self.prepared.everyone[self.site.name]
        train = len(client.train) if client.train is not None else 0
        if self.kind == "statistics":
            return train, None, train
        if self.kind in (terms.MEASURE, terms.KEEP) or not self.exchange.slots:
            return train, None, len(client.split("validation"))
        return trained_counts(client, self.exchange.local, self.reads_validation)

    @cached_property
    def whole_task(self) -> Task:
        """The task, which follows from the study's plan and the sites of the run."""
        position = self.position
        try:
            tasks = tasks_by_plan(self.agreed, self.agreement.members)
        except UnseenError as error:  # it speaks of the plan and of names of sites
            raise Refused(str(error), "study") from None
        task = tasks.get((position.plan, position.task))
        if task is None:
            raise Refused(f"the study has no task {position.task!r} of this plan.", "study")
        if not role_in(task, self.site.name):
            what = f"the plan gives this site no part in task {task.name!r}"
            raise Refused(f"{what}.", "role")
        return task

    @property
    def role(self) -> str:
        """What this site is in the task: source, validation or target."""
        return role_in(self.whole_task, self.site.name)

    @cached_property
    def due(self) -> Due:
        """The exchange that the study has at the position."""
        due = due_at(self.runtime, self.whole_task, self.position)
        if isinstance(due, str):
            raise Refused(f"{due}.", "study")
        if self.site.name not in due.names:
            what = f"{due.exchange.name!r} does not ask this site in round {due.turn.round + 1}"
            raise Refused(f"{what}.", "role")
        return due

    @property
    def exchange(self) -> Exchange:
        return self.due.exchange

    @cached_property
    def turn(self) -> Turn:
        position, roster = self.position, tuple(sorted(self.whole_task.sources))
        if self.kind in (EXCHANGE, terms.ASK):
            turn = self.due.turn
        elif self.kind == SUMS:
            turn = Turn(position.seed, 0, 1, position.exchange, roster=roster)
        else:
            rounds = self.runtime.rounds
            if not 0 <= position.round < rounds:
                what = f"the study has {rounds} rounds, and this would be {position.round + 1}"
                raise Refused(f"{what}.", "study")
            turn = Turn(position.seed, position.round, rounds, self.kind, roster=roster)
        if not self.agreed.privacy.noised:  # only noise depends on it
            return turn
        return replace(turn, question=self.question.payload)

    @property
    def terms(self) -> Terms:
        return self.agreement.terms

    @cached_property
    def own(self) -> DataSet:
        """The site's data as the site names them."""
        return load(self.site, self.study)

    @cached_property
    def weights(self) -> Source | None:
        """The weights of what stays frozen, which no message carries: the package's, or a file."""
        study, kit = self.study, self.site.kit or self.site.data
        if not study.keeps_weights or study.weights is None:
            return None
        file = study.weights if study.weights == PRETRAINED else Path(study.weights).name
        named = study.model_copy(update={"weights": file})
        try:
            return initial_weights(named, self.network, kit)
        except UnseenError as error:  # it speaks of packages and of a file that the server named
            raise Refused(f"lacks the frozen weights of the study: {error}", "study") from None

    def featured(self, data: DataSet) -> DataSet:
        """Return the data with features of the network's frozen part, kept in this site's cache."""
        return featured(data, self.study, self.network, self.weights, self.site.data)

    @cached_property
    def data(self) -> DataSet:
        """The site's data by the terms."""
        return self.terms.coded(self.own)

    @cached_property
    def task(self) -> Task:
        """The task as this site prepares it, which has no rows of any other."""
        role, me = self.role, (self.site.name,)
        names = {name: me if name == role else () for name in TASK_ROLES}
        return Task(self.whole_task.name, names["source"], names["target"], names["validation"])

    @cached_property
    def prepared(self) -> Prepared:
        sums = self.parcel.get(terms.STATISTICS)
        totals = sums_received(self.study, self.terms.empty(), sums)
        data = self.featured(self.data)
        prepared = prepare(data, self.task, self.study, self.position.seed, totals)
        fits = bool(self.method) and compose(self.method).fits
        check_clients(prepared, self.study, self.task, steps=not fits)
        return prepared

    @cached_property
    def runtime(self) -> Runtime:
        """What this site runs of the job, as all sites of the run do."""
        count = len(self.whole_task.sources)
        match("the file of frozen weights", self.agreement.weights, str(self.weights or ""))
        setting = Setting(
            self.study, Path(), None, "", self.network, self.metrics, weights=self.weights
        )  # fmt: skip
        job = self.method, self.position.seed
        return Runtime.of(setting, self.data, self.prepared, *job, clients=count)

    @property
    def reads_validation(self) -> bool:
        """Whether what trains here says something of the rows that are held back, too."""
        local = self.exchange.local
        return bool(self.exchange.slots) and any(map(reads_validation, single(local)))

    @cached_property
    def model(self) -> Model:
        model = self.runtime.model
        match("the layout of the model", self.position.layout, terms.fingerprint(model))
        return model

    @cached_property
    def side(self) -> kinds.Site | None:
        """The channel's side here, made of the kit's files; None on a clear channel."""
        kit, name, kind = self.site.kit or Path(), self.site.name, self.channel
        if not kind.hides:
            return None
        files = {file: (kit / file).read_bytes() for file in kind.files if (kit / file).is_file()}
        try:
            side = kind.site(self.runtime.method, name, files, self.job)
        except KeyError as error:
            raise UnseenError(f"the kit of {name!r} has no {error} for the channel.") from None
        if self.kind in (EXCHANGE, terms.ASK):
            side.company = self.due.names
        last = before(self.runtime, self.position)
        side.expected, side.fewest = "" if last is None else blind.where(*last), self.fewest
        return side

    @property
    def job(self) -> str:
        return self.position.job(self.agreement.run)

    @property
    def folder(self) -> Path:
        """Where this site keeps what belongs to this job."""
        run = f"{self.proposal.digest[:SHORT]}-{self.agreement.run}"
        return self.site.state / client_memories.slug(run) / self.position.key(self.agreement.run)

    @property
    def side_file(self) -> Path:
        """Where the channel's side is kept until the next exchange begins."""
        return self.folder / client_memories.KEPT / "channel"
