"""Channels: what lies between the clients' replies and the server's rules.

A channel has two sides that pass bytes to one another. The site's side seals what leaves a client
and answers the server's questions; the server's side hands the rules rows that it cannot read.
The sides share no object: a server's side is made of public bytes alone. How the bytes get from
one to the other is a `Transport`, see `unseen.privacy.channelled`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from unseen.core.apply import Add, Descend, MovingAverage, Replace
from unseen.core.exchange import Method, Slot
from unseen.core.optimiser import SGD
from unseen.core.rule import Combine
from unseen.errors import Incompatible, UnseenError, choice
from unseen.expression import parse, resolve
from unseen.privacy.channelled import Channelled, LocalSites
from unseen.privacy.kinds import (
    CKKS,
    PRIVATE,
    PUBLIC,
    PUBLICS,
    SECRET,
    Clear,
    Kind,
    Masks,
    Server,
    ServerSide,
    Site,
)

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

CHANNELS: Mapping[str, Callable[..., Kind]] = {"clear": Clear, "ckks": CKKS, "masks": Masks}


def read(expression: str, server: Server = "clear") -> Kind:
    """Return the channel that an expression names: `clear`, `ckks(gram='exact')` or `masks()`."""
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
    """Refuse, before the run, a method that the channel or the server cannot serve."""
    if isinstance(kind, Clear):
        return
    able = {"scalars", "products"} if isinstance(kind, CKKS) else {"scalars"}
    name = "ckks" if isinstance(kind, CKKS) else "masks"
    if method.gather is not None:
        raise Incompatible(
            f"{method.name}+{name}",
            "it pools all data at one client, whose update is the only one of its sum.",
        )
    for exchange in method.exchanges:
        for label, slot in exchange.slots.items():
            rule = slot.combine
            if rule is not None and rule.sees not in able:
                raise Incompatible(
                    f"{method.name}+{name}",
                    f"{_why(name, rule)} It is the rule of "
                    f"{label!r} in the exchange {exchange.name!r}.",
                )
            sketched = isinstance(kind, CKKS) and kind.width > 0
            layers = rule is not None and rule.sees == "products" and rule.blocks != "whole"
            if layers and sketched:
                raise Incompatible(
                    f"{method.name}+ckks",
                    f"{type(rule).__name__} asks for inner products of every layer, and a sketch "
                    "is of the whole vector.",
                    remedy="Take gram='exact', or blocks='whole'.",
                )
            if server == "blind":
                check_apply(method.name, label, slot)


def check_apply(method: str, label: str, slot: Slot) -> None:
    """Refuse a server's step that the sites cannot take for themselves."""
    apply = slot.apply
    if apply is None or isinstance(apply, Add | Replace | MovingAverage):
        return
    if isinstance(apply, Descend) and isinstance(apply.optimiser, SGD):
        return
    kind = type(apply.optimiser if isinstance(apply, Descend) else apply).__name__
    raise Incompatible(
        f"{method}+blind",
        f"the slot {label!r} is applied by {kind}. A server that does not read the sum cannot take "
        "squares, roots and quotients of it, and sites that did so for it would diverge for good "
        "after one sum that one of them missed.",
        remedy='Take training.server = "add" or "sgd(lr=1, momentum=0.9)", or privacy.server = '
        '"clear".',
    )


def _why(channel: str, rule: Combine) -> str:
    kind = type(rule).__name__
    if rule.sees == "products":
        return (
            f"{kind} needs inner products of the updates, and a sum under masks has none. Take "
            "the channel ckks."
        )
    return f"{kind} reads every coordinate of every update, which nobody but its client sees."


def wrap(
    kind: Kind, server: Server, method: Method, backend: InProcess, names: Sequence[str]
) -> Channelled:
    """Return the in-process backend behind the channel, with keys made here for this run.

    Args:
        kind, server: The study's channel and server.
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
        from unseen.privacy import ckks

        secret, public = ckks.make_keys()
        return {PUBLIC: public}, {name: {SECRET: secret} for name in names}
    from unseen.privacy import masks

    pairs = {name: masks.make_keys() for name in names}
    publics = json.dumps({name: public.hex() for name, (_, public) in pairs.items()}).encode()
    return {}, {name: {PRIVATE: pair[0], PUBLICS: publics} for name, pair in pairs.items()}


def site_side(
    kind: Kind, server: Server, method: Method, name: str, files: Mapping[str, bytes], job: str = ""
) -> Site:
    """Return a site's side.

    Args:
        kind, server: The study's channel and server.
        method: The method, as the sites play it.
        name: The site.
        files: Its own files of keys.
        job: The run that sealed states belong to.
    """
    if isinstance(kind, CKKS):
        from unseen.privacy import blind, ckks

        if server == "blind":
            return blind.Site(method, name, files[SECRET], kind, job)
        return ckks.Site(method, name, files[SECRET], kind)
    if isinstance(kind, Masks):
        from unseen.privacy import masks

        publics = {n: bytes.fromhex(text) for n, text in json.loads(files[PUBLICS]).items()}
        return masks.Site(name, files[PRIVATE], publics, kind)
    raise UnseenError("the channel 'clear' has no sides.")


def server_side(
    kind: Kind, server: Server, files: Mapping[str, bytes], method: Method
) -> ServerSide:
    """Return the server's side, from public files alone."""
    if isinstance(kind, CKKS):
        from unseen.privacy import blind, ckks

        side = blind.Server if server == "blind" else ckks.Server
        return side(method, files[PUBLIC], kind)
    if isinstance(kind, Masks):
        from unseen.privacy import masks

        return masks.Server(method, kind)
    raise UnseenError("the channel 'clear' has no sides.")


def seen_by_server(expression: str, rows: Tensor) -> list[bytes | Tensor]:
    """What the server holds of each client's row of [K, P] float32: the tensor where it is plain,
    bytes where it is not. Keys are made here and thrown away."""
    kind = read(expression)
    if isinstance(kind, CKKS):
        from unseen.privacy import ckks

        secret, _ = ckks.make_keys()
        return [ckks.encrypt(secret, row, {}) for row in rows]
    if isinstance(kind, Masks):
        from unseen.privacy import masks

        return masks.exposed(rows, kind)
    return list(rows)
