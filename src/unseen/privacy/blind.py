"""A server that never holds the model: after round 0 every site applies the sum for itself.

What the server's rules make of encrypted rows goes to all sites as a ciphertext. Each decrypts it
and takes the server's step on its own copy of the inbox. On the server stand-ins of NaN take the
place of all entries that rows have entered, so that anything that tried to use them would stop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unseen.core.apply import Add, Descend, MovingAverage, Replace
from unseen.core.client import Memories
from unseen.core.exchange import Exchange, Method, Slot, Turn
from unseen.core.optimiser import SGD
from unseen.core.types import Inbox, Memory, Table
from unseen.errors import BadReply, Incompatible, UnseenError
from unseen.privacy import ckks
from unseen.privacy.kinds import CKKS, Ask, Sealed
from unseen.privacy.wire import accepted, decode, encode, expect, pack, refusal, type_of, unpack

#: What is kept of a turn from one process to the next.
TURN = ("seed", "round", "rounds", "exchange", "client", "order")


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
        f"the slot {label!r} is applied by {kind}. A server that does "
        "not read the sum cannot take squares, roots and quotients of it, and sites that did so "
        "for it would part for good after one sum that one of them missed. Take "
        'training.server = "add" or "sgd(lr=1, momentum=0.9)", or privacy.server = "clear".',
    )


@dataclass(frozen=True)
class Hidden:
    """The server's step on a stand-in: there is nothing to apply."""

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """The stand-in itself."""
        return new, state


def stand_in(size: int, dtype: torch.dtype) -> Tensor:
    """NaN [P] that takes no memory."""
    return torch.full((1,), torch.nan, dtype=dtype).expand(size)


def hidden(entry: Tensor) -> bool:
    """Whether an inbox entry is a stand-in."""
    return entry.numel() > 0 and bool(torch.isnan(entry.flatten()[0]))


def blindly(method: Method) -> Method:
    """The method with every step of the server's on stand-ins."""

    def one(exchange: Exchange) -> Exchange:
        slots = {n: replace(slot, apply=Hidden()) for n, slot in exchange.slots.items()}
        return replace(exchange, slots=slots)

    return replace(method, exchanges=tuple(map(one, method.exchanges)))


#: slot's key -> what its step remembers.
Moments = Mapping[str, Mapping[str, Tensor]]


def stepped(
    exchange: Exchange, sums: Mapping[str, Tensor], inbox: Inbox, moments: Moments
) -> tuple[dict[str, Tensor], dict[str, Mapping[str, Tensor]]]:
    """What `unseen.core.round` does with the rules' vectors, at a site."""
    entries, kept = dict(inbox), dict(moments)
    vectors: dict[str, Tensor] = {}
    for name, slot in exchange.slots.items():
        to = slot.to or name
        vectors[to] = vectors[to] + sums[name] if to in vectors else sums[name]
    for name, slot in exchange.slots.items():
        to = slot.to or name
        if to not in vectors:
            continue
        vector, key = vectors.pop(to), f"{exchange.name}:{name}"
        if slot.apply is None:
            entries[to] = vector
            continue
        before = {n: m.cpu() for n, m in kept.get(key, {}).items()}
        entries[to], after = slot.apply(entries[to].cpu(), vector, before, {})
        kept[key] = dict(after)
    return entries, kept


class Server(ckks.Server):
    """The server's side of encrypted rows whose sums nobody opens for it.

    names: all sites, those that evaluate included.
    """

    def __init__(self, method: Method, public: bytes, kind: CKKS, names: Sequence[str]) -> None:
        super().__init__(method, public, kind)
        self.names = tuple(sorted(names))
        #: The last exchange whose sums went out; None after a restart.
        self.after: tuple[int, str] | None = None

    def method(self, method: Method) -> Method:
        """The method with every step of the server's on stand-ins."""
        return blindly(method)

    def hello(self, exchange: Exchange, turn: Turn, names: Sequence[str]) -> str:
        """A fresh number, with the exchange that every site must have applied last."""
        said = json.loads(super().hello(exchange, turn, names))
        return json.dumps({**said, "after": self.after})

    def deliver(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """Send the sum to every site; a stand-in stays here."""
        question = pack({"kind": "apply", **header}, parts)
        answers = ask(dict.fromkeys(self.names, question))
        accepted(answers, "applied", {"slot": header["slot"], **self.label})
        missing = sorted(set(self.names) - set(answers))
        if missing:
            raise BadReply(
                f"{', '.join(missing)} did not take the sum of {header['slot']!r}. A site that "
                "misses one cannot go on: the round was stopped. Start it again from the last "
                "checkpoint when all sites are there."
            )
        self.after = (self.label["round"], self.label["exchange"])
        return stand_in(header["size"], rows[0].dtype)


class Site(ckks.Site):
    """A site that keeps the inbox for itself.

    memories: where it does so, labelled by exchange, so that a message that comes twice finds what
    there was before it.
    """

    def __init__(
        self, method: Method, name: str, secret: bytes, kind: CKKS, memories: Memories
    ) -> None:
        super().__init__(method, name, secret, kind)
        self.memories, self.key = memories, f"{name} (blind)"
        self.inbox: dict[str, Tensor] = {}
        self.moments: Moments = {}
        self.sums: dict[str, Tensor] = {}
        self.turn: Turn | None = None
        self.nonce = ""

    def save(self) -> bytes:
        """What a new process must be given to go on within an exchange, beside the memories."""
        turn = None if self.turn is None else [getattr(self.turn, f) for f in TURN]
        return pack({"turn": turn, "nonce": self.nonce, "sums": encode(self.sums)},
                    [super().save()])  # fmt: skip

    def load(self, content: bytes) -> None:
        """Go on from what `save` returned."""
        said, (inner,) = unpack(content, "a site's saved state")
        super().load(bytes(inner))
        self.nonce, self.sums = said["nonce"], decode(said["sums"])
        if said["turn"] is not None:
            self.turn = Turn(**dict(zip(TURN, said["turn"], strict=True)))
            kept = self.memories.before(self.key, (self.turn.round, self.turn.order))
            self.inbox, self.moments = _entries(kept), _moments(kept)

    def receive(self, inbox: Inbox, turn: Turn, hello: str) -> Inbox:
        """The inbox with this site's own entries in the place of stand-ins."""
        said = json.loads(hello)
        kept = self.memories.before(self.key, (turn.round, turn.order))
        own = _entries(kept)
        after = _text(kept["after"]) if "after" in kept else None
        expected = said["after"]
        needed = any(hidden(entry) for entry in inbox.values())
        if needed and (not own or (expected is not None and after not in (None, expected))):
            raise BadReply(
                f"site {self.name!r} holds the model as it was after {after or 'nothing'}, "
                f"and the server is past {expected}: it missed a sum and cannot go on. Bring its "
                "state back from another site, or start again."
            )
        self.inbox = {
            n: own[n].to(entry.device) if hidden(entry) else entry for n, entry in inbox.items()
        }
        self.moments = _moments(kept)
        self.turn, self.nonce, self.sums = turn, said["nonce"], {}
        if not kept:  # before the first exchange
            self._keep((turn.round, turn.order - 1), None)
        return dict(self.inbox)

    def answer(self, question: bytes) -> bytes:
        """As without blindness; a sum is applied and never opened for anybody."""
        try:
            header, parts = unpack(question, "the server's question")
            if header["kind"] == "apply":
                return self.apply(header, parts)
            if header["kind"] == "open":
                raise BadReply("this study's server is blind: no sum is opened for it.")
            return super().answer(question)
        except (UnseenError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            return refusal(error)

    def apply(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> bytes:
        """Decrypt one slot's sum; with the exchange's last one, take the server's step."""
        what, turn, slot = "the server's sum", self.turn, header["slot"]
        if turn is None:
            raise BadReply(f"{what} of {slot!r} came before any exchange.")
        label = {"round": turn.round, "exchange": turn.exchange, "nonce": self.nonce}
        expect(header, what, context=self.keys.identity, **label)
        if slot in self.sums:
            raise BadReply(f"{what} of {slot!r} came twice.")
        exchange = self.exchanges[turn.exchange]
        if self.pending.get("label") != label:  # this site was not asked to train
            self.pending = {"label": label, "asked": []}
        vector = self.combined(header, parts)
        self.sums[slot] = torch.from_numpy(vector).to(type_of(header, what))
        if self.sums.keys() == exchange.slots.keys():
            self._step(exchange, turn)
        return pack({"kind": "applied", "slot": slot, **label})

    def _step(self, exchange: Exchange, turn: Turn) -> None:
        self.inbox, self.moments = stepped(exchange, self.sums, self.inbox, self.moments)
        self._keep((turn.round, turn.order), [turn.round, exchange.name])

    def _keep(self, label: tuple[int, int], after: list[Any] | None) -> None:
        content = {f"entry/{name}": value.clone() for name, value in self.inbox.items()}
        for slot, moments in self.moments.items():
            content |= {f"moment/{slot}/{name}": value for name, value in moments.items()}
        if after is not None:
            content["after"] = torch.tensor(list(json.dumps(after).encode()), dtype=torch.uint8)
        self.memories.write(self.key, label, content)


def _entries(kept: Memory) -> dict[str, Tensor]:
    return {name[6:]: value for name, value in kept.items() if name.startswith("entry/")}


def _moments(kept: Memory) -> Moments:
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in kept.items():
        if name.startswith("moment/"):
            _, slot, moment = name.split("/", 2)
            found.setdefault(slot, {})[moment] = value
    return found


def _text(content: Tensor) -> Any:
    return json.loads(bytes(content.tolist()))
