"""A blind server over messages: the model travels sealed, and the server only carries it.

`unseen.privacy.blind` hands every sum to every site at once; real sites are not always there. Here
a message brings, in the place of the model, the last state that a site sealed and the encrypted
sums that came after it. A site opens the one, applies the others, works with what it has then, and
seals that beside its reply. So the server needs the newest of both, and a site that comes late,
missed rounds or lost its disk needs its key alone.

A state's bits are exact. It is sealed with ChaCha20-Poly1305 (RFC 8439), each under a key of its
own that HKDF-SHA-256 (RFC 5869) makes of the key that all sites share and a random salt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core.client import Memories
from unseen.core.exchange import Method, Turn
from unseen.core.types import Inbox
from unseen.errors import BadReply, UnseenError
from unseen.privacy import ckks
from unseen.privacy.blind import Moments, blindly, hidden, stand_in, stepped
from unseen.privacy.kinds import CKKS, Ask, Sealed
from unseen.privacy.wire import expect, pack, refusal, type_of, unpack

#: What a message carries in the place of the model: a sealed state, and sums by slot.
STATE, SUM = "state", "sum/"
#: Under what the server keeps its cargo from one start to the next.
SERVER = "server"
SALT = 32


@dataclass(frozen=True)
class State:
    """All that is sent out, as it is in the clear. after: the exchange whose sums are in it, by its
    nonce; moments: what the server's steps remember."""

    entries: Mapping[str, Tensor] = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    after: str = ""


def sealed(state: State, secret: bytes, job: str) -> bytes:
    """A state that only who has the secret can read or make. job: for what run it is."""
    named = [("entry", "", name, entry) for name, entry in state.entries.items()]
    for slot, moments in state.moments.items():
        named += [("moment", slot, name, moment) for name, moment in moments.items()]
    arrays = [entry.detach().cpu().contiguous().numpy() for *_, entry in named]
    heads = [
        [kind, slot, name, str(array.dtype), list(array.shape)]
        for (kind, slot, name, _), array in zip(named, arrays, strict=True)
    ]
    plain = pack({"arrays": heads}, [array.tobytes() for array in arrays])
    salt, bound = os.urandom(SALT), _bound(job, state.after)
    content = _cipher(secret, salt).encrypt(bytes(12), plain, bound)
    return pack({"kind": "state", "job": job, "after": state.after}, [salt, content])


def opened(content: bytes, secret: bytes, job: str) -> State:
    """The state; refused if it was changed, or is of another run or key."""
    from cryptography.exceptions import InvalidTag

    what = "the sealed state"
    header, parts = unpack(content, what)
    expect(header, what, kind="state", job=job)
    salt, hidden_part = parts
    try:
        bound = _bound(job, header["after"])
        plain = _cipher(secret, bytes(salt)).decrypt(bytes(12), hidden_part, bound)
    except InvalidTag:
        raise BadReply(
            f"{what} was changed, or is under another key than this site's. Compare the kits."
        ) from None
    said, arrays = unpack(plain, what)
    entries: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for (kind, slot, name, dtype, shape), array in zip(said["arrays"], arrays, strict=True):
        numbers = np.frombuffer(array, np.dtype(dtype)).reshape(shape)
        where = entries if kind == "entry" else moments.setdefault(slot, {})
        where[name] = torch.from_numpy(numbers.copy()).clone()  # aligned as torch aligns
    return State(entries, moments, header["after"])


def _bound(job: str, after: str) -> bytes:
    return json.dumps([job, after]).encode()


def _cipher(secret: bytes, salt: bytes) -> Any:
    """A cipher for one message: the salt makes the key, so that the nonce may be 0."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise UnseenError(
            "a blind server needs the package cryptography: install it with "
            "pip install 'unseen[he]'."
        ) from error
    made = HKDF(hashes.SHA256(), 32, salt=salt, info=b"unseen blind state 1").derive(secret)
    return ChaCha20Poly1305(made)


class Server(ckks.Server):
    """The server's side: it carries the newest sealed state and the sums that came after it."""

    def __init__(self, method: Method, public: bytes, kind: CKKS) -> None:
        super().__init__(method, public, kind)
        self.state, self.sums = b"", dict[str, bytes]()
        #: Whose sums the state holds, and whose it will hold once the others are applied.
        self.base = self.after = ""

    def method(self, method: Method) -> Method:
        """The method with every step of the server's on stand-ins."""
        return blindly(method)

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
        """Whether the next who answers is to send the state."""
        return bool(self.sums) or not self.state

    def cargo(self) -> dict[str, bytes]:
        """What goes out with every message."""
        state = {STATE: self.state} if self.state else {}
        return state | {SUM + slot: content for slot, content in self.sums.items()}

    def take(self, name: str, content: bytes) -> None:
        """A site's sealed state, the first of an exchange, in the place of what was kept."""
        what = f"the state that {name!r} sealed"
        header, _ = unpack(content, what)
        expect(header, what, kind="state", after=self.after)
        if self.stale:
            self.state, self.sums, self.base = content, {}, self.after

    def save(self) -> Memories:
        """The cargo for a checkpoint: nothing of it can be read without the sites' key."""
        label = {"base": self.base, "after": self.after}
        content = {"label": _tensor(json.dumps(label).encode())}
        content |= {name: _tensor(part) for name, part in self.cargo().items()}
        return Memories({SERVER: [((0, 0), content)]})

    def load(self, memories: Memories | None) -> None:
        """Go on from what `save` returned."""
        if memories is None or SERVER not in memories.kept:
            return
        content = {n: bytes(t.cpu().numpy()) for n, t in memories.kept[SERVER][-1][1].items()}
        label = json.loads(content.pop("label"))
        self.base, self.after = label["base"], label["after"]
        self.state = content.pop(STATE, b"")
        self.sums = {name.removeprefix(SUM): part for name, part in content.items()}


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class Site(ckks.Site):
    """A site's side. secret: the file of the key that all sites share; job: which run this is."""

    def __init__(self, method: Method, name: str, secret: bytes, kind: CKKS, job: str) -> None:
        super().__init__(method, name, secret, kind)
        self.secret, self.job = secret, job
        self.told = State()
        #: Whether the server has need of the state as this site has it now.
        self.wanted = False

    def receive(self, inbox: Inbox, turn: Turn, hello: str) -> Inbox:
        """Never called: what comes to this site is `unload`ed."""
        raise TypeError("the model of a carried message is sealed: unload it.")

    def unload(self, inbox: Inbox, cargo: Mapping[str, bytes], turn: Turn) -> Inbox:
        """The inbox with the carried state's entries, once the sums are applied to them.

        inbox: the entries that no sum has entered yet.
        """
        state = State(inbox)
        if content := cargo.get(STATE):
            found = opened(content, self.secret, self.job)
            state = State({**inbox, **found.entries}, found.moments, found.after)
        sums = {n.removeprefix(SUM): c for n, c in cargo.items() if n.startswith(SUM)}
        self.wanted = bool(sums) or STATE not in cargo
        self.told = self._applied(state, sums, turn) if sums else state
        return self.told.entries

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
        entries, moments = stepped(exchange, vectors, state.entries, state.moments)
        return State(entries, moments, str(label["nonce"]))

    def state(self) -> bytes:
        """The state that this site received, sealed for all sites."""
        return sealed(self.told, self.secret, self.job)

    def answer(self, question: bytes) -> bytes:
        """As without blindness; no sum is opened for anybody."""
        try:
            if unpack(question, "the server's question")[0].get("kind") == "open":
                raise BadReply("this study's server is blind: no sum is opened for it.")
        except UnseenError as error:
            return refusal(error)
        return super().answer(question)


def without_stand_ins(inbox: Inbox) -> dict[str, Tensor]:
    """The entries that travel in the clear: those that no sum has entered."""
    return {name: entry for name, entry in inbox.items() if not hidden(entry)}
