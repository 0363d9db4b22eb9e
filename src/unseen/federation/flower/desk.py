"""One message at one site, opened: what was asked, of which study, and what it takes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unseen.core import Exchange, Model, Turn
from unseen.core.parts import innermost
from unseen.datasets.dataset import DataSet
from unseen.engine import client_memories
from unseen.engine.inprocess import single
from unseen.engine.messages import Parcel, to_turn
from unseen.errors import UnseenError
from unseen.federation.flower import terms
from unseen.federation.flower.column_sums import sums_received
from unseen.federation.flower.site import Site, load
from unseen.federation.flower.terms import Refused, Terms
from unseen.federation.policy.proposals import Proposal
from unseen.federation.policy.site_ledger import digest_of_parcel
from unseen.federation.policy.study_rules import columns_of
from unseen.local.train import Train, reads_validation
from unseen.methods.compose import method as compose
from unseen.models.pretrained import PRETRAINED
from unseen.models.weight_files import Source
from unseen.privacy import channel, kinds
from unseen.privacy.dp import NoisedRows, mechanism, steps_of
from unseen.privacy.masks import masked_site, shares
from unseen.spec.holdout import Task
from unseen.spec.study import StudySpec
from unseen.study.checks import check_clients
from unseen.study.frozen import featured
from unseen.study.prepare import Prepared, prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, initial_weights
from unseen.study.spaces import as_tried
from unseen.version import __version__

#: Files of a kit that a channel's side needs.
FILES = (kinds.SECRET, kinds.PRIVATE, kinds.PUBLICS)
#: What differs where the same is asked again, and decides nothing.
AGAIN = ("about", "hello", "protocol")
TASK_ROLES = ("source", "validation", "target")


class Desk:
    """One message at one site, opened; what it needs is made when it is asked for.

    Attributes:
        site: The site.
        parcel: The message, and its `head`, all of it that is text.
        kind: What is asked for.
        agreed: The study as the site approves it. None of its parts is called before the gate
            admitted the question.
        rows: The digest of the rows of its reply, noise and all, before a channel sealed them.
    """

    def __init__(self, site: Site, parcel: Parcel) -> None:
        self.site, self.parcel, self.kind = site, parcel, str(parcel["kind"])
        self.head: Mapping[str, Any] = json.loads(str(parcel["head"]))
        self.agreed = StudySpec(**self.head["study"])
        self.rows = ""

    @cached_property
    def proposal(self) -> Proposal:
        return Proposal(self.agreed, self.head.get("signature") or {})

    @property
    def study(self) -> StudySpec:
        """The study as it is played: as agreed, with a trial's values where it has a search."""
        return self.played[0]

    @property
    def method(self) -> str:
        """The expression of what is played."""
        return self.played[1]

    @cached_property
    def played(self) -> tuple[StudySpec, str]:
        """The study and the method's expression; a trial is made here of what was agreed to."""
        trial, method = self.head.get("trial"), str(self.head.get("method", ""))
        if self.agreed.tune is None or trial is None:
            return self.agreed, method
        texts = {compose(text).name: text for text in self.agreed.methods}
        if trial["method"] not in texts:
            raise Refused(f"the study has no method {trial['method']!r}", "study")
        try:
            searching = bool(trial.get("searching"))
            return as_tried(self.agreed, trial["method"], trial["values"], searching)
        except UnseenError as error:  # it speaks of the study alone
            raise Refused(str(error), "study") from None

    @cached_property
    def channel(self) -> kinds.Kind:
        """The study's channel."""
        return channel.read(self.study.privacy.channel, self.study.privacy.server)

    @property
    def strangers(self) -> list[str]:
        """Who is said to take part, and is not among those whose keys this site has."""
        publics = (self.site.kit or Path()) / kinds.PUBLICS
        keys = json.loads(publics.read_text("utf-8")) if publics.is_file() else {}
        return sorted({*self.turn.roster} - {*keys})

    @property
    def fewest(self) -> int:
        """Of how many sites a sum of rows is, at least, that this one opens; 1: of no sum.

        Where noise protects the sum alone, this is as many as open a sum of all who were to take
        part, since the site counts on the noise of these.
        """
        kind = self.channel
        if not isinstance(kind, kinds.Masks):
            return 1
        few = max(kind.quorum, self.site.policy.least.sites)
        for exchange in self.runtime.method.exchanges:
            noised: NoisedRows | None = mechanism(exchange.local, NoisedRows)
            if noised is not None and noised.dp.trust == "sum":
                planned = noised.count(self.turn)
                few = max(few, shares.least(kind.threshold, planned, few))
        return few

    @property
    def label(self) -> str:
        """What the label of the site's data is called."""
        columns = columns_of(self.study.dataset)
        return next((name for name, use in columns if use == "label"), "classes")

    @property
    def columns(self) -> set[str]:
        """The columns of a table; none of other data."""
        schema = self.own.schema
        return {*schema.columns, *self.own.levels, self.label} if schema is not None else set()

    @cached_property
    def counts(self) -> tuple[int, int | None, int]:
        """Training examples, steps of a reply, and examples behind it."""
        return counts_of(self)

    @cached_property
    def turn(self) -> Turn:
        turn = to_turn(self.head["turn"])
        if not self.agreed.privacy.noised:  # only noise depends on it
            return turn
        asked = {name: value for name, value in self.parcel.items() if name not in AGAIN}
        return replace(turn, question=digest_of_parcel(asked))

    @cached_property
    def terms(self) -> Terms:
        return Terms.read(self.head["terms"])

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
            return initial_weights(named, self.head["model"], kit)
        except UnseenError as error:  # it speaks of packages and of a file that the server named
            raise Refused(f"lacks the frozen weights of the study: {error}", "study") from None

    def featured(self, data: DataSet) -> DataSet:
        """Return the data with features of the network's frozen part, kept in this site's cache."""
        return featured(data, self.study, self.head["model"], self.weights, self.site.data)

    @cached_property
    def data(self) -> DataSet:
        """The site's data by the terms; refuses data that changed since the study began."""
        match("the digest of the site's data", self.head["digest"], self.site.digest(self.own))
        return self.terms.coded(self.own)

    @cached_property
    def task(self) -> Task:
        """The task as this site sees it: its own role only; other sites' names are withheld."""
        role, me = self.head["role"], (self.site.name,)
        if role == "source" and self.site.role == "evaluate":
            raise Refused(f"site {self.site.name!r} only evaluates; it was asked to train.", "role")
        names = {name: me if name == role else () for name in TASK_ROLES}
        return Task(self.head["task"], names["source"], names["target"], names["validation"])

    @cached_property
    def prepared(self) -> Prepared:
        sums = self.parcel.get(terms.STATISTICS)
        totals = sums_received(self.study, self.terms.empty(), sums)
        data = self.featured(self.data)
        prepared = prepare(data, self.task, self.study, self.head["seed"], totals)
        fits = bool(self.method) and compose(self.method).fits
        check_clients(prepared, self.study, self.task, steps=not fits)
        return prepared

    @cached_property
    def runtime(self) -> Runtime:
        """What this site runs of the job, by what the server chose for all sites."""
        head, count = self.head, len(self.turn.roster)
        match("the file of frozen weights", head["weights"], str(self.weights or ""))
        metrics = tuple(head["metrics"])
        setting = Setting(
            self.study, Path(), None, "", head["model"], metrics, weights=self.weights
        )  # fmt: skip
        job = self.method, head["seed"]
        runtime = Runtime.of(setting, self.data, self.prepared, *job, clients=count)
        match("the method", compose(self.method).name, runtime.method.name)
        return runtime

    @cached_property
    def exchange(self) -> Exchange:
        method = self.runtime.method
        exchanges = {exchange.name: exchange for exchange in method.exchanges}
        if self.turn.exchange not in exchanges:
            here = f"here it has {', '.join(exchanges)}"
            raise Refused(f"asked for exchange {self.turn.exchange!r} of {method.name}; {here}.")
        return exchanges[self.turn.exchange]

    @property
    def reads_validation(self) -> bool:
        """Whether what trains here says something of the rows that are held back, too."""
        local = self.exchange.local
        return bool(self.exchange.slots) and any(map(reads_validation, single(local)))

    @cached_property
    def model(self) -> Model:
        model = self.runtime.model
        match("the layout of the model", self.head["layout"], terms.fingerprint(model))
        return model

    @cached_property
    def side(self) -> kinds.Site | None:
        """The channel's side here, made of the kit's files; None on a clear channel."""
        kit, name, kind = self.site.kit or Path(), self.site.name, self.channel
        if isinstance(kind, kinds.Clear):
            return None
        files = {file: (kit / file).read_bytes() for file in FILES if (kit / file).is_file()}
        try:
            side = channel.site_side(kind, self.runtime.method, name, files, self.job)
        except KeyError as error:
            raise UnseenError(f"the kit of {name!r} has no {error} for the channel.") from None
        if isinstance(side, masked_site.Site):
            side.fewest = self.fewest
        return side

    @property
    def job(self) -> str:
        run, *job = (str(self.head[key]) for key in ("run", "method", "task", "seed"))
        place = str(self.head.get("place", ""))
        return "/".join([run, *([place + "/"] if place else []), *job])

    @property
    def folder(self) -> Path:
        """Where this site keeps what belongs to this job."""
        run, _, job = self.job.partition("/")
        return self.site.state / client_memories.slug(run) / client_memories.slug(job)

    @property
    def side_file(self) -> Path:
        """Where the channel's side is kept until the next exchange begins."""
        return self.folder / client_memories.KEPT / "channel"


def match(what: str, server: object, site: object, rule: str = "study") -> None:
    """Refuse a message that says something else than the site finds."""
    if server != site:
        values = f"the server says {server!r}, the site {site!r} (unseen {__version__})"
        raise Refused(f"{what} does not match: {values}.", rule)


def counts_of(desk: Desk) -> tuple[int, int | None, int]:
    """Return the training examples here, the steps of a reply, and the examples that it is of.

    Returns:
        None instead of steps where the local part takes none.
    """
    client = desk.prepared.everyone[desk.site.name]
    train = len(client.train) if client.train is not None else 0
    if desk.kind == "statistics":
        return train, None, train
    if desk.kind in (terms.MEASURE, terms.KEEP) or not desk.exchange.slots:
        return train, None, len(client.split("validation"))
    local, behind = innermost(desk.exchange.local), train
    if desk.reads_validation:
        behind = min(train, len(client.split("validation")))
    if not isinstance(local, Train):
        return train, None, behind
    steps = steps_of(train, local.training) if train else 0
    return train, steps, min(behind, steps * local.training.batch_size)
