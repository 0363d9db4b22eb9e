"""Ed25519 signatures of the authority, of people and of sites.

The authority signs the server's kit and the certificates of people and sites. A coordinator signs
studies, a site signs receipts of models. A signed document is JSON with its `signature` over
everything else that it says. Every kit holds the authority's public key; `kits/ca` alone holds the
private one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, absent
from unseen.sites.kits.certificates import write

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
#: Files of kits: the authority's halves, a person's key and certificate, a site's, what is revoked,
#: and what the authority signed of the server's kit.
AUTHORITY_KEY, AUTHORITY = "authority.key", "authority.pub"
PERSON_KEY, PERSON = "person.key", "person.json"
MEMBER_KEY, MEMBER = "member.key", "member.json"
#: What a site signs, and the name that an answer has it by.
RECEIPT = "receipt"
#: Of the authority's folder: the certificates of the sites, by which their keys can be revoked.
MEMBERS = "sites"
REVOKED, SIGNED = "revoked.json", "kit.json"
#: Files of the server's kit that the authority signs.
COVERED = ("kit.toml", "ca.crt", "server.crt", AUTHORITY, "ckks.public")


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


def write_key(folder: Path, private: str, public: str = "") -> str:
    """Write a new key pair, and return its public half in hexadecimal digits."""
    (folder / private).unlink(missing_ok=True)
    half = new_key(folder / private)
    if public:
        write(folder / public, f"{half}\n".encode())
    return half


def authority_of(kit: Path) -> str:
    """Return the authority's public key in a kit."""
    try:
        return (kit / AUTHORITY).read_text("ascii").strip()
    except (OSError, ValueError):
        remedy = "Copy it from the kits; older kits are made again by provision."
        raise UnseenError(f"{kit / AUTHORITY} does not exist.", remedy=remedy) from None


def write_person(ca: Path, folder: Path, federation: str, name: str, days: int) -> None:
    """Write a new key of a coordinator and the certificate that the authority signs for it."""
    until = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    content = {"kind": "person", "federation": federation, "name": name}
    content |= {"role": "coordinator", "key": write_key(folder, PERSON_KEY), "until": until}
    _certify(ca, folder / PERSON, content)


def write_member(ca: Path, folder: Path, federation: str, name: str) -> None:
    """Write a new key with which a site signs, and the certificate that vouches for it."""
    content = {"kind": "site", "federation": federation, "name": name}
    _certify(ca, folder / MEMBER, content | {"key": write_key(folder, MEMBER_KEY)})
    write(ca / MEMBERS / f"{name}.json", (folder / MEMBER).read_bytes())


def _certify(ca: Path, path: Path, content: Document) -> None:
    document = signed(content, ca / AUTHORITY_KEY)
    write(path, json.dumps(document, indent=1).encode())


def revoke(ca: Path, keys: Sequence[str]) -> bytes:
    """Return the file of revoked keys with more of them, for every kit; the authority signs it."""
    path = ca / REVOKED
    before: dict[str, Any] = read(path) if path.is_file() else {"n": 0, "keys": []}
    every = sorted({*before["keys"], *keys})
    content = {"kind": "revoked", "n": before["n"] + 1, "keys": every}
    return json.dumps(signed(content, ca / AUTHORITY_KEY), indent=1).encode()


def sign_kit(ca: Path, server: Path) -> None:
    """Sign what must not change in the server's kit."""
    files = {n: _digest(server / n) for n in COVERED if (server / n).is_file()}
    document = signed({"kind": "kit", "files": files}, ca / AUTHORITY_KEY)
    write(server / SIGNED, json.dumps(document, indent=1).encode())


def check_kit(kit: Path) -> None:
    """Refuse a server's kit that the authority has not signed as it is."""
    document = read(kit / SIGNED)
    check(document, authority_of(kit), f"{kit / SIGNED}")
    files = {n: _digest(kit / n) for n in COVERED if (kit / n).is_file()}
    signed_files = dict(document.get("files", {}))
    if wrong := sorted(n for n in {*files, *signed_files} if files.get(n) != signed_files.get(n)):
        what = f"{', '.join(wrong)} of {kit} differ from what the federation's authority signed."
        raise UnseenError(what, remedy="Copy them again, kit.json with them.")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sign_study(person: Path, digest: str) -> dict[str, Any]:
    """Return a person's signature under a study, with the certificate that speaks for it."""
    certificate = read(person / PERSON)
    check_person(certificate, authority_of(person), revoked(person))
    content = {"kind": "study", "federation": certificate["federation"], "study": digest}
    content |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "person": certificate}
    return signed(content, person / PERSON_KEY)


def revoked(kit: Path) -> list[str]:
    """Return the keys that the authority has revoked, by the kit's own file."""
    if not (kit / REVOKED).is_file():
        return []
    document = read(kit / REVOKED)
    check(document, authority_of(kit), f"{kit / REVOKED}")
    return list(document["keys"])


def check_person(certificate: Document, authority: str, revoked_keys: Sequence[str]) -> None:
    """Refuse a person who is no coordinator of this federation."""
    name = f"the certificate of {certificate.get('name')!r}"
    check(certificate, authority, name)
    if certificate.get("kind") != "person" or certificate.get("role") != "coordinator":
        raise UnseenError(f"{name} is not of a coordinator.")
    if certificate["key"] in revoked_keys:
        raise UnseenError(f"{name} was revoked by the federation's authority.")
    if datetime.fromisoformat(certificate["until"]) < datetime.now(UTC):
        what = f"{name} expired on {certificate['until'][:10]}."
        raise UnseenError(what, remedy="unseen federation provision --renew NAME makes a new one.")


def check_member(kit: Path, certificate: Document, federation: str, revoked: Sequence[str]) -> str:
    """Refuse a certificate that is not of a site of a federation, and return the site's name."""
    name = str(certificate["name"])
    check(certificate, authority_of(kit), f"the certificate of {name!r}")
    if (certificate["kind"], certificate["federation"]) != ("site", federation):
        raise UnseenError(f"the certificate of {name!r} is not of a site of {federation}.")
    if certificate["key"] in revoked:
        raise UnseenError(f"the certificate of {name!r} was revoked.")
    return name


def check_study(kit: Path, document: Document, digest: str, federation: str) -> str:
    """Return who signed a study, a coordinator of the federation, or refuse it."""
    if not document:
        what = "no coordinator's signature came with the study"
        raise UnseenError(f"{what}.", remedy="unseen federation sign STUDY.toml --kit KIT")
    person = document.get("person")
    if not isinstance(person, Mapping):
        raise UnseenError("the study's signature does not say whose it is.")
    check_person(person, authority_of(kit), revoked(kit))
    check(document, str(person["key"]), "the study")
    subject = document.get("kind"), document.get("federation"), document.get("study")
    if subject != ("study", federation, digest):
        raise UnseenError("the signature is under another study, or of another federation.")
    return str(person["name"])
