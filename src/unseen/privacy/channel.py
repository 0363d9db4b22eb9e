"""Channels: what lies between the clients' replies and the server's rules.

A channel has two sides that pass bytes to one another. The site's side seals what leaves a client
and answers the server's questions; the server's side hands the rules rows that it cannot read.
The sides share no object: a server's side is made of public bytes alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unseen.core.disclosure import Disclosure, Undecided
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.round import Backend
from unseen.core.rule import Rows
from unseen.core.types import Inbox
from unseen.errors import Incompatible, UnseenError, choice
from unseen.expression import parse, resolve
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
from unseen.privacy.wire import unpack

if TYPE_CHECKING:
    from unseen.core.client import Memories
    from unseen.engine.inprocess import InProcess


CHANNELS: Mapping[str, Callable[..., Kind]] = {"clear": Clear, "ckks": CKKS, "masks": Masks}


def read(expression: str, server: Server = "clear") -> Kind:
    """The channel that an expression names: `clear`, `ckks(gram='exact')` or `masks()`."""
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
            layers = getattr(rule, "blocks", "whole") != "whole"
            sketched = isinstance(kind, CKKS) and kind.width > 0
            if rule is not None and rule.sees == "products" and layers and sketched:
                raise Incompatible(
                    f"{method.name}+ckks",
                    f"{type(rule).__name__} asks for inner "
                    "products of every layer, and a sketch is of the whole vector. Take "
                    "gram='exact', or blocks='whole'.",
                )
            if server == "blind":
                from unseen.privacy.blind import check_apply

                check_apply(method.name, label, slot)


def _why(channel: str, rule: Any) -> str:
    kind = type(rule).__name__
    if rule.sees == "products":
        return (
            f"{kind} goes by inner products of the updates, and a sum under masks has none. Take "
            "the channel ckks."
        )
    return f"{kind} reads every coordinate of every update, which nobody but its client sees."


def wrap(
    kind: Kind,
    server: Server,
    method: Method,
    backend: InProcess,
    names: Sequence[str],
    memories: Memories | None = None,
) -> Channelled:
    """The in-process backend behind the channel, with keys made here for this run.

    names: all who take part, those who only evaluate included. memories: where sites keep what
    outlasts a round.
    """
    check(kind, server, method)
    public, private = keys(kind, names)
    kept = memories if memories is not None else backend.memories
    sites = {name: site(kind, server, method, name, private[name], kept) for name in names}
    return Channelled(backend, serving(kind, server, method, names, public), sites)


def keys(kind: Kind, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """Fresh keys: the server's files, and each site's, by name."""
    if isinstance(kind, CKKS):
        from unseen.privacy import ckks

        secret, public = ckks.make_keys()
        return {PUBLIC: public}, {name: {SECRET: secret} for name in names}
    from unseen.privacy import masks

    pairs = {name: masks.make_keys() for name in names}
    listed = json.dumps({name: public.hex() for name, (_, public) in pairs.items()}).encode()
    return {}, {name: {PRIVATE: own, PUBLICS: listed} for name, (own, _) in pairs.items()}


def site(
    kind: Kind,
    server: Server,
    method: Method,
    name: str,
    files: Mapping[str, bytes],
    memories: Memories,
) -> Site:
    """A site's side, from its own files."""
    if isinstance(kind, CKKS):
        from unseen.privacy import blind, ckks

        if server == "blind":
            return blind.Site(method, name, files[SECRET], kind, memories)
        return ckks.Site(method, name, files[SECRET], kind)
    if isinstance(kind, Masks):
        from unseen.privacy import masks

        publics = {n: bytes.fromhex(text) for n, text in json.loads(files[PUBLICS]).items()}
        return masks.Site(name, files[PRIVATE], publics, kind)
    raise UnseenError("the channel 'clear' has no sides.")


def serving(
    kind: Kind, server: Server, method: Method, names: Sequence[str], files: Mapping[str, bytes]
) -> ServerSide:
    """The server's side, from public files. names: all sites, those that evaluate included."""
    if isinstance(kind, CKKS):
        from unseen.privacy import blind, ckks

        if server == "blind":
            return blind.Server(method, files[PUBLIC], kind, names)
        return ckks.Server(method, files[PUBLIC], kind)
    if isinstance(kind, Masks):
        from unseen.privacy import masks

        return masks.Server(method, kind)
    raise UnseenError("the channel 'clear' has no sides.")


class Channelled(Backend):
    """A backend whose clients are sites behind a channel, in one process.

    Every message is bytes both ways, and the server's side is made of the public ones alone.
    """

    def __init__(self, backend: InProcess, server: ServerSide, sites: Mapping[str, Site]) -> None:
        self.backend, self.server, self.sites = backend, server, dict(sites)
        self.model, self.clients = backend.model, backend.clients
        self.memories = backend.memories
        self._left: list[Disclosure] = []

    def carries_channel(self) -> bool:
        """Yes."""
        return True

    def played(self, method: Method) -> Method:
        """The method as the server plays it."""
        return self.server.method(method)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Each client trains on what its site makes of the inbox, and its rows leave sealed."""
        hello = self.server.hello(exchange, turn, clients)
        self._left = []
        for name in sorted(self.sites.keys() - set(clients)):  # who only listens
            self.sites[name].receive(inbox, replace(turn, client=name), hello)
        replies = []
        for name in clients:
            site, own = self.sites[name], replace(turn, client=name)
            received = site.receive(inbox, own, hello)
            (reply,) = self.backend.map(exchange, received, [name], turn)
            if exchange.slots:
                messages = site.seal(exchange, reply, received, own, hello)
                if how := form(self.server):
                    self._left += [Disclosure(name, s, how, len(m)) for s, m in messages.items()]
                rows: Any = self.server.opened(name, messages)
                reply = Reply(rows, reply.scalars)
            replies.append(reply)
        return replies

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """One slot's rows, whose questions go to the sites."""
        sealed: list[Any] = [reply.rows[slot] for reply in replies]
        rows: Any = self.server.rows(slot, sealed, self.ask)
        if reference is not None:
            rows.device = reference.device
        stack: Rows = rows
        return stack

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Every site's answer."""
        answers = {name: self.sites[name].answer(q) for name, q in questions.items()}
        for name, answer in answers.items():
            label, how = answered(answer)
            if how:
                self._left.append(Disclosure(name, label, how, len(answer)))
        return answers

    def undecided(self) -> list[Undecided]:
        """Pairs whose inner product could not be told from 0, since the last call."""
        found = list(getattr(self.server, "undecided", ()))
        if found:
            self.server.undecided.clear()  # type: ignore[attr-defined]
        return found

    def disclosed(self) -> list[Disclosure]:
        """What left each client since the last `map` began."""
        return list(self._left)


def form(side: ServerSide) -> str:
    """In what form rows leave with the replies; nothing if they do not."""
    return str(getattr(side, "form", "plain"))


def answered(message: bytes) -> tuple[str, str]:
    """What an answer is called in a ledger, and its form; nothing for a bare acknowledgement."""
    header, _ = unpack(message, "an answer")
    slot = header.get("slot", "")
    return {
        "weights": (f"{slot} weights", "plain"),
        "sum": (f"{slot} sum", "plain"),
        "masked": (slot, "masked"),
    }.get(header.get("kind", ""), ("", ""))


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
