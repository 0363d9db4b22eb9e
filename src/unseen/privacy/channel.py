"""Channels: what lies between the clients' replies and the server's rules.

Note:
    A channel has two sides that pass bytes to each other. The site's side seals what leaves a
    client and answers the server's questions; the server's side hands the rules rows that it cannot
    read. The sides share no object: a server's side is made of public bytes alone. How the bytes
    get from one to the other is a `Transport`, see `unseen.privacy.channelled`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from unseen.core.apply import Descend
from unseen.core.exchange import Method, Slot
from unseen.core.parts import able
from unseen.errors import Incompatible, UnseenError, choice
from unseen.expression import parse, resolve
from unseen.privacy import blind, ckks, kinds, masks
from unseen.privacy.channelled import Channelled, LocalSites
from unseen.privacy.kinds import CKKS, Clear, Kind, Masks, Server, ServerSide, Site

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

CHANNELS: Mapping[str, Callable[..., Kind]] = {"clear": Clear, "ckks": CKKS, "masks": Masks}


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
    if server == "blind" and not isinstance(kind, CKKS):
        raise UnseenError(
            "privacy.server = 'blind' needs privacy.channel = 'ckks': under masks, or in the "
            f"clear, the server reads every sum of updates. Found {expression!r}."
        )
    return kind


def check(kind: Kind, server: Server, method: Method) -> None:
    """Refuse, before the run, a method that the channel or the server cannot serve.

    Args:
        kind: The study's channel.
        server: The study's `privacy.server`.
        method: The method.

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
            where = f"It is the rule of {label!r} in the exchange {exchange.name!r}."
            rule = type(slot.combine).__name__
            sees = "scalars" if slot.combine is None else slot.combine.sees
            if sees == "updates":
                why = f"{rule} reads every coordinate of every update, which only its client sees."
                raise Incompatible(name, f"{why} {where}")
            if sees == "products" and isinstance(kind, Masks):
                why = f"{rule} needs inner products of the updates, and a sum under masks has none."
                raise Incompatible(name, f"{why} {where}", remedy="Take the channel ckks.")
            layers = slot.combine is not None and slot.combine.blocks != "whole"
            if sees == "products" and layers and isinstance(kind, CKKS) and kind.width:
                raise Incompatible(
                    name,
                    f"{rule} asks for inner products of every layer, and a sketch is of the whole "
                    "vector.",
                    remedy="Take gram='exact', or blocks='whole'.",
                )
            if server == "blind":
                _check_step(method.name, label, slot)


def _check_step(method: str, label: str, slot: Slot) -> None:
    """Refuse a server's step that the sites cannot take for themselves."""
    apply = slot.apply
    by = apply.optimiser if isinstance(apply, Descend) else apply
    if by is None or able(by, "at_sites"):
        return
    raise Incompatible(
        f"{method}+blind",
        f"the slot {label!r} is applied by {type(by).__name__}. A server that does not read the "
        "sum cannot take squares, roots and quotients of it, and sites that did so for it would "
        "diverge for good after one sum that one of them missed.",
        remedy='Take training.server = "add" or "sgd(lr=1, momentum=0.9)", or privacy.server = '
        '"clear".',
    )


def wrap(
    kind: Kind, server: Server, method: Method, backend: InProcess, names: Sequence[str]
) -> Channelled:
    """Return the in-process backend behind the channel, with keys made here for this run.

    Args:
        kind: The study's channel.
        server: The study's `privacy.server`.
        method: The method, as the sites play it.
        backend: Where clients train.
        names: All who take part, those who only evaluate included.
    """
    check(kind, server, method)
    public, private = keys(kind, names)
    sites = {name: site_side(kind, server, method, name, private[name]) for name in names}
    serve = partial(server_side, kind, server, public)
    return Channelled(LocalSites(backend, sites), serve, backend.memories)


def keys(kind: Kind, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """Return fresh keys: the server's files, and each site's, by name."""
    if isinstance(kind, CKKS):
        secret, public = ckks.make_keys()
        return {kinds.PUBLIC: public}, {name: {kinds.SECRET: secret} for name in names}
    pairs = {name: masks.make_keys() for name in names}
    publics = json.dumps({name: public.hex() for name, (_, public) in pairs.items()}).encode()
    own = {name: {kinds.PRIVATE: private} for name, (private, _) in pairs.items()}
    return {}, {name: {**files, kinds.PUBLICS: publics} for name, files in own.items()}


def site_side(
    kind: Kind, server: Server, method: Method, name: str, files: Mapping[str, bytes], job: str = ""
) -> Site:
    """Return a site's side.

    Args:
        kind: The study's channel.
        server: The study's `privacy.server`.
        method: The method, as the sites play it.
        name: The site.
        files: Its own files of keys.
        job: The run that sealed states belong to.
    """
    if isinstance(kind, CKKS):
        if server == "blind":
            return blind.Site(method, name, files[kinds.SECRET], kind, job)
        return ckks.Site(method, name, files[kinds.SECRET], kind)
    if isinstance(kind, Masks):
        publics = {n: bytes.fromhex(text) for n, text in json.loads(files[kinds.PUBLICS]).items()}
        return masks.Site(name, files[kinds.PRIVATE], publics, kind)
    raise UnseenError(NO_SIDES)


def server_side(
    kind: Kind, server: Server, files: Mapping[str, bytes], method: Method
) -> ServerSide:
    """Return the server's side, from public files alone.

    Args:
        kind: The study's channel.
        server: The study's `privacy.server`.
        files: The server's files of keys.
        method: The method, as the sites play it.
    """
    if isinstance(kind, CKKS):
        side = blind.Server if server == "blind" else ckks.Server
        return side(method, files[kinds.PUBLIC], kind)
    if isinstance(kind, Masks):
        return masks.Server(method, kind)
    raise UnseenError(NO_SIDES)


NO_SIDES = "the channel 'clear' has no sides."


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
