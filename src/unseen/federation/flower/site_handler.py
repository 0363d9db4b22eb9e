"""The site's side of a message: what was asked is checked, done, and answered.

Nothing is kept in the process, which ends with the message. What leaves is the answer alone: of an
error only its kind leaves too, since its words may quote the site's data; they stay in the site's
log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

from unseen.core.vector import Model
from unseen.datasets.totals import Totals
from unseen.engine import client_memories
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess
from unseen.engine.messages import Parcel, Value, from_reply, to_inbox
from unseen.errors import UnseenError
from unseen.federation.flower import sealed_sites
from unseen.federation.flower.desk import Desk, match
from unseen.federation.flower.protocol import (
    FAILED,
    PROTOCOL,
    REFUSED,
    Refused,
)
from unseen.federation.flower.site import Site
from unseen.federation.flower.terms import Facts
from unseen.study.made_with import versions
from unseen.study.prepare import check_batches, prepare, statistics
from unseen.study.private_jobs import check_noised
from unseen.study.setting import digest_of


def handle(parcel: Parcel, site: Site) -> dict[str, Value]:
    """Return the answer to a message: what was asked for, a refusal, or that it failed."""
    kind = str(parcel.get("kind", ""))
    echo: dict[str, Value] = {"site": site.name, "protocol": PROTOCOL, "kind": kind}
    try:
        match("the protocol", parcel.get("protocol"), PROTOCOL)
        desk = Desk(site, parcel)
        with reproducible(desk.study.threads, desk.study.device):
            answer = answering(kind)(parcel, desk)
        return {**echo, "about": str(parcel["about"]), **answer}
    except Refused as error:
        logging.getLogger("flwr").warning("refused: %s", error)
        return {**echo, REFUSED: str(error)}
    except Exception as error:
        logging.getLogger("flwr").exception("site %s could not answer", site.name)
        why = f"{type(error).__name__} at site {site.name!r}; its log says what happened"
        return {**echo, FAILED: why}


def answering(kind: str) -> Callable[[Parcel, Desk], Mapping[str, Value]]:
    """Who answers a kind of message."""
    handlers = {
        "hello": hello,
        "statistics": sums,
        "exchange": exchange,
        sealed_sites.ASK: sealed_sites.answer,
    }
    if kind not in handlers:
        raise Refused(f"was asked for {kind!r}; this site knows {', '.join(handlers)}.")
    return handlers[kind]


def hello(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """Who the site is and what its data are called."""
    facts = Facts.of(desk.own, desk.site.role, digest_of(desk.own), versions())
    return {"facts": json.dumps(vars(facts))}


def sums(parcel: Parcel, desk: Desk) -> dict[str, Value]:
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


def exchange(parcel: Parcel, desk: Desk) -> dict[str, Value]:
    """One exchange of the method, as `InProcess` does it, with the memory that lies on disk."""
    this_exchange, model, name = desk.exchange, desk.model, desk.site.name
    inbox = to_inbox(parcel, model.device)
    if this_exchange.slots:
        check_batches(model.module, desk.prepared.sources, desk.study)
        try:
            check_noised(desk.study, desk.data, model.module)
        except UnseenError as error:  # it speaks of the study and the network, not of the data
            raise Refused(str(error)) from None
    memories = client_memories.load(desk.folder)
    side = sealed_sites.site_side(desk)
    turn = replace(desk.turn, client=name)
    received = inbox if side is None else sealed_sites.receive(side, desk, inbox, turn)
    backend = InProcess(model, {name: desk.client()}, memories)
    (reply,) = backend.map(this_exchange, received, [name], desk.turn)
    client_memories.save(desk.folder, memories)
    if side is None:
        return from_reply(reply)
    return sealed_sites.leave(side, desk, this_exchange, reply, received, turn)
