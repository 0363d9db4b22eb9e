"""What both kinds of noise share: random numbers that nobody can guess, and what they refuse.

torch's generator on the CPU keeps 32 bits of its seed, so that whoever sees one noised vector can
try all of them: privacy's noise never comes from it. Here every number is read off SHAKE-128 over
256 secret bits and all that the client's answer depends on, at a real site the whole message. The
same message has the same answer, and so costs no privacy twice; any other message has other noise,
also one that changes only what the server says of the data.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core import Exchange, Inbox, Memory, Turn
from unseen.core.parts import layers
from unseen.errors import Incompatible, UnseenError, number
from unseen.privacy.wire import digest_of, from_tensor, to_tensor
from unseen.ranges import Checked, NotNegative, Range

#: The client's own memory: its secret, and, while an exchange lasts, the key of its numbers.
SECRET, KEY = "dp.secret", "dp.key"
#: Numbers that are made at a time, so that their bytes stay in cache.
AT_ONCE = 1 << 16
#: What a client may report in addition to noised rows: it follows from the study and from the size
#: of its training split, which counts as public.
PUBLIC = frozenset({"examples", "steps", "accumulated"})
#: What the server itself adds to the table.
SERVERS = frozenset({"client", "progress", "rounds", "prior"})


class Stream:
    """Numbers in float64 that follow from a key alone, each call's after the last one's."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self.key, self.calls = key + purpose.encode(), 0

    @classmethod
    def of(cls, memory: Memory, purpose: str) -> Stream:
        """Return the numbers of one purpose in the exchange that `keyed_memory` was made for."""
        return cls(from_tensor(memory[KEY]), purpose)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return uniform numbers in (0, 1), of 53 bits each."""
        digest = hashlib.shake_128(self.key + b"/" + self.calls.to_bytes(8, "big"))
        self.calls += 1
        whole = np.frombuffer(digest.digest(8 * count), dtype="<u8") >> np.uint64(11)
        return (whole.astype(np.float64) + 0.5) / 2.0**53

    def normal(self, count: int) -> Tensor:
        """Return standard normal numbers [count]: Box–Muller, the halved sum of four.

        One draw of a textbook generator can give away, by which floating-point numbers it can
        reach, what it was added to; a sum of four hides that.

        Source:
            Holohan and Braghin 2021.
        """
        numbers = np.empty(count)
        for begin in range(0, count, AT_ONCE):
            n = min(AT_ONCE, count - begin)
            u = self.uniform(4 * n).reshape(4, n)
            radius, angle = np.sqrt(-2 * np.log(u[:2])), 2 * np.pi * u[2:]
            pairs = radius * np.cos(angle) + radius * np.sin(angle)
            numbers[begin : begin + n] = pairs.sum(0) / 2
        return torch.from_numpy(numbers)


def keyed_memory(memory: Memory, inbox: Inbox, turn: Turn, seed: int | None) -> Memory:
    """Return the memory with the client's secret, made now if there is none, and a key.

    `seed` is for tests: the secret then follows from it and hides nothing.
    """
    secret = from_tensor(memory[SECRET]) if SECRET in memory else b""
    if seed is not None:
        secret = hashlib.sha256(f"{seed}/{turn.client}".encode()).digest()
    secret = secret or secrets.token_bytes(32)
    others = {name: value for name, value in memory.items() if name != SECRET}
    label = f"{turn.seed}/{turn.round}/{turn.exchange}/{turn.client}"
    if seed is None:  # with a seed real sites draw as one process does, where nothing is asked
        label += f"/{turn.rounds}/{turn.order}/{'/'.join(turn.roster)}/{turn.question}/"
    digest = hashlib.sha256(secret + label.encode() + digest_of(inbox) + digest_of(others)).digest()
    return {**others, SECRET: to_tensor(secret), KEY: to_tensor(digest)}


def no_key(after: Memory, ready: Memory) -> Memory:
    """Return the memory with the secret, without the key of an exchange that is over."""
    return {**{n: v for n, v in after.items() if n != KEY}, SECRET: ready[SECRET]}


@dataclass(frozen=True)
class Noise(Checked, named="dp"):
    """What both kinds of noise are set by; their own docstrings say it."""

    clip: float
    noise: NotNegative
    delta: Annotated[float, Range(0, 1, open_low=True)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip != math.inf:
            number("dp(clip)", self.clip, 0, open_low=True)
        elif self.noise:
            raise UnseenError("dp(noise) is in units of clip: finite, unless noise is 0.")


def check_scalars(name: str, exchange: Exchange, allowed: frozenset[str]) -> None:
    """Refuse rules that read what a private client does not report."""
    for slot in exchange.slots.values():
        needs = slot.combine.all_needs() if slot.combine is not None else ()
        if lacking := sorted({*needs} - allowed - SERVERS):
            why = f"its weights depend on what clients report un-noised ({', '.join(lacking)})."
            remedy = "Take weights='uniform'." if "examples" in lacking else ""
            raise Incompatible(name, why, remedy=remedy)


def mechanism(local: Any, kind: type[Any]) -> Any:
    """Return the `Guarded` or `NoisedRows` among a local's wrappers, or None."""
    return next((part for part in layers(local) if isinstance(part, kind)), None)
