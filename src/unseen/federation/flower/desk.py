"""One message at one site, opened: what is needed to answer it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.atomic import write_atomically
from unseen.core.client import Client
from unseen.core.exchange import Exchange, Method, Turn
from unseen.core.vector import Model
from unseen.datasets.dataset import DataSet
from unseen.engine import client_memories
from unseen.engine.messages import Parcel, to_turn
from unseen.errors import UnseenError
from unseen.federation.flower.protocol import STATISTICS, Refused, fingerprint
from unseen.federation.flower.site import Site, check_parts, expressions, load
from unseen.federation.flower.terms import Terms
from unseen.spec.holdout import Task
from unseen.spec.study import StudySpec
from unseen.study.prepare import Prepared, check_clients, prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, digest_of
from unseen.version import __version__

TASK_ROLES = ("source", "validation", "target")


@dataclass(frozen=True)
class Desk:
    """One message at one site, opened; what it needs is made when it is asked for."""

    site: Site
    parcel: Parcel

    @cached_property
    def head(self) -> Mapping[str, Any]:
        """All of the message that is text."""
        head: dict[str, Any] = json.loads(str(self.parcel["head"]))
        return head

    @cached_property
    def study(self) -> StudySpec:
        """The study, whose parts are unseen's own or allowed by the site."""
        study = StudySpec(**self.head["study"])
        named = expressions(study, self.head["method"])
        check_parts(self.site, [*named, *filter(None, [self.head.get("model")])])
        return study

    @cached_property
    def turn(self) -> Turn:
        """Which exchange of which round."""
        return to_turn(self.head["turn"])

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
        """The site's own share of the study's clients."""
        sums = self.parcel.get(STATISTICS)
        statistics = sums if isinstance(sums, Tensor) else None
        prepared = prepare(self.data, self.task, self.study, self.head["seed"], statistics)
        check_clients(prepared, self.study, self.task)
        return prepared

    @cached_property
    def setting(self) -> Setting:
        """What the server chose for all sites."""
        metrics = tuple(self.head["metrics"])
        return Setting(self.study, Path(), None, "", self.head["model"], metrics)

    @cached_property
    def runtime(self) -> Runtime:
        """What this site runs of the job."""
        head = self.head
        runtime = Runtime.of(self.setting, self.data, self.prepared, head["method"], head["seed"])
        match("the method", head["method"], runtime.method.name)
        return runtime

    @property
    def method(self) -> Method:
        """The method, with the study's evaluations."""
        return self.runtime.method

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange that is asked for."""
        exchanges = {exchange.name: exchange for exchange in self.method.exchanges}
        if self.turn.exchange not in exchanges:
            raise Refused(
                f"asked for the exchange {self.turn.exchange!r} of {self.method.name}; here it has "
                f"{', '.join(exchanges)}."
            )
        return exchanges[self.turn.exchange]

    @cached_property
    def model(self) -> Model:
        """The study's network; its numbers come with the message."""
        model = self.runtime.model
        match("the layout of the model", self.head["layout"], fingerprint(model))
        return model

    def client(self) -> Client:
        """Return the site as a client."""
        return self.prepared.everyone[self.site.name]

    @property
    def job(self) -> str:
        """Which job of which run this is."""
        return "/".join(str(self.head[key]) for key in ("run", "method", "task", "seed"))

    @property
    def folder(self) -> Path:
        """Where this site keeps what belongs to this job."""
        run, _, job = self.job.partition("/")
        return self.site.state / client_memories.slug(run) / client_memories.slug(job)

    def keep(self, name: str, content: bytes) -> None:
        """Keep something until the next exchange begins."""
        write_atomically(self.folder / client_memories.KEPT / name, content)

    def kept(self, name: str) -> bytes | None:
        """Return what was kept in this exchange."""
        path = self.folder / client_memories.KEPT / name
        return path.read_bytes() if path.exists() else None

    def file(self, name: str) -> bytes:
        """Return a file of the site's kit."""
        if self.site.kit is None or not (self.site.kit / name).is_file():
            raise UnseenError(f"the kit of site {self.site.name!r} has no file {name}.")
        return (self.site.kit / name).read_bytes()

    def forget(self) -> None:
        """Throw away what was kept for the exchange before."""
        shutil.rmtree(self.folder / client_memories.KEPT, ignore_errors=True)


def match(what: str, server: object, site: object) -> None:
    """Refuse a message that says something else than the site finds."""
    if server != site:
        raise Refused(
            f"{what} does not match: the server says {server!r}, the site {site!r} "
            f"(unseen {__version__})."
        )
