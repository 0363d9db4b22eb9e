"""Ed25519 signatures under documents and files: `cryptography` makes and checks them.

A signed document is JSON with its `signature` over everything else that it says.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
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

#: What ends the name of a file's signature, and the signature of a folder, which lies in it.
SUFFIX, OF_FOLDER = ".sig", "signature.json"
#: Of a folder: what it says that was signed.
KIND = "files"
Document = Mapping[str, Any]


def new_key(private: Path) -> str:
    """Write a new private key, for this account alone, and return its public half.

    Args:
        private: The file, which must not be there yet.

    Returns:
        Hexadecimal digits.
    """
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
    """Return a document with its signature.

    Args:
        content: What is signed.
        key: File of the private key.
    """
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
    """Refuse a document that was not signed by a key.

    Args:
        document: The document.
        public: The key's public half in hexadecimal digits.
        what: What the document is, for the error.
    """
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


def public_key(word: str) -> str:
    """Return a public key: hexadecimal digits, or those in a file.

    Args:
        word: 64 digits; a file of them; or a person's certificate, whose key it takes.
    """
    path, digits = Path(word), word
    if path.is_file():
        text = path.read_text("utf-8", errors="replace").strip()
        digits = str(read(path).get("key", "")) if text.startswith("{") else text
    if len(digits) != 64 or set(digits.lower()) - set("0123456789abcdef"):
        raise UnseenError(
            f"{word} is not a public key: expected 64 hexadecimal digits, or a file of them.",
            remedy="`unseen sign --new-key FILE` writes FILE and FILE.pub.",
        )
    return digits.lower()


def sign_files(path: Path, key: Path, left_out: Iterable[str] = ()) -> Path:
    """Sign a file, or all files of a folder, and return where the signature is.

    Args:
        path: The file or the folder.
        key: File of the private key.
        left_out: Top names of the folder that are left out.
    """
    if not path.exists():
        raise UnseenError(f"{path} is neither a file nor a folder.")
    out = signature_of(path)
    document = signed({"kind": KIND, "files": digests(path, left_out)}, key)
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return out


def check_files(path: Path, public: str) -> list[str]:
    """Refuse files that a key has not signed as they are.

    Args:
        path: The file or the folder.
        public: The key's public half in hexadecimal digits.

    Returns:
        The names of the signed files.

    Raises:
        UnseenError: There is no signature, it is another key's, or a signed file was changed.
    """
    where = signature_of(path)
    if not where.is_file():
        raise UnseenError(f"{path} is not signed: there is no {where.name} with it.")
    document = read(where)
    check(document, public, f"{path}")
    files = document.get("files")
    if document.get("kind") != KIND or not isinstance(files, Mapping) or not files:
        raise UnseenError(f"{where} is the signature of something else.")
    base = path if path.is_dir() else path.parent
    wrong = sorted(name for name in files if _digest(base / name) != files[name])
    if path.is_file() and path.name not in files:
        wrong = [path.name]
    if wrong:
        what = f"{', '.join(wrong)} of {path} differ from what was signed."
        raise UnseenError(what, remedy="Copy them again, with the signature.")
    return sorted(files)


def signature_of(path: Path) -> Path:
    """Return where the signature of a file or a folder lies."""
    return path / OF_FOLDER if path.is_dir() else path.with_name(path.name + SUFFIX)


def digests(path: Path, left_out: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> SHA-256 of a file, or of each file of a folder; links are not followed."""
    if path.is_file():
        return {path.name: _digest(path)}
    apart = {OF_FOLDER, *left_out}
    names = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and not file.is_symlink() and name.parts[0] not in apart:
            names[name.as_posix()] = _digest(file)
    return names


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "absent"
