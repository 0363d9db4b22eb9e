"""Channels: what lies between the clients' replies and the server's rules.

Note:
    A channel has two sides that pass bytes to each other. The site's side seals what leaves a
    client and answers the server's questions; the server's side hands the rules rows that it cannot
    read. The sides share no object: a server's side is made of public bytes alone. How the bytes
    get from one to the other is for subclasses of `unseen.privacy.channelled.Channelled`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from unseen.core import Descend, Exchange, Method, Slot
from unseen.core.parts import able
from unseen.errors import Incompatible, UnseenError, choice
from unseen.expression import parse, resolve
from unseen.privacy import blind, ckks, kinds, masks
from unseen.privacy.channelled import LocalSites
from unseen.privacy.kinds import CKKS, Blind, Clear, Kind, Masks, Server, ServerSide, Site

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

CHANNELS: Mapping[str, Callable[..., Kind]] = {"clear": Clear, "ckks": CKKS, "masks": Masks}
#: The two sides of each kind: (method, name, files of keys, kind, job), and (method, files, kind).
SIDES: Mapping[type[Kind], tuple[Callable[..., Site], Callable[..., ServerSide]]] = {
    Blind: (blind.Site, blind.Server),
    CKKS: (ckks.Site, ckks.Server),
    Masks: (masks.Site, masks.Server),
}


def read(expression: str, server: Server = "clear") -> Kind:
    """Return the channel that an expression names: `clear`, `ckks(gram='exact')` or `masks()`.

    Args:
        expression: The study's `privacy.channel`.
        server: The study's `privacy.server`.
    """
    calls = parse(expression)
    if len(calls) != 1:
        raise UnseenError(f"a study has one channel; found {len(calls)} joined by +.")
    kind = resolve("channel", calls[0], CHANNELS)
    assert isinstance(kind, Clear | CKKS | Masks)
    choice("privacy.server", server, ("clear", "blind"))
    if server == "clear":
        return kind
    if isinstance(kind, CKKS):
        return Blind(**asdict(kind))
    what = f"privacy.server = 'blind' needs privacy.channel = 'ckks'; found {expression!r}"
    raise UnseenError(f"{what}, with which the server reads every sum of updates.")


def check(kind: Kind, method: Method) -> None:
    """Refuse, before the run, a method that the channel or the server cannot serve.

    Raises:
        Incompatible: They do not go together.
    """
    if isinstance(kind, Clear):
        return
    name = f"{method.name}+{'ckks' if isinstance(kind, CKKS) else 'masks'}"
    if method.gather is not None:
        raise Incompatible(
            name, "it pools all data at one client, whose update is the only one of its sum."
        )
    for exchange in method.exchanges:
        for label, slot in exchange.slots.items():
            for why, remedy in _unread(kind, exchange, label, slot):
                raise Incompatible(name, why, remedy=remedy)
            if isinstance(kind, Blind):
                _check_step(method.name, label, slot)


def check_sums(kind: Kind, method: Method, sites: int) -> None:
    """Refuse, before the run, sums that masks would not hide a site's row in.

    Args:
        kind: The channel.
        method: The method, completed for its network and the number of sites.
        sites: How many train.

    Raises:
        Incompatible: Fewer than the channel's quorum take part in a sum.
    """
    if not isinstance(kind, Masks):
        return
    for exchange in method.exchanges:
        for slot in exchange.row_slots.values():
            n = sites if slot.view is None else slot.view.size(sites)
            if n >= kind.quorum:
                continue
            left_out = slot.view is not None and slot.view.folds != ()
            raise Incompatible(
                f"{method.name}+masks",
                f"masks hide a site's row in a sum of at least {kind.quorum}, and a sum of {n} of "
                f"the {sites} sites is asked for in the exchange {exchange.name!r}"
                + (", where a group of sites is left out." if left_out else "."),
                remedy="Add sites, or leave fewer out at a time with a larger groups = G."
                if left_out
                else "Add sites.",
            )


def _unread(kind: Kind, exchange: Exchange, label: str, slot: Slot) -> Iterator[tuple[str, str]]:
    """Why the rule of a slot cannot work on this channel, and the remedy."""
    rule = slot.combine
    if rule is None:
        return
    called, where = type(rule).__name__, f"{label!r} in the exchange {exchange.name!r}"
    if rule.sees == "updates":
        why = f"{called} reads every coordinate of every update, which only its client sees."
        yield f"{why} It is the rule of {where}.", ""
    if rule.sees == "products" and isinstance(kind, Masks):
        why = f"{called} needs inner products of the updates, and a sum under masks has none."
        yield f"{why} It is the rule of {where}.", "Take the channel ckks."
    if rule.sees == "products" and isinstance(kind, Blind):
        why = (
            f"{called} needs inner products, which sites decrypt for it. No site can check what a "
            "server multiplied, and a server that lies reads updates by them."
        )
        yield why, "Take a rule of scalars, such as fedavg, or privacy.server = 'clear'."
        return
    if rule.sees == "products" and isinstance(kind, CKKS) and kind.width and rule.blocks != "whole":
        why = (
            f"{called} asks for inner products of every layer, and a sketch is of the whole vector."
        )
        yield why, "Take gram='exact', or blocks='whole'."


def _check_step(method: str, label: str, slot: Slot) -> None:
    """Refuse a server's step that the sites cannot take for themselves."""
    apply = slot.apply
    by = apply.optimiser if isinstance(apply, Descend) else apply
    if by is None or able(by, "at_sites"):
        return
    why = (
        f"the slot {label!r} is applied by {type(by).__name__}. A server that cannot read the sum "
        "cannot take its squares, roots and quotients, and a site that missed one would diverge."
    )
    remedy = 'Take training.server = "add" or "sgd(lr=1, momentum=0.9)", or server = "clear".'
    raise Incompatible(f"{method}+blind", why, remedy=remedy)


def wrap(kind: Kind, method: Method, backend: InProcess, names: Sequence[str]) -> LocalSites:
    """Return the in-process backend behind the channel, with keys made here for this run.

    Args:
        kind: The study's channel.
        method: The method, as the sites play it.
        backend: Where clients train.
        names: All who take part, those who only evaluate included.
    """
    check(kind, method)
    public, private = keys(kind, names)
    sites = {name: site_side(kind, method, name, private[name]) for name in names}
    return LocalSites(backend, sites, partial(server_side, kind, public))


def keys(
    kind: Kind, names: Sequence[str], shared: Mapping[str, bytes] | None = None
) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """Return the files of keys: the server's, and each site's by name.

    Args:
        kind: The channel.
        names: The sites that get new keys.
        shared: Files that other sites have; all sites of these get a new file of public halves.
    """
    files = shared or {}
    if isinstance(kind, CKKS):
        fresh = ckks.make_keys() if kinds.SECRET not in files else None
        secret, public = fresh or (files[kinds.SECRET], files[kinds.PUBLIC])
        both = {kinds.SECRET: secret, kinds.PUBLIC: public}
        return {kinds.PUBLIC: public}, dict.fromkeys(names, both)
    halves: dict[str, str] = json.loads(files.get(kinds.PUBLICS, b"{}"))
    own: dict[str, dict[str, bytes]] = {name: {} for name in halves}
    for name in names:
        private, public = masks.make_keys()
        own[name], halves[name] = {kinds.PRIVATE: private}, public.hex()
    publics = json.dumps(halves, indent=2, sort_keys=True).encode() + b"\n"
    return {}, {name: {**one, kinds.PUBLICS: publics} for name, one in own.items()}


def site_side(
    kind: Kind, method: Method, name: str, files: Mapping[str, bytes], job: str = ""
) -> Site:
    """Return a site's side.

    Args:
        kind: The study's channel.
        method: The method, as the sites play it.
        name: The site.
        files: Its own files of keys.
        job: The run that sealed states belong to.
    """
    return SIDES[type(kind)][0](method, name, files, kind, job)


def server_side(kind: Kind, files: Mapping[str, bytes], method: Method) -> ServerSide:
    """Return the server's side of a method as the sites play it, from public files alone."""
    return SIDES[type(kind)][1](method, files, kind)


def seen_by_server(expression: str, rows: Tensor) -> list[bytes | Tensor]:
    """Return what the server holds of each client's row, under keys that are made and lost here.

    Args:
        expression: The channel.
        rows: [K, P] in float32.

    Returns:
        A tensor for a row that is plain, bytes for one that is not.
    """
    kind = read(expression)
    if isinstance(kind, CKKS):
        secret, _ = ckks.make_keys()
        return [ckks.encrypt(secret, row, {}) for row in rows]
    return masks.exposed(rows, kind) if isinstance(kind, Masks) else list(rows)
