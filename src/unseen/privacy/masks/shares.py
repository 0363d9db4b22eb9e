"""Streams of masks, seeds that t of n sites can make again, and what sites tell each other.

A seed of 128 bits is shared by Shamir's scheme over GF(2^128) (PyCryptodome): any t shares give it,
t − 1 say nothing about it. A site encrypts each share for the one that gets it, with a key that the
two alone can make of their long-term keys (X25519, HKDF-SHA-256, ChaCha20-Poly1305), so the server
that carries it can neither read nor make one. It publishes a hash of each share, by which the one
that gets it, and the server once it is opened, tell a wrong one from the one that was dealt.

Source:
    Shamir 1979, "How to share a secret"; Bonawitz et al. 2017, "Practical Secure Aggregation for
    Privacy-Preserving Machine Learning", §4 and 6.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unseen.errors import BadReply, optional
from unseen.privacy import wire

#: Bytes of a seed and of a share.
SEED = 16
#: What sites seal for each other.
INFO = b"unseen masks 2 between sites"
#: One site's long-term key with another's public one: (private, public).
Pair = tuple[bytes, bytes]
Integers = NDArray[np.uint64]


def least(share: float, count: int, quorum: int) -> int:
    """Return t: how many of `count` sites can open what one of them shared.

    Args:
        share: More than this share of them is needed.
        count: n.
        quorum: Never fewer than these.

    Example:
        >>> [least(2 / 3, n, 2) for n in (2, 3, 4, 7, 10)]
        [2, 3, 3, 5, 7]
    """
    return min(count, max(quorum, math.floor(share * count + 1e-9) + 1))


def split(seed: bytes, t: int, names: Sequence[str]) -> dict[str, bytes]:
    """Return each site's share of a seed, of which any t give it."""
    shares = _shamir().split(t, len(names), seed)
    return {name: share for name, (_, share) in zip(sorted(names), shares, strict=True)}


def joined(
    shares: Mapping[str, bytes], t: int, names: Sequence[str], fits: Callable[[bytes], bool],
    whose: str,
) -> bytes:  # fmt: skip
    """Return the seed that t shares give.

    Each share is as its `mark` says that it was dealt. `fits` compares a seed with what its site
    published.
    """
    places = {name: place for place, name in enumerate(sorted(names), 1)}
    some = [(places[name], shares[name]) for name in sorted(shares)[:t]]
    seed = bytes(_shamir().combine(some))
    if fits(seed):
        return seed
    what = f"the shares that {whose!r} dealt give another seed than the one that it published"
    raise BadReply(f"{what}, so the sum stays closed.", remedy=f"Begin a run without {whose!r}.")


def _shamir() -> Any:
    return optional("Crypto.Protocol.SecretSharing", "masks with shared seeds need", "he").Shamir


def key_of(seed: bytes) -> bytes:
    """Return the private key (X25519) that a seed makes."""
    return wire.derived_key(seed, b"unseen masks 2 key")


def public_of(private: bytes) -> bytes:
    """Return the public half of a private key."""
    key = wire.primitives("asymmetric.x25519").X25519PrivateKey.from_private_bytes(private)
    return bytes(key.public_key().public_bytes_raw())


def commitment(seed: bytes) -> str:
    """Return what is published of a seed, so that shares of it can be checked."""
    return hashlib.sha256(b"unseen masks 2 seed " + seed).hexdigest()


def mark(share: bytes) -> str:
    """Return what is published of a share, so that it is known again.

    Each share by itself is 128 random bits, of which a hash says nothing.
    """
    return hashlib.sha256(b"unseen masks 2 share " + share).hexdigest()


def sealed(pair: Pair, content: bytes, about: Mapping[str, Any]) -> bytes:
    """Return a content that the other site alone can read, and know to be this site's.

    `about` says what it belongs to, from whom and to whom. Without a content it vouches for that.
    """
    return wire.sealed(_common(pair), INFO, content, _bound(about))


def unsealed(pair: Pair, content: bytes, about: Mapping[str, Any]) -> bytes:
    """Return what another site sealed for this one."""
    fault = BadReply(f"what came in the name of {about.get('from')!r} is not what it sealed.")
    return wire.unsealed(_common(pair), INFO, content, _bound(about), fault)


def _bound(about: Mapping[str, Any]) -> bytes:
    return json.dumps(about, sort_keys=True).encode()


def _common(pair: Pair) -> bytes:
    """Return the secret that the owners of two keys alone can make."""
    x25519 = wire.primitives("asymmetric.x25519")
    own = x25519.X25519PrivateKey.from_private_bytes(pair[0])
    return bytes(own.exchange(x25519.X25519PublicKey.from_public_bytes(pair[1])))


def make_keys() -> tuple[bytes, bytes]:
    """Return the keys of one site, (private, public), 32 bytes each."""
    key = wire.primitives("asymmetric.x25519").X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def stream(private: bytes, other: bytes, purpose: str, count: int) -> Integers:
    """Return numbers that only the two owners of the keys can make, for one purpose.

    A purpose is never the same twice.
    """
    key = wire.derived_key(_common((private, other)), b"unseen masks 1 " + purpose.encode())
    return _numbers(key, count)


def own_stream(seed: bytes, purpose: str, count: int) -> Integers:
    """Return numbers that only who knows a seed can make, for one purpose."""
    return _numbers(wire.derived_key(seed, b"unseen masks 2 own " + purpose.encode()), count)


def _numbers(key: bytes, count: int) -> Integers:
    """Return the stream of a key, which is for this one alone: its counter may begin anywhere."""
    ciphers = wire.primitives("ciphers")
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def fixed(values: NDArray[np.float64], step: int, count: int) -> Integers:
    """Return values in multiples of 2^-step, as integers mod 2^64."""
    scaled = np.rint(np.ldexp(values, step))
    largest = float(np.abs(scaled).max(initial=0.0))
    if largest * count >= 2.0**62:
        # Not how large the largest is: that is a number of the row.
        what = f"{count} updates as large as this site's would overflow 64 bits"
        remedy = f"Take 'masks(step={max(8, step - 12)})', or a lower learning rate."
        raise BadReply(f"{what} in steps of 2^-{step}.", remedy=remedy)
    return scaled.astype(np.int64).view(np.uint64)


def masked(
    name: str,
    private: bytes,
    publics: Mapping[str, bytes],
    names: Sequence[str],
    purpose: str,
    numbers: Integers,
) -> Integers:
    """Return the numbers under a client's masks with each of the others."""
    total = numbers.copy()
    for other in names:
        if other != name:
            r = stream(private, publics[other], purpose, len(numbers))
            total = total + r if name < other else total - r
    return total


def purpose(header: Mapping[str, Any], received: str) -> str:
    """Bind masks to the weights, participants and model received, so that none is used twice."""
    bound = {k: header[k] for k in ("round", "exchange", "slot", "names", "once")}
    weights = json.dumps([header["weights"], header["blocks"]]).encode()
    bound |= {"received": received, "weights": hashlib.sha256(weights).hexdigest()}
    return json.dumps(bound, sort_keys=True)


def exposed(rows: Tensor, step: int) -> list[bytes | Tensor]:
    """Return what the server holds of each row of [K, P] for equal weights; keys are lost."""
    pairs = {f"{k:04d}": make_keys() for k in range(len(rows))}
    publics = {name: public for name, (_, public) in pairs.items()}
    covered: list[bytes | Tensor] = []
    for (name, (private, _)), row in zip(pairs.items(), rows, strict=True):
        numbers = fixed(row.double().cpu().numpy() / len(rows), step, len(rows))
        covered.append(masked(name, private, publics, list(pairs), "seen", numbers).tobytes())
    return covered
