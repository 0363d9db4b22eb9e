"""Messages between the sides of a channel: a JSON header, parts, a digest; nothing is pickled."""

import hashlib
import json
import math
import os
import secrets
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.errors import BadReply, UnseenError, optional
from unseen.visible import visible

MAGIC = b"unseen-1"
#: Bytes of the salt before a sealed content.
SALT = 32
#: What a message carries behind its header, uncopied.
Parts = tuple[memoryview, ...]


def name_of(dtype: torch.dtype) -> str:
    """Return what a header calls a type, such as `float32`."""
    return str(dtype).removeprefix("torch.")


#: The types that a row may have.
TYPES = {name_of(t): t for t in (torch.float32, torch.float64, torch.float16)}


def pack(header: Mapping[str, Any], parts: Sequence[bytes | memoryview] = ()) -> bytes:
    """Return one message: a JSON header, any number of parts, and a digest over all of it.

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
        lengths = [max(0, int(size)) for size in header["lengths"]]
        ends = list(accumulate(lengths, initial=12 + length))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        header, ends = {}, [-1]
    if ends[-1] != len(body) or hashlib.sha256(body).digest() != bytes(digest):
        fault = f"{what} was changed or cut short on its way: its digest does not fit."
        raise BadReply(fault, remedy="Send it again.")
    return header, tuple(body[a:b] for a, b in pairwise(ends))


def expect(header: Mapping[str, Any], what: str, **expected: object) -> None:
    """Refuse a message of another round, exchange or key: its header must say what is expected."""
    for name, value in expected.items():
        if (actual := header.get(name)) != value:
            raise BadReply(f"{what} is of another {name}: expected {value!r}, found {actual!r}.")


def type_of(header: Mapping[str, Any], what: str) -> torch.dtype:
    """Return the type of a row's numbers."""
    if header.get("dtype") not in TYPES:
        raise BadReply(f"{what} must be of type {', '.join(TYPES)}; found {header.get('dtype')!r}.")
    return TYPES[header["dtype"]]


def opened(
    name: str, answer: bytes, kinds: Sequence[str], label: Mapping[str, Any]
) -> tuple[dict[str, Any], Parts]:
    """Return a site's answer as header and parts."""
    what = f"the answer of {name!r}"
    header, parts = unpack(answer, what)
    if header.get("kind") == "refused":
        raise BadReply(f"site {name!r} refused: {visible(str(header.get('why')))}")
    kind = header.get("kind")
    expect(header, what, kind=kind if kind in kinds else kinds[0], **label)
    return header, parts


def nonce() -> str:
    """Return a number that is used once."""
    return secrets.token_hex(8)


def encode(value: Any) -> Any:
    """Return nested tables of tensors, numbers and texts as JSON can hold them, exactly."""
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
    """Return sixteen digits of a rule's state."""
    return hashlib.sha256(json.dumps(encode(state)).encode()).hexdigest()[:16]


def randomness(generator: torch.Generator | None) -> str | None:
    """Return a generator's state as text."""
    return None if generator is None else b64encode(from_tensor(generator.get_state())).decode()


def generator_of(text: str | None) -> torch.Generator | None:
    """Return the generator of a state."""
    return None if text is None else torch.Generator().set_state(to_tensor(b64decode(text)))


def to_tensor(content: bytes) -> Tensor:
    """Return bytes as a tensor of uint8, as memories and checkpoints hold them."""
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def from_tensor(content: Tensor) -> bytes:
    """Return the bytes of a tensor of uint8."""
    return content.cpu().numpy().tobytes()


def digest_of(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a digest of named tensors: of their names, shapes and every byte."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.numpy().data.cast("B") if value.numel() else b"")
    return digest.digest()


def primitives(module: str) -> Any:
    """Return a module of cryptography's primitives."""
    return optional(f"cryptography.hazmat.primitives.{module}", "this channel needs", "he")


def derived_key(secret: bytes, info: bytes, salt: bytes | None = None) -> bytes:
    """Derive a key of 32 bytes from a secret, for one use that `info` and `salt` name.

    Source:
        HKDF-SHA-256, RFC 5869.
    """
    hash = primitives("hashes").SHA256()
    return bytes(primitives("kdf.hkdf").HKDF(hash, 32, salt=salt, info=info).derive(secret))


def sealed(secret: bytes, info: bytes, content: bytes, bound: bytes) -> bytes:
    """Encrypt and authenticate a content, which belongs to what `bound` says.

    Source:
        ChaCha20-Poly1305, RFC 8439. A random salt makes the key, so that the nonce may be 0.
    """
    salt = os.urandom(SALT)
    return salt + bytes(_cipher(secret, info, salt).encrypt(bytes(12), content, bound))


def unsealed(secret: bytes, info: bytes, content: bytes, bound: bytes, fault: BadReply) -> bytes:
    """Return what was sealed, or raise the fault if it was changed or belongs to something else."""
    from cryptography.exceptions import InvalidTag

    try:
        cipher = _cipher(secret, info, content[:SALT])
        return bytes(cipher.decrypt(bytes(12), content[SALT:], bound))
    except (InvalidTag, ValueError):
        raise fault from None


def _cipher(secret: bytes, info: bytes, salt: bytes) -> Any:
    return primitives("ciphers.aead").ChaCha20Poly1305(derived_key(secret, info, salt))
