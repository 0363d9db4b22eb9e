"""A server that never holds the model: it carries what it cannot read from site to site.

After round 0 a message brings, in place of the model, the last state that a site sealed and the
encrypted sums that came after it. A site opens the one, takes the server's step with the others,
works with the result, and seals it along with its reply. So the server needs the newest of
both, and a site that comes late, missed rounds or lost its disk needs its key alone. On the server
stand-ins of NaN take the place of all entries that rows have entered, so that anything that tried
to use them would stop.

A state's bits are exact. It is sealed under the key that all sites share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core import Inbox, Memories, Memory, Method, Table, Turn
from unseen.core.entering import apply_sums, sum_by_place
from unseen.errors import BadReply, UnseenError
from unseen.privacy import ckks, wire
from unseen.privacy.kinds import STATE, Ask, Cargo, Sealed

#: What the cargo calls a slot's encrypted sum.
SUM = "sum/"
#: What a state is sealed for.
INFO = b"unseen blind state 1"
#: Under what the server keeps its cargo from one start to the next.
SERVER = "server"
#: What a tensor of a state is.
ENTRY, MOMENT = "entry", "moment"
#: "exchange:slot" -> what its step remembers.
Moments = Mapping[str, Mapping[str, Tensor]]


def keep_stand_in(
    old: Tensor, new: Tensor, state: Mapping[str, Any], table: Table
) -> tuple[Tensor, Mapping[str, Any]]:
    """Return a stand-in of the entry's size: on the server there is nothing to apply."""
    return stand_in(old.numel(), new.dtype), state


def where(round: int, exchange: str) -> str:
    """Return which exchange of which round it is, in one word."""
    return f"{round}/{exchange}"


def stand_in(size: int, dtype: torch.dtype) -> Tensor:
    """Return NaN [P] that takes no memory."""
    return torch.full((1,), torch.nan, dtype=dtype).expand(size)


def clear_entries(inbox: Inbox) -> dict[str, Tensor]:
    """Return the entries that travel in the clear: those that are not stand-ins."""
    return {name: entry for name, entry in inbox.items() if not bool(entry.isnan().any())}


@dataclass(frozen=True)
class State:
    """All that a server sends out, as it is in the clear.

    Attributes:
        entries: The inbox.
        moments: What the server's steps remember.
        after: The exchange whose sums are in it, as `where` says it.
    """

    entries: Mapping[str, Tensor] = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    after: str = ""

    def packed(self) -> bytes:
        tensors = {(ENTRY, "", name): entry for name, entry in self.entries.items()}
        for slot, moments in self.moments.items():
            tensors |= {(MOMENT, slot, name): moment for name, moment in moments.items()}
        arrays = {key: x.detach().cpu().contiguous().numpy() for key, x in tensors.items()}
        heads = [[*key, str(array.dtype), list(array.shape)] for key, array in arrays.items()]
        return wire.pack({"arrays": heads}, [array.tobytes() for array in arrays.values()])

    @classmethod
    def unpacked(cls, content: bytes, after: str) -> State:
        header, arrays = wire.unpack(content, "the sealed state")
        entries: dict[str, Tensor] = {}
        moments: dict[str, dict[str, Tensor]] = {}
        for (kind, slot, name, dtype, shape), array in zip(header["arrays"], arrays, strict=True):
            numbers = np.frombuffer(array, np.dtype(dtype)).reshape(shape)
            where = entries if kind == ENTRY else moments.setdefault(slot, {})
            where[name] = torch.from_numpy(numbers.copy()).clone()  # aligned as torch aligns
        return cls(entries, moments, after)


def seal_state(state: State, secret: bytes, job: str) -> bytes:
    """Encrypt and authenticate a state with the sites' shared secret."""
    content = wire.sealed(secret, INFO, state.packed(), _bound(job, state.after))
    parts = [content[: wire.SALT], content[wire.SALT :]]
    return wire.pack({"kind": "state", "job": job, "after": state.after}, parts)


def open_state(content: bytes, secret: bytes, job: str) -> State:
    """Return a state that was sealed."""
    what = "the sealed state"
    header, (salt, ciphertext) = wire.unpack(content, what)
    wire.expect(header, what, kind="state", job=job)
    fault = BadReply(
        f"{what} was changed, or is under another key than this site's.",
        remedy="Compare the kits.",
    )
    bound = _bound(job, header["after"])
    plain = wire.unsealed(secret, INFO, bytes(salt) + bytes(ciphertext), bound, fault)
    return State.unpacked(plain, header["after"])


def _bound(job: str, after: str) -> bytes:
    return json.dumps([job, after]).encode()


class Server(ckks.Server):
    """The server's side: it carries the newest sealed state and the sums that came after it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(files)
        self.sealed_state, self.sums = b"", dict[str, bytes]()
        #: Whose sums the state holds, and whose it will hold once the others are applied.
        self.base = self.after = ""

    def method(self, method: Method) -> Method:
        exchanges = []
        for exchange in method.exchanges:
            slots = {n: replace(slot, apply=keep_stand_in) for n, slot in exchange.slots.items()}
            exchanges.append(replace(exchange, slots=slots))
        return replace(method, exchanges=tuple(exchanges))

    def deliver(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """Keep an encrypted sum for the next messages; a stand-in takes its place."""
        if (here := where(header["round"], header["exchange"])) != self.after:
            if self.stale:
                raise UnseenError("no site sent the state that these sums belong to.")
            self.base, self.after = self.after, here
        self.sums[header["slot"]] = wire.pack({"kind": "apply", "base": self.base, **header}, parts)
        return stand_in(header["size"], rows[0].dtype)

    @property
    def stale(self) -> bool:
        return bool(self.sums) or not self.sealed_state

    def clear(self, inbox: Inbox) -> Inbox:
        """Return the entries that travel in the clear; refuse stand-ins of a changed checkpoint."""
        entries = clear_entries(inbox)
        missing = sorted(inbox.keys() - entries.keys())
        if missing and not self.cargo():
            what = f"the sealed state with {', '.join(missing)} is not in this checkpoint"
            remedy = "Remove the job's folder to run it from the beginning."
            raise UnseenError(f"{what}, and the server has no model.", remedy=remedy)
        return entries

    def cargo(self) -> Cargo:
        state = {STATE: self.sealed_state} if self.sealed_state else {}
        return state | {SUM + slot: content for slot, content in self.sums.items()}

    def take(self, name: str, content: bytes) -> None:
        """Keep a site's sealed state, the first of an exchange, in place of the last one."""
        what = f"the state that {name!r} sealed"
        header, _ = wire.unpack(content, what)
        wire.expect(header, what, kind="state", after=self.after)
        if self.stale:
            self.sealed_state, self.sums, self.base = content, {}, self.after

    def restore(self, content: bytes) -> None:
        self.sealed_state = content
        self.base = self.after = wire.unpack(content, "the sealed state")[0]["after"]

    def save(self) -> Memories:
        """Return the cargo for a checkpoint: nothing of it can be read without the sites' key."""
        label = json.dumps({"base": self.base, "after": self.after}).encode()
        content = {"label": label, **self.cargo()}
        memory = {name: wire.to_tensor(part) for name, part in content.items()}
        return Memories({SERVER: [((0, 0), memory)]})

    def load(self, memories: Memories) -> None:
        if SERVER not in memories.by_client:
            return
        saved = memories.by_client[SERVER][-1][1]
        content = {name: wire.from_tensor(part) for name, part in saved.items()}
        label = json.loads(content.pop("label"))
        self.base, self.after = label["base"], label["after"]
        self.sealed_state = content.pop(STATE, b"")
        self.sums = {name.removeprefix(SUM): part for name, part in content.items()}


class Site(ckks.Site):
    """A site's side: it has the model from the cargo, and takes the server's step for itself."""

    blind = remembers = True

    working, reports = State(), False

    def __init__(
        self, method: Method, name: str, files: Mapping[str, bytes], job: str = ""
    ) -> None:
        super().__init__(method, name, files)
        self.job = job

    def receive(self, inbox: Inbox, cargo: Cargo, turn: Turn) -> Inbox:
        """Return the inbox with the carried state's entries, once the sums are applied to them."""
        state = State(inbox)
        if content := cargo.get(STATE):
            state = open_state(content, self.secret, self.job)
            others = {} if self.expected else inbox
            state = replace(state, entries={**others, **state.entries})
        sums = {n.removeprefix(SUM): c for n, c in cargo.items() if n.startswith(SUM)}
        self.reports = bool(sums) or not content
        if self.expected == "" and (content or sums):
            raise BadReply("a state came before anything was trained.")
        if self.expected and not content:
            raise BadReply("the model came without the sealed state, in the clear.")
        self.working = self._applied(state, sums, turn) if sums else state
        if self.expected and self.working.after != self.expected:
            after = self.working.after or "nothing"
            raise BadReply(f"the state is that after {after}; {self.expected} comes before this.")
        return self.working.entries

    def _applied(self, state: State, sums: Mapping[str, bytes], turn: Turn) -> State:
        """Take the server's step with the sums that came after a state."""
        what = "the server's sums"
        messages = {slot: wire.unpack(content, what) for slot, content in sums.items()}
        first = next(iter(messages.values()))[0]
        label = {key: first.get(key) for key in ("round", "exchange")}
        exchange = self.exchanges.get(str(label["exchange"]))
        if exchange is None or exchange.row_slots.keys() != sums.keys():
            raise BadReply(f"{what} are not those of an exchange of this method.")
        if label["round"] not in range(turn.round + 1):
            raise BadReply(f"{what} are of round {label['round']}, and this is {turn.round}.")
        vectors = {}
        for slot, (header, parts) in messages.items():
            after = {"kind": "apply", "slot": slot, "base": state.after}
            wire.expect(header, what, **after, **label, **self.mark)
            vector = torch.from_numpy(self.combined(header, parts))
            vectors[slot] = vector.to(wire.type_of(header, what))
        if missing := {s.to or n for n, s in exchange.slots.items()} - state.entries.keys():
            raise BadReply(f"{what} came without the state that they belong to: {missing}.")
        entries = {name: entry.cpu() for name, entry in state.entries.items()}
        before = {n: state.moments.get(exchange.memory(n), {}) for n in exchange.slots}
        played = torch.tensor([first["round"]], dtype=torch.float64)
        table = {"progress": played / turn.rounds, "rounds": played * 0 + turn.rounds}
        placed = sum_by_place(exchange, vectors)
        entries, moments = apply_sums(exchange, entries, placed, before, table)
        newer = {exchange.memory(slot): memory for slot, memory in moments.items() if memory}
        return State(entries, {**state.moments, **newer}, where(first["round"], first["exchange"]))

    def state(self) -> bytes:
        return seal_state(self.working, self.secret, self.job) if self.reports else b""

    def to_memory(self, cargo: Cargo, turn: Turn) -> Memory:
        if not cargo:
            return {}
        self.receive({}, cargo, turn)
        content = {STATE: self.working.packed(), "after": self.working.after.encode()}
        return {name: wire.to_tensor(part) for name, part in content.items()}

    def from_memory(self, memory: Memory) -> bytes:
        after = wire.from_tensor(memory["after"]).decode()
        state = State.unpacked(wire.from_tensor(memory[STATE]), after)
        return seal_state(state, self.secret, self.job)

    def respond(self, header: dict[str, Any], parts: wire.Parts) -> bytes:
        """Refuse: no sum is opened for anybody, and of products no site can check the server's."""
        raise BadReply("this study's server is blind: nothing is decrypted for it.")
