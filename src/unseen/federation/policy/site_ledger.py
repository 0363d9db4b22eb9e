"""What left a site, when, for which study and in which form: lines in a chain of hashes.

Each line has the SHA-256 of the line before it and its own, over everything else that it says. So
a line that was changed, moved or taken out breaks the chain from there on. A line is on the disk
before what it speaks of leaves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.row_codes import width
from unseen.engine.messages import ORDER, ROW, SCALAR, Parcel, Value
from unseen.errors import UnseenError
from unseen.federation.kits.closed import closed
from unseen.federation.policy.approvals import now
from unseen.privacy.ledger import NUMBER, SCALARS

FILE, LOCK = "ledger.jsonl", "ledger.lock"
#: What the first line follows.
BEGINNING = "0" * 64
Line = Mapping[str, Any]


@dataclass(frozen=True)
class SiteLedger:
    """The ledger of a site.

    Attributes:
        folder: The site's account.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def lines(self) -> list[Line]:
        """Return all lines.

        Raises:
            UnseenError: A line is not one of a ledger.
        """
        if not self._exists():
            return []
        lines = []
        for number, text in enumerate(self.path.read_text("utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                str(line["hash"])
            except (ValueError, KeyError, TypeError):
                raise UnseenError(f"line {number} of {self.path} cannot be read.") from None
            lines.append(line)
        return lines

    def append(self, **content: Any) -> Line:
        """Write a line to the disk, and return it with its number and hash."""
        last = self._last()
        head = {"n": last["n"] + 1 if last else 1, "time": now()}
        line = {**head, **content, "previous": last["hash"] if last else BEGINNING}
        line["hash"] = hash_of(line)
        new = not self._exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _write(descriptor, json.dumps(line, sort_keys=True).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            _sync(self.folder)
        return line

    def _exists(self) -> bool:
        if self.path.exists() and not self.path.is_file():
            raise UnseenError(f"{self.path} is not a file.", remedy="Put the ledger back there.")
        return self.path.exists()

    def _last(self) -> Line | None:
        """The last line; what a crash left behind it was never followed by an answer."""
        if not self._exists():
            return None
        with self.path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            tail = file.read()
            if not tail.endswith(b"\n"):
                whole = tail.rpartition(b"\n")[0] + b"\n" if b"\n" in tail else b""
                file.truncate(size - len(tail) + len(whole))
                tail = whole
        lines = tail.splitlines()
        return dict(json.loads(lines[-1])) if lines else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the ledger: one message of a site after another is answered and accounted for."""
        with closed():
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("ab")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def hash_of(line: Line) -> str:
    """Return the hash of a line, over everything but itself."""
    content = {name: value for name, value in line.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def entry_of(line: Line) -> str:
    """Return what an answer says of its line: number and hash."""
    return f"{line['n']}:{line['hash']}"


def check_chain(lines: Sequence[Line]) -> list[str]:
    """Return what is wrong with a chain: nothing, or the first place at which it breaks."""
    previous = BEGINNING
    for number, line in enumerate(lines, 1):
        if line.get("n") != number:
            return [f"line {number} says that it is line {line.get('n')}: lines are missing."]
        if line.get("previous") != previous:
            return [f"line {number} does not follow the line before it."]
        if hash_of(line) != line["hash"]:
            return [f"line {number} was changed after it was written."]
        previous = line["hash"]
    return []


def digest_of_parcel(parcel: Parcel) -> str:
    """Return the SHA-256 of a message's values, by name."""
    digest = hashlib.sha256()
    for name in sorted(parcel):
        value = parcel[name]
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            content = f"{plain.dtype}{list(plain.shape)}".encode() + plain.numpy().tobytes()
        elif isinstance(value, bytes):
            content = value
        else:
            content = json.dumps(value).encode()
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def sizes(value: Value) -> int:
    """Return the bytes of one value, without its name."""
    if isinstance(value, Tensor):
        return width(value)
    if isinstance(value, str | bytes):
        return len(value.encode() if isinstance(value, str) else value)
    return NUMBER * (len(value) if isinstance(value, list) else 1)


def items_of(parcel: Parcel, apart: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return what an answer is made of, in the words of the server's ledger; nothing is left out.

    Args:
        parcel: The answer.
        apart: Name -> its slot and form, where that is not a plain row or scalar.
    """
    items: list[dict[str, Any]] = []
    numbers = 0
    for name, value in parcel.items():
        if name.startswith(SCALAR):
            numbers += len(value) if isinstance(value, list) else 1
        elif name in apart or name != ORDER:
            slot, form = apart.get(name, (name.removeprefix(ROW), "plain"))
            if size := sizes(value):
                items.append({"slot": slot, "form": form, "bytes": size})
    if numbers:
        items.append({"slot": SCALARS, "form": "plain", "bytes": NUMBER * numbers})
    return items


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
