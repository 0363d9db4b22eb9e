"""Messages between the sides of a channel: a JSON header, parts, a digest; nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.errors import BadReply, UnseenError

MAGIC = b"unseen-1"
#: What a message carries behind its header, uncopied.
Parts = tuple[memoryview, ...]
#: The types that a row may have.
TYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.float64, torch.float16)}


def pack(header: Mapping[str, Any], parts: Sequence[bytes | memoryview] = ()) -> bytes:
    """One message: a JSON header, any number of parts, and a digest over all of it.

    The digest finds accidents. That nobody else wrote the message is for the transport (TLS with
    known keys) to see to.
    """
    head = json.dumps({**header, "lengths": [len(part) for part in parts]}).encode()
    body = b"".join([MAGIC, struct.pack("<I", len(head)), head, *parts])
    return body + hashlib.sha256(body).digest()


def unpack(message: bytes, what: str) -> tuple[dict[str, Any], Parts]:
    """Return the header and the parts of a message; `what` names it, and its sender, in errors."""
    view = memoryview(message)
    if bytes(view[:8]) != MAGIC or len(view) < 44:
        raise BadReply(f"{what} is not a message of this protocol; found {len(view)} bytes.")
    body, digest = view[:-32], view[-32:]
    (length,) = struct.unpack("<I", view[8:12])
    try:
        header = json.loads(bytes(body[12 : 12 + length]))
        lengths = [int(n) for n in header["lengths"]]
        whole = 12 + length + sum(lengths) == len(body)
    except (ValueError, KeyError, TypeError):
        header, lengths, whole = {}, [], False
    if not whole or hashlib.sha256(body).digest() != bytes(digest):
        raise BadReply(
            f"{what} was changed or cut short on its way: its digest does not fit. Send it again."
        )
    ends = np.cumsum([12 + length, *lengths]).tolist()
    return header, tuple(body[a:b] for a, b in pairwise(ends))


def expect(header: Mapping[str, Any], what: str, **expected: object) -> None:
    """Refuse a message whose header says something else than what was expected."""
    for name, value in expected.items():
        if header.get(name) != value:
            raise BadReply(
                f"{what} is of another {name}: expected {value!r}, found {header.get(name)!r}. A "
                "message of another round, exchange or key is refused."
            )


def type_of(header: Mapping[str, Any], what: str) -> torch.dtype:
    """Return the type of a row's numbers."""
    if header.get("dtype") not in TYPES:
        raise BadReply(f"{what} must be of type {', '.join(TYPES)}; found {header.get('dtype')!r}.")
    return TYPES[header["dtype"]]


def refusal(error: Exception) -> bytes:
    """Return a site's refusal, with the reason."""
    return pack({"kind": "refused", "why": str(error)})


def accepted(
    answers: Mapping[str, bytes], kind: str, label: Mapping[str, Any]
) -> dict[str, tuple[dict[str, Any], Parts]]:
    """The answers, each of the right kind and exchange; a refusal stops the round by name."""
    contents = {}
    for name, answer in answers.items():
        header, parts = unpack(answer, f"the answer of {name!r}")
        if header.get("kind") == "refused":
            raise BadReply(f"site {name!r} refused: {header.get('why')}")
        expect(header, f"the answer of {name!r}", kind=kind, **label)
        contents[name] = header, parts
    return contents


def nonce() -> str:
    """Return a number that is used once."""
    return secrets.token_hex(8)


def encode(value: Any) -> Any:
    """Nested tables of tensors, numbers and texts as JSON can hold them; the tensors whole."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        content = b64encode(array.tobytes()).decode()
        return {"tensor": [str(array.dtype), list(array.shape), content]}
    if isinstance(value, Mapping):
        return {"table": [[key, encode(inner)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [encode(inner) for inner in value], "of": type(value).__name__}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnseenError(f"a rule's state holds a {type(value).__name__}, which cannot be sent.")


def decode(value: Any) -> Any:
    """Return what `encode` was given."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        kind, shape, content = value["tensor"]
        if np.dtype(kind).hasobject:
            raise BadReply("a tensor of objects is refused.")
        array = np.frombuffer(b64decode(content), np.dtype(kind)).reshape(shape)
        return torch.from_numpy(array.copy())
    if "table" in value:
        return {key: decode(inner) for key, inner in value["table"]}
    if "list" in value:
        inner = [decode(item) for item in value["list"]]
        return tuple(inner) if value["of"] == "tuple" else inner
    return float(value["number"])


def digest(state: object) -> str:
    """Sixteen digits of a rule's state."""
    return hashlib.sha256(json.dumps(encode(state)).encode()).hexdigest()[:16]


def randomness(generator: torch.Generator | None) -> str | None:
    """Return a generator's state as text."""
    return None if generator is None else b64encode(bytes(generator.get_state().tolist())).decode()


def generator_of(text: str | None) -> torch.Generator | None:
    """Return the generator of a state."""
    if text is None:
        return None
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8))
    return generator
