"""A server that never holds the model: it carries what it cannot read from site to site.

After round 0 a message brings, in the place of the model, the last state that a site sealed and the
encrypted sums that came after it. A site opens the one, takes the server's step with the others,
works with what it has then, and seals that along with its reply. So the server needs the newest of
both, and a site that comes late, missed rounds or lost its disk needs its key alone. On the server
stand-ins of NaN take the place of all entries that rows have entered, so that anything that tried
to use them would stop.

A state's bits are exact. It is sealed with ChaCha20-Poly1305 (RFC 8439), each under a key that
HKDF-SHA-256 (RFC 5869) derives from the key that all sites share and a random salt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unseen.core.client import Memories
from unseen.core.exchange import Exchange, Method, Turn
from unseen.core.round import apply_sums, sum_by_entry
from unseen.core.types import Inbox, Memory, Table
from unseen.errors import BadReply, UnseenError
from unseen.privacy import ckks
from unseen.privacy.kinds import CKKS, STATE, Ask, Cargo, Sealed
from unseen.privacy.wire import expect, pack, refusal, type_of, unpack

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

#: What the cargo calls a slot's encrypted sum.
SUM = "sum/"
#: Under what the server keeps its cargo from one start to the next.
SERVER = "server"
SALT = 32
#: How the names of tensors in a memory begin.
ENTRY, MOMENT = "entry", "moment"
#: "exchange:slot" -> what its step remembers.
Moments = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class KeepStandIn:
    """The server's step on a stand-in: there is nothing to apply."""

    def __call__(
        self, old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the stand-in itself."""
        return new, state


def stand_in(size: int, dtype: torch.dtype) -> Tensor:
    """Return NaN [P] that takes no memory."""
    return torch.full((1,), torch.nan, dtype=dtype).expand(size)


def is_stand_in(entry: Tensor) -> bool:
    """Return whether an inbox entry is a stand-in."""
    return entry.numel() > 0 and bool(torch.isnan(entry.flatten()[0]))


def clear_entries(inbox: Inbox) -> dict[str, Tensor]:
    """Return the entries that travel in the clear: those that no sum has entered."""
    return {name: entry for name, entry in inbox.items() if not is_stand_in(entry)}


@dataclass(frozen=True)
class State:
    """All that a server sends out, as it is in the clear.

    Attributes:
        entries: The inbox.
        moments: What the server's steps remember.
        after: The exchange whose sums are in it, by its nonce.
    """

    entries: Mapping[str, Tensor] = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    after: str = ""


def seal_state(state: State, secret: bytes, job: str) -> bytes:
    """Encrypt and authenticate a state with the sites' shared secret.

    Args:
        state: What is sealed.
        secret: The file of the key that all sites share.
        job: The run that it belongs to.
    """
    named = [(ENTRY, "", name, entry) for name, entry in state.entries.items()]
    for slot, moments in state.moments.items():
        named += [(MOMENT, slot, name, moment) for name, moment in moments.items()]
    arrays = [entry.detach().cpu().contiguous().numpy() for *_, entry in named]
    heads = [
        [kind, slot, name, str(array.dtype), list(array.shape)]
        for (kind, slot, name, _), array in zip(named, arrays, strict=True)
    ]
    plain = pack({"arrays": heads}, [array.tobytes() for array in arrays])
    salt, bound = os.urandom(SALT), _bound(job, state.after)
    content = _cipher(secret, salt).encrypt(bytes(12), plain, bound)
    return pack({"kind": "state", "job": job, "after": state.after}, [salt, content])


def open_state(content: bytes, secret: bytes, job: str) -> State:
    """Return the state; refuse one that was changed, or is of another run or key."""
    from cryptography.exceptions import InvalidTag

    what = "the sealed state"
    header, parts = unpack(content, what)
    expect(header, what, kind="state", job=job)
    salt, ciphertext = parts
    try:
        bound = _bound(job, header["after"])
        plain = _cipher(secret, bytes(salt)).decrypt(bytes(12), ciphertext, bound)
    except InvalidTag:
        raise BadReply(
            f"{what} was changed, or is under another key than this site's.",
            remedy="Compare the kits.",
        ) from None
    inner, arrays = unpack(plain, what)
    entries: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for (kind, slot, name, dtype, shape), array in zip(inner["arrays"], arrays, strict=True):
        numbers = np.frombuffer(array, np.dtype(dtype)).reshape(shape)
        where = entries if kind == ENTRY else moments.setdefault(slot, {})
        where[name] = torch.from_numpy(numbers.copy()).clone()  # aligned as torch aligns
    return State(entries, moments, header["after"])


def _bound(job: str, after: str) -> bytes:
    return json.dumps([job, after]).encode()


def _cipher(secret: bytes, salt: bytes) -> ChaCha20Poly1305:
    """A cipher for one message: the salt makes the key, so that the nonce may be 0."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise UnseenError(
            "a blind server needs the package cryptography.",
            remedy="Install it with pip install 'unseen[he]'.",
        ) from error
    key = HKDF(hashes.SHA256(), 32, salt=salt, info=b"unseen blind state 1").derive(secret)
    return ChaCha20Poly1305(key)


class Server(ckks.Server):
    """The server's side: it carries the newest sealed state and the sums that came after it."""

    def __init__(self, method: Method, public: bytes, kind: CKKS) -> None:
        super().__init__(method, public, kind)
        self.sealed_state, self.sums = b"", dict[str, bytes]()
        #: Whose sums the state holds, and whose it will hold once the others are applied.
        self.base = self.after = ""

    def method(self, method: Method) -> Method:
        """Return the method with every step of the server's on stand-ins."""

        def on_stand_ins(exchange: Exchange) -> Exchange:
            slots = {n: replace(slot, apply=KeepStandIn()) for n, slot in exchange.slots.items()}
            return replace(exchange, slots=slots)

        return replace(method, exchanges=tuple(map(on_stand_ins, method.exchanges)))

    def deliver(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """Keep an encrypted sum for the next messages; a stand-in takes its place."""
        if header["nonce"] != self.after:
            if self.stale or self.sums:
                raise UnseenError("no site sent the state that these sums belong to.")
            self.base, self.after = self.after, header["nonce"]
        self.sums[header["slot"]] = pack({"kind": "apply", "base": self.base, **header}, parts)
        return stand_in(header["size"], rows[0].dtype)

    @property
    def stale(self) -> bool:
        """Whether the sites that answer next are to send the state."""
        return bool(self.sums) or not self.sealed_state

    def clear(self, inbox: Inbox) -> Inbox:
        """Return the entries that travel in the clear; refuse stand-ins for which nothing is here.

        Raises:
            UnseenError: A checkpoint did not hold the state: it was changed, or of another version.
        """
        entries = clear_entries(inbox)
        missing = sorted(inbox.keys() - entries.keys())
        if missing and not self.cargo():
            raise UnseenError(
                f"the sealed state with {', '.join(missing)} is not in this checkpoint, and the "
                "server has no model.",
                remedy="Remove the job's folder to run it from the beginning.",
            )
        return entries

    def cargo(self) -> Cargo:
        """Return what goes out with every message."""
        state = {STATE: self.sealed_state} if self.sealed_state else {}
        return state | {SUM + slot: content for slot, content in self.sums.items()}

    def take(self, name: str, content: bytes) -> None:
        """Keep a site's sealed state, the first of an exchange, in the place of the last one."""
        what = f"the state that {name!r} sealed"
        header, _ = unpack(content, what)
        expect(header, what, kind="state", after=self.after)
        if self.stale:
            self.sealed_state, self.sums, self.base = content, {}, self.after

    def restore(self, content: bytes) -> None:
        """Go on from a sealed state in which all sums are."""
        header, _ = unpack(content, "the sealed state")
        self.sealed_state, self.base, self.after = content, header["after"], header["after"]

    def save(self) -> Memories:
        """Return the cargo for a checkpoint: nothing of it can be read without the sites' key."""
        label = {"base": self.base, "after": self.after}
        content = {"label": _tensor(json.dumps(label).encode())}
        content |= {name: _tensor(part) for name, part in self.cargo().items()}
        return Memories({SERVER: [((0, 0), content)]})

    def load(self, memories: Memories) -> None:
        """Go on from what `save` returned, if it is among the memories."""
        if SERVER not in memories.kept:
            return
        saved = memories.kept[SERVER][-1][1]
        content = {name: bytes(tensor.cpu().numpy()) for name, tensor in saved.items()}
        label = json.loads(content.pop("label"))
        self.base, self.after = label["base"], label["after"]
        self.sealed_state = content.pop(STATE, b"")
        self.sums = {name.removeprefix(SUM): part for name, part in content.items()}


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class Site(ckks.Site):
    """A site's side: it has the model from the cargo, and takes the server's step for itself.

    Attributes:
        working: The state that this site works with in the current exchange.
        wanted: Whether the server needs that state.
    """

    blind = True

    def __init__(self, method: Method, name: str, secret: bytes, kind: CKKS, job: str) -> None:
        super().__init__(method, name, secret, kind)
        self.secret, self.job = secret, job
        self.working, self.wanted = State(), False

    def receive(self, inbox: Inbox, cargo: Cargo, turn: Turn) -> Inbox:
        """Return the inbox with the carried state's entries, once the sums are applied to them."""
        state = State(inbox)
        if content := cargo.get(STATE):
            carried = open_state(content, self.secret, self.job)
            state = replace(carried, entries={**inbox, **carried.entries})
        sums = {n.removeprefix(SUM): c for n, c in cargo.items() if n.startswith(SUM)}
        self.wanted = bool(sums) or STATE not in cargo
        self.working = self._applied(state, sums, turn) if sums else state
        return self.working.entries

    def _applied(self, state: State, sums: Mapping[str, bytes], turn: Turn) -> State:
        what = "the server's sums"
        messages = {slot: unpack(content, what) for slot, content in sums.items()}
        first = next(iter(messages.values()))[0]
        label = {key: first.get(key) for key in ("round", "exchange", "nonce")}
        exchange = self.exchanges.get(str(label["exchange"]))
        if exchange is None or exchange.slots.keys() != sums.keys():
            raise BadReply(f"{what} are not those of an exchange of this method.")
        if label["round"] not in range(turn.round + 1):
            raise BadReply(f"{what} are of round {label['round']}, and this is {turn.round}.")
        if self.pending.get("label") != label:  # this site was not asked for the weights
            self.pending = {"label": label, "asked": []}
        vectors = {}
        for slot, (header, parts) in messages.items():
            expect(header, what, kind="apply", slot=slot, base=state.after, **label)
            expect(header, what, context=self.keys.identity)
            vector = self.combined(header, parts)
            vectors[slot] = torch.from_numpy(vector).to(type_of(header, what))
        if missing := {s.to or n for n, s in exchange.slots.items()} - state.entries.keys():
            raise BadReply(f"{what} came without the state that they belong to: {missing}.")
        entries = {name: entry.cpu() for name, entry in state.entries.items()}
        prefix = f"{exchange.name}:"
        before = {n: state.moments.get(prefix + n, {}) for n in exchange.slots}
        entries, moments = apply_sums(
            exchange, entries, sum_by_entry(exchange, vectors), before, {}
        )
        after = {prefix + slot: memory for slot, memory in moments.items() if memory}
        return State(entries, {**state.moments, **after}, str(label["nonce"]))

    def state(self) -> bytes:
        """Return the state that this site works with, sealed for all sites, if it is wanted."""
        return seal_state(self.working, self.secret, self.job) if self.wanted else b""

    def to_memory(self, cargo: Cargo, turn: Turn) -> Memory:
        """Return the newest state in the clear."""
        if not cargo:
            return {}
        self.receive({}, cargo, turn)
        memory = {f"{ENTRY}/{name}": entry for name, entry in self.working.entries.items()}
        for slot, moments in self.working.moments.items():
            memory |= {f"{MOMENT}/{slot}/{name}": value for name, value in moments.items()}
        return memory | {"after": _tensor(self.working.after.encode())}

    def from_memory(self, memory: Memory) -> bytes:
        """Return the sealed state of what `to_memory` returned."""
        entries: dict[str, Tensor] = {}
        moments: dict[str, dict[str, Tensor]] = {}
        for label, value in memory.items():
            kind, _, name = label.partition("/")
            if kind == ENTRY:
                entries[name] = value
            elif kind == MOMENT:
                slot, _, moment = name.partition("/")
                moments.setdefault(slot, {})[moment] = value
        after = bytes(memory["after"].cpu().numpy()).decode()
        return seal_state(State(entries, moments, after), self.secret, self.job)

    def answer(self, question: bytes) -> bytes:
        """Answer as without blindness; no sum is opened for anybody."""
        try:
            if unpack(question, "the server's question")[0].get("kind") == "open":
                raise BadReply("this study's server is blind: no sum is opened for it.")
        except UnseenError as error:
            return refusal(error)
        return super().answer(question)
