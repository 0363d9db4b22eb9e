"""Random numbers that cannot be guessed without a client's secret.

torch's generator on the CPU keeps 32 bits of its seed, so that whoever sees one noised vector can
try all of them: privacy's noise never comes from it. Here every number is read off SHAKE-128 over
256 secret bits and the message that the client answers. The same message has the same answer, and
so costs no privacy twice; any other message has other noise.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core.exchange import Turn
from unseen.core.types import Inbox, Memory

#: The client's own memory: its secret, and, while an exchange lasts, the key of its numbers.
SECRET, KEY = "dp.secret", "dp.key"
#: Numbers that are made at a time, so that their bytes stay in cache.
AT_ONCE = 1 << 16


class Stream:
    """Numbers in float64 that follow from a key alone, each call's after the last one's."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self.key, self.calls = key + purpose.encode(), 0

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform numbers in (0, 1), of 53 bits each."""
        digest = hashlib.shake_128(self.key + b"/" + self.calls.to_bytes(8, "big"))
        self.calls += 1
        whole = np.frombuffer(digest.digest(8 * count), dtype="<u8") >> np.uint64(11)
        return (whole.astype(np.float64) + 0.5) / 2.0**53

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers [count]: Box–Muller, the halved sum of four.

        One draw of a textbook generator can give away, by which floating-point numbers it can
        reach, what it was added to; a sum of four hides that (Holohan and Braghin 2021).
        """
        numbers = np.empty(count)
        for begin in range(0, count, AT_ONCE):
            n = min(AT_ONCE, count - begin)
            u = self.uniform(4 * n).reshape(4, n)
            radius = np.sqrt(-2 * np.log(u[:2]))
            angle = 2 * np.pi * u[2:]
            pairs = radius * np.cos(angle) + radius * np.sin(angle)
            numbers[begin : begin + n] = pairs.sum(0) / 2
        return torch.from_numpy(numbers)


def keyed_memory(memory: Memory, inbox: Inbox, turn: Turn, seed: int | None) -> Memory:
    """The memory with the client's secret, made now if there is none, and this exchange's key.

    Args:
        memory: What the client keeps.
        inbox: What it received.
        turn: The exchange.
        seed: For tests; the secret then follows from it and hides nothing.
    """
    secret = bytes(memory[SECRET].tolist()) if SECRET in memory else b""
    if seed is not None:
        secret = hashlib.sha256(f"{seed}/{turn.client}".encode()).digest()
    elif not secret:
        secret = secrets.token_bytes(32)
    others = {name: value for name, value in memory.items() if name != SECRET}
    label = f"{turn.seed}/{turn.round}/{turn.exchange}/{turn.client}"
    digest = hashlib.sha256(secret + label.encode() + digest_of(inbox) + digest_of(others)).digest()
    return {**others, SECRET: _tensor(secret), KEY: _tensor(digest)}


def stream(memory: Memory, purpose: str) -> Stream:
    """Return the numbers of one purpose in the exchange that the memory was made ready for."""
    return Stream(bytes(memory[KEY].tolist()), purpose)


def _tensor(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


def digest_of(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a digest of named tensors: of their names, shapes and every byte."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.numpy().data.cast("B") if value.numel() else b"")
    return digest.digest()
