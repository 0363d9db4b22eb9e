"""The site's side of a message: what was asked is checked, done, and answered.

Nothing is kept in the process, which ends with the message. What leaves is the answer alone: of an
error only its kind leaves too, since its words may quote the site's data; they stay in the site's
log.
"""

from __future__ import annotations

import importlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import unseen
from unseen.backend.flower import PROTOCOL, memory, sealed
from unseen.backend.flower.site import Site, check_parts, expressions, load
from unseen.backend.flower.terms import Facts, Terms
from unseen.backend.flower.wire import INBOX, Parcel, Value, from_reply
from unseen.backend.inprocess import InProcess
from unseen.client import Client
from unseen.datasets.base import DataSet
from unseen.datasets.totals import Totals
from unseen.errors import UnseenError
from unseen.exchange import Exchange, Method, Turn
from unseen.study.holdout import Task
from unseen.study.job import (
    Setting,
    composed,
    digest_of,
    evaluated,
    model_of,
    reproducible,
    versions,
)
from unseen.study.prepare import Prepared, check_batches, check_clients, prepare, statistics
from unseen.study.private import check_noised, is_noised
from unseen.study.records import write_atomically
from unseen.study.spec import Study
from unseen.vector import Model

#: Who answers a kind of message that other parts of the package send: kind -> module:function, a
#: function of a parcel and a `Desk` that gives a parcel.
ANSWERS: dict[str, str] = {"channel": "unseen.backend.flower.sealed:answer"}

STATISTICS, TASK_ROLES = "statistics", ("source", "validation", "target")
REFUSED, FAILED = "refused", "failed"


class Refused(UnseenError):
    """What the site will not do. The message is about the protocol, and goes to the server."""


@dataclass(frozen=True)
class Desk:
    """One message at one site, opened; what it needs is made when it is asked for."""

    site: Site
    parcel: Parcel

    @cached_property
    def head(self) -> Mapping[str, Any]:
        """All of the message that is text."""
        found: dict[str, Any] = json.loads(str(self.parcel["head"]))
        return found

    @cached_property
    def study(self) -> Study:
        """The study, whose parts are unseen's own or allowed by the site."""
        study = Study(**self.head["study"])
        said = expressions(study, self.head["method"])
        check_parts(self.site, [*said, *filter(None, [self.head.get("model")])])
        return study

    @cached_property
    def turn(self) -> Turn:
        """Which exchange of which round."""
        told = self.head["turn"]
        return Turn(**{**told, "roster": tuple(told["roster"])})

    @cached_property
    def terms(self) -> Terms:
        """What the sites agreed on."""
        return Terms.read(self.head["terms"])

    @cached_property
    def own(self) -> DataSet:
        """The site's data as it names them itself."""
        return load(self.site, self.study)

    @cached_property
    def data(self) -> DataSet:
        """The site's data by the terms; refuses data that changed since the study began."""
        _match("the digest of the site's data", self.head["digest"], digest_of(self.own))
        return self.terms.coded(self.own)

    @cached_property
    def task(self) -> Task:
        """The task as far as this site goes: what it is to it, and no other site."""
        role, me = self.head["role"], (self.site.name,)
        if role == "source" and self.site.role == "evaluate":
            raise Refused(f"site {self.site.name!r} only evaluates; it was asked to train.")
        own = {name: me if name == role else () for name in TASK_ROLES}
        return Task(self.head["task"], own["source"], own["target"], own["validation"])

    @cached_property
    def prepared(self) -> Prepared:
        """The site's own share of the study's clients."""
        sums = self.parcel.get(STATISTICS)
        told = sums if isinstance(sums, Tensor) else None
        found = prepare(self.data, self.task, self.study, self.head["seed"], told)
        check_clients(found, self.study, self.task)
        return found

    @cached_property
    def setting(self) -> Setting:
        """What the server chose for all sites."""
        metrics = tuple(self.head["metrics"])
        return Setting(self.study, Path(), None, "", self.head["model"], metrics)

    @cached_property
    def method(self) -> Method:
        """The method, with the study's evaluations."""
        found = composed(self.head["method"], self.study, self.data)
        _match("the method", self.head["method"], found.name)
        return evaluated(found, self.prepared, self.setting, self.data)

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange that is asked for."""
        found = {exchange.name: exchange for exchange in self.method.exchanges}
        if self.turn.exchange not in found:
            raise Refused(
                f"asked for the exchange {self.turn.exchange!r} of {self.method.name}; here it has "
                f"{', '.join(found)}."
            )
        return found[self.turn.exchange]

    @cached_property
    def model(self) -> Model:
        """The study's network; its numbers come with the message."""
        model = model_of(self.setting, self.prepared, self.head["seed"], self.method)
        _match("the layout of the model", self.head["layout"], fingerprint(model))
        return model

    def client(self) -> Client:
        """The site as a client."""
        return self.prepared.everyone[self.site.name]

    @property
    def job(self) -> str:
        """Which job of which run this is."""
        return "/".join(str(self.head[key]) for key in ("run", "method", "task", "seed"))

    @property
    def folder(self) -> Path:
        """Where this site keeps what belongs to this job."""
        run, _, job = self.job.partition("/")
        return self.site.state / memory.slug(run) / memory.slug(job)

    def keep(self, name: str, content: bytes) -> None:
        """Keep something until the next exchange begins."""
        write_atomically(self.folder / memory.KEPT / name, content)

    def kept(self, name: str) -> bytes | None:
        """What was kept in this exchange."""
        path = self.folder / memory.KEPT / name
        return path.read_bytes() if path.exists() else None

    def file(self, name: str) -> bytes:
        """A file of the site's kit."""
        if self.site.kit is None or not (self.site.kit / name).is_file():
            raise UnseenError(f"the kit of site {self.site.name!r} has no file {name}.")
        return (self.site.kit / name).read_bytes()

    def forget(self) -> None:
        """Throw away what was kept for the exchange before."""
        shutil.rmtree(self.folder / memory.KEPT, ignore_errors=True)


def handle(parcel: Parcel, site: Site) -> dict[str, Value]:
    """The answer to a message: what was asked for, a refusal, or that it failed."""
    kind = str(parcel.get("kind", ""))
    echo: dict[str, Value] = {"site": site.name, "protocol": PROTOCOL, "kind": kind}
    try:
        _match("the protocol", parcel.get("protocol"), PROTOCOL)
        desk = Desk(site, parcel)
        with reproducible(desk.study.threads, desk.study.device):
            answer = answering(kind)(parcel, desk)
        return {**echo, "about": str(parcel["about"]), **answer}
    except Refused as error:
        logging.getLogger("flwr").warning("refused: %s", error)
        return {**echo, REFUSED: str(error)}
    except Exception as error:
        logging.getLogger("flwr").exception("site %s could not answer", site.name)
        told = f"{type(error).__name__} at site {site.name!r}; its log says what happened"
        return {**echo, FAILED: told}


def answering(kind: str) -> Callable[[Parcel, Desk], Mapping[str, Value]]:
    """Who answers a kind of message."""
    own = {"hello": hello, "statistics": sums, "exchange": exchange}
    if kind in own:
        return own[kind]
    if kind in ANSWERS:
        name, _, function = ANSWERS[kind].partition(":")
        found: Callable[[Parcel, Desk], Mapping[str, Value]] = getattr(
            importlib.import_module(name), function
        )
        return found
    raise Refused(f"was asked for {kind!r}; this site knows {', '.join([*own, *ANSWERS])}.")


def hello(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """Who the site is and what its data are called."""
    facts = Facts.of(desk.own, desk.site.role, digest_of(desk.own), versions())
    return {"facts": json.dumps(vars(facts))}


def sums(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """The sums over the site's training rows by which tables are standardised."""
    totals = Totals.of(desk.terms.empty())
    if totals is None:
        raise Refused("was asked for statistics of a table; the data are no table.")
    if desk.study.privacy.columns is not None or is_noised(desk.study):
        raise Refused("was asked for sums over columns, which this study's privacy keeps here.")
    plain = desk.study.training.model_copy(update={"oversample": False})
    study = desk.study.model_copy(update={"training": plain})
    data = replace(desk.data, schema=None, standardise=None)
    raw = prepare(data, desk.task, study, desk.head["seed"])
    (asked,) = statistics(totals).exchanges
    client = raw.everyone[desk.site.name]
    reply, _ = asked.local(Model(nn.Module()), {}, client, {}, desk.turn)
    return from_reply(reply)


def exchange(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """One exchange of the method, as `InProcess` does it, with the memory that lies on disk."""
    asked, model, name = desk.exchange, desk.model, desk.site.name
    inbox = {
        key.removeprefix(INBOX): value.to(model.device)
        for key, value in parcel.items()
        if key.startswith(INBOX) and isinstance(value, Tensor)
    }
    if asked.slots:
        check_batches(model.module, desk.prepared.sources, desk.study)
        try:
            check_noised(desk.study, desk.data, model.module)
        except UnseenError as error:  # it speaks of the study and the network, not of the data
            raise Refused(str(error)) from None
    memories = memory.load(desk.folder)
    side = sealed.site(desk, memories)
    turn = replace(desk.turn, client=name)
    received = inbox if side is None else sealed.received(side, desk, inbox, turn)
    backend = InProcess(model, {name: desk.client()}, memories)
    (reply,) = backend.map(asked, received, [name], desk.turn)
    memory.save(desk.folder, memories)
    if side is None:
        return from_reply(reply)
    return sealed.leaving(side, desk, asked, reply, received, turn)


def fingerprint(model: Model) -> str:
    """Digits that differ whenever two models' parameters or buffers lie otherwise."""
    return f"{model.layout.fingerprint}/{model.buffer_layout.fingerprint}"


def _match(what: str, asked: object, found: object) -> None:
    if asked != found:
        raise Refused(
            f"{what} does not match: the server says {asked!r}, the site {found!r} "
            f"(unseen {unseen.__version__})."
        )
