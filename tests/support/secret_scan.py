"""Whether bytes that must stay secret are in files or in a process's memory.

Note:
    What is looked for is cut into words of 8 bytes. Seven of them one after the other, in any order
    and at any alignment, count as found: every 64 bytes of a vector of float32 hold seven.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.privacy import seal
from unseen.privacy.wire import unpack

Words = NDArray[np.uint64]
RUN = 7
#: How much of a process's memory is looked at in one piece.
PIECE = 1 << 26


def words(*contents: bytes | Tensor, but: Iterable[bytes | Tensor] = ()) -> Words:
    """Return every 8 bytes of what is looked for, sorted; those with four zero bytes say nothing.

    Args:
        contents: What is looked for.
        but: What may be there, whose words are left out.
    """
    distinct = np.unique(np.concatenate([_words(content) for content in contents]))
    full = distinct[(distinct >> np.uint64(32) != 0) & (distinct & np.uint64(0xFFFFFFFF) != 0)]
    allowed = [np.empty(0, np.uint64), *map(_words, but)]
    return np.setdiff1d(full, np.concatenate(allowed))


def _words(content: bytes | Tensor) -> Words:
    if isinstance(content, Tensor):
        content = content.detach().cpu().contiguous().numpy().tobytes()
    return np.frombuffer(content[: len(content) // 8 * 8], np.uint64)


def holds(contents: Iterable[bytes], looked_for: Words, run: int = RUN) -> bool:
    """Return whether some of the words follow each other in one of the contents.

    Args:
        contents: Where they are looked for.
        looked_for: The words, sorted.
        run: How many of them in a row count as found.

    Note:
        Of every `run` words one is looked at; only where it is one of them its neighbours are.
    """
    if not len(looked_for):
        return False
    table, low = np.zeros(1 << 24, bool), np.uint64(0xFFFFFF)
    table[looked_for & low] = True
    for content in contents:
        raw = np.frombuffer(content, np.uint8)
        for shift in range(min(8, len(raw))):
            numbers = raw[shift : shift + (len(raw) - shift) // 8 * 8].view(np.uint64)
            likely = np.flatnonzero(table[numbers[::run] & low]) * run
            at = likely[_among(numbers[likely], looked_for)]
            near = at[:, None] + np.arange(1 - run, run)
            there = (near >= 0) & (near < len(numbers))
            there &= _among(numbers[np.where(there, near, 0)], looked_for)
            if any(bool(there[:, k : k + run].all(1).any()) for k in range(run)):
                return True
    return False


def _among(numbers: Words, looked_for: Words) -> NDArray[np.bool_]:
    nearest = np.searchsorted(looked_for, numbers).clip(max=len(looked_for) - 1)
    same: NDArray[np.bool_] = np.equal(looked_for[nearest], numbers)
    return same


def memory(process: int) -> Iterator[bytes]:
    """Yield all that a process of this machine can write to, piece by piece; Linux, and its owner.

    Note:
        Pages that were never written to are passed over.
    """
    regions = Path(f"/proc/{process}/maps").read_text().splitlines()
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as file:
        for line in regions:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not match or "[vvar" in line:
                continue
            tail = b""
            for begin in range(int(match[1], 16), end := int(match[2], 16), PIECE):
                try:
                    file.seek(begin)
                    content = file.read(min(end - begin, PIECE))
                except OSError:  # it was given back meanwhile
                    break
                whole = np.frombuffer(content[: len(content) // 4096 * 4096], np.uint8)
                pages: Any = whole.reshape(-1, 4096)
                piece = tail + pages[pages.any(1)].tobytes()
                yield piece
                tail = piece[-64:]


def files(folder: Path) -> Iterator[bytes]:
    """Yield the content of every file below a folder."""
    yield from (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def secret_words(content: bytes, public: bytes) -> Words:
    """Return the words of a secret key, on disk and in SEAL.

    Args:
        content: The key's file, of `unseen.privacy.ckks`.
        public: The public key's, which may be anywhere.
    """
    header, parts = unpack(content, "the file of the secret key")
    raw = []
    for levels, part in zip(header["levels"], parts, strict=True):
        scheme = seal.scheme(levels)
        key = scheme.read(scheme.api.SecretKey(), part, "the secret key")
        numbers = key.data().dyn_array()
        count = len(scheme.moduli) * seal.DEGREE
        raw.append(torch.tensor([numbers[i] for i in range(count)], dtype=torch.int64))
    return words(*map(bytes, parts), *raw, but=[public])
