"""Ed25519 signatures under documents: `cryptography` makes and checks them.

A signed document is JSON with its `signature` over everything else that it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, absent

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
except ImportError as error:
    raise absent("cryptography", "signatures need", "flower") from error

#: What ends the name of a file's signature.
SUFFIX = ".sig"
Document = Mapping[str, Any]


def new_key(private: Path) -> str:
    """Write a new private key, for this account alone, and return its public half."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    try:
        file = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UnseenError(f"{private} is there already.", remedy="Choose another name.") from None
    with os.fdopen(file, "wb") as stream:
        stream.write(pem)
    return key.public_key().public_bytes(s.Encoding.Raw, s.PublicFormat.Raw).hex()


def signed(content: Document, key: Path) -> dict[str, Any]:
    """Return a document with its signature."""
    if not key.is_file():
        raise UnseenError(f"{key} does not exist.", remedy="Bring it back from where it is kept.")
    try:
        private = s.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):
        raise UnseenError(f"{key} is not a private key.") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise UnseenError(f"{key} is not a key that signs (Ed25519).")
    return {**content, "signature": private.sign(_bytes(content)).hex()}


def check(document: Document, public: str, what: str) -> None:
    """Refuse a document that was not signed by a key."""
    content = {name: value for name, value in document.items() if name != "signature"}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(str(document["signature"])), _bytes(content))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        raise UnseenError(f"{what} does not bear the signature that it must bear.") from None


def _bytes(content: Document) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def read(path: Path) -> dict[str, Any]:
    """Return a document of a file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UnseenError(f"{path} cannot be read: {error}.", remedy="Copy it again.") from None
