"""The keys of encrypted rows: one that all sites share, and the server's public one."""

from __future__ import annotations

import hashlib
from typing import Any

from unseen.errors import BadReply, UnseenError
from unseen.privacy import seal
from unseen.privacy.wire import (
    expect,
    pack,
    unpack,
)


def make_keys() -> tuple[bytes, bytes]:
    """(secret, public): the one for every site, the other also for the server."""
    secrets, publics = [], []
    for levels in seal.MODULI:
        scheme = seal.scheme(levels)
        generator = scheme.api.KeyGenerator(scheme.context)
        public = scheme.api.PublicKey()
        generator.create_public_key(public)
        secrets.append(scheme.to_bytes(generator.secret_key()))
        publics.append(scheme.to_bytes(public))
    identity = hashlib.sha256(b"".join(publics)).hexdigest()[:16]
    head = {"identity": identity, "levels": list(seal.MODULI)}
    return pack({"kind": "ckks secret", **head}, secrets), pack(
        {"kind": "ckks public", **head}, publics
    )


def check_public(content: bytes) -> str:
    """Return the identity of public bytes; anything that is, or holds, a secret key is refused."""
    try:
        header, parts = unpack(content, "the public context")
    except BadReply:
        header, parts = {"kind": _foreign(content)}, ()
    if header.get("kind") != "ckks public" or b"ckks secret" in content:
        content_kind = "a secret key" if "secret" in str(header.get("kind")) else "something else"
        raise UnseenError(
            "the server's context must be the public one of unseen.privacy.ckks.make_keys; found "
            f"{content_kind}. A server that holds the secret key reads every update.",
            remedy="Take it away from there, make new keys, and give the server the public part.",
        )
    identity = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    expect(header, "the public context", identity=identity)
    return identity


def _foreign(content: bytes) -> str:
    """What a context of TenSEAL's own is."""
    try:
        import tenseal

        return "secret" if tenseal.context_from(content).has_secret_key() else "tenseal"
    except Exception:  # whatever it is, it is none of ours
        return "unknown"


class Keys:
    """A side's keys as SEAL has them. They are never pickled and show nothing."""

    def __init__(self, content: bytes, kind: str) -> None:
        header, parts = unpack(content, f"the file of the {kind} key")
        expect(header, f"the file of the {kind} key", kind=f"ckks {kind}")
        self.identity: str = header["identity"]
        self.public = kind == "public"
        self._tools: dict[int, Any] = {}
        for levels, part in zip(header["levels"], parts, strict=True):
            scheme = seal.scheme(levels)
            empty = scheme.api.PublicKey() if self.public else scheme.api.SecretKey()
            key = scheme.read(empty, part, f"the {kind} key")
            encryptor = scheme.api.Encryptor(scheme.context, key)
            decryptor = None if self.public else scheme.api.Decryptor(scheme.context, key)
            self._tools[levels] = (scheme, encryptor, decryptor)

    def tools(self, levels: int) -> tuple[seal.Scheme, Any, Any]:
        """Return the scheme, its encryptor, and its decryptor (none with a public key)."""
        tools: tuple[seal.Scheme, Any, Any] = self._tools[levels]
        return tools

    def __repr__(self) -> str:
        return f"Keys({self.identity}, {'public' if self.public else 'secret'})"

    def __reduce__(self) -> Any:
        raise UnseenError("keys are never pickled: pass the file that holds them.")
