"""What left a site, when, for which study and in which form: lines in a chain of hashes.

Each line has the SHA-256 of the line before it and its own, over everything else that it says. So
a line that was changed, moved or taken out breaks the chain from there on. A line is on the disk
before what it speaks of leaves. A line's length has a bound, whatever a question says: a longer
text is cut, and its length and SHA-256 stand in place of the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.row_codes import width
from unseen.engine.messages import ORDER, ROW, SCALAR, Parcel, Value
from unseen.errors import UnseenError
from unseen.privacy.ledger import NUMBER, SCALARS
from unseen.sites.kits.closed import closed
from unseen.sites.kits.signatures import RECEIPT
from unseen.sites.policy.approvals import now

LOG = logging.getLogger("flwr")
FILE, LOCK = "ledger.jsonl", "ledger.lock"
#: What a crash left of lines that no answer followed.
UNFINISHED = "ledger.unfinished"
#: What the first line follows.
BEGINNING = "0" * 64
#: Characters that a line keeps of a text, and bytes that a line may have.
TEXT, LONGEST = 500, 2**16
#: Lines of refusals in one day, after which the next refusals add none.
REFUSALS = 10_000
#: Rules that no data decide: a site that waits for an approval says so again and again.
BEFOREHAND = ("signed", "approval")
#: Parts of a line that follow from the answer, and not from the words of the question.
ANSWERED = ("left", "releases")
#: Of an answer: what says nothing of the data.
APART = (ORDER, RECEIPT)
Line = Mapping[str, Any]


@dataclass(frozen=True)
class SiteLedger:
    """The ledger of a site."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def set_aside(self) -> Path:
        """Where unfinished lines go."""
        return self.folder / UNFINISHED

    def lines(self) -> list[Line]:
        """Return all lines but an unfinished last one, which may just be on its way to the disk."""
        whole, tail = self._parts()
        texts = [*whole.splitlines(), *([tail] if _is_line(tail) else [])]
        lines = []
        for number, text in enumerate(texts, 1):
            try:
                line = json.loads(text)
                str(line["hash"])
            except (ValueError, KeyError, TypeError):
                what = f"line {number} of {self.path} cannot be read."
                raise UnseenError(what, remedy="Put the ledger's backup there.") from None
            lines.append(line)
        return lines

    def unfinished(self) -> bool:
        """Return whether the last line was not written to its end."""
        tail = self._parts()[1]
        return bool(tail) and not _is_line(tail)

    def append(self, **content: Any) -> Line:
        """Write a line to the disk, and return it with its number and hash."""
        self._mend()
        last = self._last()
        head = {"n": last["n"] + 1 if last else 1, "time": now()}
        line = {**head, **_bounded(content), "previous": last["hash"] if last else BEGINNING}
        line["hash"] = hash_of(line)
        text = json.dumps(line, sort_keys=True).encode() + b"\n"
        if len(text) > LONGEST:
            raise UnseenError(f"a line of {len(text)} bytes is longer than {LONGEST}.")
        new = not self._exists()
        _append(self.path, text)
        if new:
            _sync(self.folder)
        return line

    def refuse(self, **content: Any) -> Line | None:
        """Return the line of a refusal: the last one if it says the same, else a new one.

        Returns:
            None where this day has `REFUSALS` of them: no line is written.
        """
        self._mend()
        last, own = self._last(), _bounded(content)
        if last is not None and {name: last.get(name) for name in own} == own:
            return last
        day = now()[:10]
        today = (line for line in self.lines() if str(line.get("time")).startswith(day))
        return self.append(**content) if sum("rule" in x for x in today) < REFUSALS else None

    def _exists(self) -> bool:
        if self.path.exists() and not self.path.is_file():
            raise UnseenError(f"{self.path} is not a file.", remedy="Put the ledger back there.")
        return self.path.exists()

    def _parts(self) -> tuple[bytes, bytes]:
        """The lines that end, and what stands behind them."""
        content = self.path.read_bytes() if self._exists() else b""
        whole, end, tail = content.rpartition(b"\n")
        return whole + end, tail

    def _mend(self) -> None:
        """End a last line that lacks its end alone; set aside one of which more is missing.

        A line is on the disk before its answer leaves, so no answer followed such a one.
        """
        if not self.path.is_file() or not _ends_within_a_line(self.path):
            return
        whole, tail = self._parts()
        if _is_line(tail):
            _append(self.path, b"\n")
            return
        _append(self.set_aside, tail + b"\n")
        os.truncate(self.path, len(whole))
        LOG.warning("the unfinished last line of %s is in %s now", self.path, self.set_aside)

    def _last(self) -> Line | None:
        """The last line, whatever its length."""
        if not self._exists() or not self.path.stat().st_size:
            return None
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            return dict(json.loads(text[text.rfind(b"\n", 0, len(text) - 1) + 1 :]))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the ledger, whose lines are whole then: one message after another is answered."""
        with closed():
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("ab")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._mend()
            yield


def hash_of(line: Line) -> str:
    """Return the hash of a line, over everything but itself."""
    content = {name: value for name, value in line.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _bounded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line says, with everything that a question may have written cut to `TEXT`."""
    return {k: v if k in ANSWERED else _cut(v) for k, v in content.items()}


def _cut(value: Any) -> Any:
    """Return a value of JSON, or the beginning of its text where that is too long."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= TEXT:
        return value
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:TEXT]}… ({len(text)} characters, SHA-256 {digest})"


def _is_line(text: bytes) -> bool:
    """Return whether a text is a line as it was written, by its hash."""
    try:
        line = json.loads(text)
        return bool(line["hash"] == hash_of(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


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

    `apart` has slot and form by name, where that is not a plain row or scalar.
    """
    items: list[dict[str, Any]] = []
    numbers = 0
    for name, value in parcel.items():
        if name.startswith(SCALAR):
            numbers += len(value) if isinstance(value, list) else 1
        elif name in apart or name not in APART:
            slot, form = apart.get(name, (name.removeprefix(ROW), "plain"))
            if size := sizes(value):
                items.append({"slot": slot, "form": form, "bytes": size})
    if numbers:
        items.append({"slot": SCALARS, "form": "plain", "bytes": NUMBER * numbers})
    return items


def _append(path: Path, content: bytes) -> None:
    with open(path, "ab", opener=partial(os.open, mode=0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
