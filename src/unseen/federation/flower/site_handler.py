"""The site's side of a message: what was asked is checked, done, and answered.

Note:
    Nothing is kept in the process, which ends with the message. What leaves is the answer alone: of
    an error only its kind leaves too, since its words may quote the site's data; they stay in the
    site's log.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unseen.core import Exchange, Inbox, Model, Reply, Turn
from unseen.core.atomic import write_atomically
from unseen.datasets.dataset import DataSet, Totals
from unseen.engine import client_memories
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess
from unseen.engine.messages import Parcel, Value, from_reply, named, to_inbox, to_turn
from unseen.errors import UnseenError
from unseen.federation.flower import terms
from unseen.federation.flower.site import Site, check_parts, expressions, load
from unseen.federation.flower.terms import PROTOCOL, Facts, Refused, Terms
from unseen.privacy import channel, channelled, kinds
from unseen.spec.holdout import Task
from unseen.spec.study import StudySpec
from unseen.study.checks import check_batches, check_clients, check_noised
from unseen.study.job import versions
from unseen.study.prepare import Prepared, prepare, statistics
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, digest_of
from unseen.study.watcher import FINAL, save_tensors, tensors_of
from unseen.version import __version__

LOG = logging.getLogger("flwr")
#: Files of a kit that a channel's side needs.
FILES = (kinds.SECRET, kinds.PRIVATE, kinds.PUBLICS)
TASK_ROLES = ("source", "validation", "target")


class Desk:
    """One message at one site, opened; what it needs is made when it is asked for.

    Attributes:
        site: The site.
        parcel: The message, and its `head`, all of it that is text.
        study: The study, whose parts are unseen's own or allowed by the site.
    """

    def __init__(self, site: Site, parcel: Parcel) -> None:
        self.site, self.parcel = site, parcel
        self.head: Mapping[str, Any] = json.loads(str(parcel["head"]))
        self.study = StudySpec(**self.head["study"])
        check_parts(site, expressions(self.study, self.head["method"], self.head.get("model")))

    @cached_property
    def turn(self) -> Turn:
        return to_turn(self.head["turn"])

    @cached_property
    def terms(self) -> Terms:
        return Terms.read(self.head["terms"])

    @cached_property
    def own(self) -> DataSet:
        """The site's data as the site names them."""
        return load(self.site, self.study)

    @cached_property
    def data(self) -> DataSet:
        """The site's data by the terms; refuses data that changed since the study began."""
        match("the digest of the site's data", self.head["digest"], digest_of(self.own))
        return self.terms.coded(self.own)

    @cached_property
    def task(self) -> Task:
        """The task as this site sees it: its own role only; other sites' names are withheld."""
        role, me = self.head["role"], (self.site.name,)
        if role == "source" and self.site.role == "evaluate":
            raise Refused(f"site {self.site.name!r} only evaluates; it was asked to train.")
        names = {name: me if name == role else () for name in TASK_ROLES}
        return Task(self.head["task"], names["source"], names["target"], names["validation"])

    @cached_property
    def prepared(self) -> Prepared:
        sums = self.parcel.get(terms.STATISTICS)
        totals = sums if isinstance(sums, Tensor) else None
        prepared = prepare(self.data, self.task, self.study, self.head["seed"], totals)
        check_clients(prepared, self.study, self.task)
        return prepared

    @cached_property
    def runtime(self) -> Runtime:
        """What this site runs of the job, by what the server chose for all sites."""
        head, count = self.head, len(self.turn.roster)
        setting = Setting(self.study, Path(), None, "", head["model"], tuple(head["metrics"]))
        job = head["method"], head["seed"]
        runtime = Runtime.of(setting, self.data, self.prepared, *job, clients=count)
        match("the method", head["method"], runtime.method.name)
        return runtime

    @cached_property
    def exchange(self) -> Exchange:
        method = self.runtime.method
        exchanges = {exchange.name: exchange for exchange in method.exchanges}
        if self.turn.exchange not in exchanges:
            here = f"here it has {', '.join(exchanges)}"
            raise Refused(f"asked for exchange {self.turn.exchange!r} of {method.name}; {here}.")
        return exchanges[self.turn.exchange]

    @cached_property
    def model(self) -> Model:
        model = self.runtime.model
        match("the layout of the model", self.head["layout"], terms.fingerprint(model))
        return model

    @cached_property
    def side(self) -> kinds.Site | None:
        """The channel's side here, made of the kit's files; None on a clear channel."""
        privacy, kit, name = self.study.privacy, self.site.kit or Path(), self.site.name
        kind = channel.read(privacy.channel, privacy.server)
        if isinstance(kind, kinds.Clear):
            return None
        files = {file: (kit / file).read_bytes() for file in FILES if (kit / file).is_file()}
        try:
            return channel.site_side(kind, self.runtime.method, name, files, self.job)
        except KeyError as error:
            raise UnseenError(f"the kit of {name!r} has no {error} for the channel.") from None

    @property
    def job(self) -> str:
        return "/".join(str(self.head[key]) for key in ("run", "method", "task", "seed"))

    @property
    def folder(self) -> Path:
        """Where this site keeps what belongs to this job."""
        run, _, job = self.job.partition("/")
        return self.site.state / client_memories.slug(run) / client_memories.slug(job)

    @property
    def side_file(self) -> Path:
        """Where the channel's side is kept until the next exchange begins."""
        return self.folder / client_memories.KEPT / "channel"


def match(what: str, server: object, site: object) -> None:
    """Refuse a message that says something else than the site finds."""
    if server != site:
        values = f"the server says {server!r}, the site {site!r} (unseen {__version__})"
        raise Refused(f"{what} does not match: {values}.")


def hello(desk: Desk) -> dict[str, Value]:
    """Return who the site is and what its data are called."""
    facts = Facts.of(desk.own, desk.site.role, digest_of(desk.own), versions())
    return {"facts": json.dumps(asdict(facts))}


def sums(desk: Desk) -> dict[str, Value]:
    """Return the sums over the site's training rows by which tables are standardised."""
    totals = Totals.of(desk.terms.empty())
    if totals is None:
        raise Refused("was asked for statistics of a table; the data are not a table.")
    if desk.study.privacy.columns is not None or desk.study.privacy.noised:
        raise Refused("was asked for sums over columns, which this study's privacy keeps here.")
    plain = desk.study.training.model_copy(update={"oversample": False})
    study = desk.study.model_copy(update={"training": plain})
    data = replace(desk.data, schema=None, standardise=None)
    raw = prepare(data, desk.task, study, desk.head["seed"])
    (collect,) = statistics(totals).exchanges
    client = raw.everyone[desk.site.name]
    reply, _ = collect.local(Model(nn.Module()), {}, client, {}, desk.turn)
    return from_reply(reply)


def exchange(desk: Desk) -> dict[str, Value]:
    """Do one exchange of the method as `InProcess` does it, with the memory that lies on disk."""
    model, name = desk.model, desk.site.name
    inbox = to_inbox(desk.parcel, model.device)
    if desk.exchange.slots:
        check_batches(model.module, desk.prepared.sources, desk.study)
        try:
            check_noised(desk.study, desk.data, model.module)
        except UnseenError as error:  # it speaks of the study and the network, not of the data
            raise Refused(str(error)) from None
    memories = client_memories.load(desk.folder)
    received = inbox if desk.side is None else receive(desk, desk.side, inbox)
    backend = InProcess(model, {name: desk.prepared.everyone[name]}, memories)
    (reply,) = backend.map(desk.exchange, received, [name], desk.turn)
    client_memories.save(desk.folder, memories)
    return from_reply(reply) if desk.side is None else leave(desk, desk.side, reply, received)


def receive(desk: Desk, side: kinds.Site, inbox: Inbox) -> Inbox:
    """Return the inbox as this site's local part sees it, of what came in the clear and sealed."""
    if not side.blind:
        desk.side_file.unlink(missing_ok=True)
    elif desk.side_file.exists():  # what it knows of the sums that come now
        side.load(desk.side_file.read_bytes())
    turn = replace(desk.turn, client=desk.site.name)
    entries = side.receive(inbox, named(desk.parcel, terms.CARGO, bytes), turn)
    return {name: entry.to(desk.model.device) for name, entry in entries.items()}


def leave(desk: Desk, side: kinds.Site, reply: Reply, inbox: Inbox) -> dict[str, Value]:
    """Return all that leaves the site: scalars as they are, rows and state sealed.

    Args:
        desk: The message.
        side: The channel's side here.
        reply: What the site would send in the clear.
        inbox: What its local part saw.
    """
    exchange, turn = desk.exchange, replace(desk.turn, client=desk.site.name)
    if side.blind and not exchange.slots and turn.round == turn.rounds - 1:
        notes = {key: str(desk.head[key]) for key in ("run", "method", "task", "seed", "model")}
        trained = tensors_of(desk.model, inbox["model"], inbox["buffers"])
        save_tensors(desk.folder / FINAL, trained, notes)  # nobody else has it
    hello = str(desk.parcel["hello"])
    sealed = channelled.leave(side, exchange, reply, inbox, turn, hello)
    if exchange.slots:
        write_atomically(desk.side_file, side.save())
    parcel = from_reply(Reply(scalars=sealed.scalars))
    if sealed.state:
        parcel[terms.CARGO + kinds.STATE] = sealed.state
    return parcel | {terms.SEALED + slot: row for slot, row in sealed.rows.items()}


def answer(desk: Desk) -> dict[str, Value]:
    """Return a site's answer to a question about the rows that it sealed last."""
    side, question = desk.side, desk.parcel["question"]
    if side is None or not desk.side_file.exists() or not isinstance(question, bytes):
        raise UnseenError("no question is answered before rows were sealed here.")
    side.load(desk.side_file.read_bytes())
    reply = side.answer(question)
    write_atomically(desk.side_file, side.save())
    return {"answer": reply}


#: Who answers each kind of message.
ANSWERS: Mapping[str, Callable[[Desk], Mapping[str, Value]]] = {
    "hello": hello, "statistics": sums, "exchange": exchange, terms.ASK: answer,
}  # fmt: skip


def handle(parcel: Parcel, site: Site) -> dict[str, Value]:
    """Return the answer to a message: what was asked for, a refusal, or that it failed."""
    kind = str(parcel.get("kind", ""))
    echo: dict[str, Value] = {"site": site.name, "protocol": PROTOCOL, "kind": kind}
    try:
        match("the protocol", parcel.get("protocol"), PROTOCOL)
        if kind not in ANSWERS:
            raise Refused(f"was asked for {kind!r}; this site knows {', '.join(ANSWERS)}.")
        desk = Desk(site, parcel)
        with reproducible(desk.study.threads, desk.study.device):
            answer = ANSWERS[kind](desk)
        return {**echo, "about": str(parcel["about"]), **answer}
    except Refused as error:
        LOG.warning("refused: %s", error)
        return {**echo, terms.REFUSED: str(error)}
    except Exception as error:
        LOG.exception("site %s could not answer", site.name)
        why = f"{type(error).__name__} at site {site.name!r}; its log says what happened"
        return {**echo, terms.FAILED: why}
