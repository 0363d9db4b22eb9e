"""Masks as numbers: streams that two sites, or one, can make, and values in fixed point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unseen.errors import BadReply
from unseen.privacy import wire

Integers = NDArray[np.uint64]


def make_keys() -> tuple[bytes, bytes]:
    """Return the keys of one site, (private, public), 32 bytes each."""
    key = wire.primitives("asymmetric.x25519").X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def stream(private: bytes, other: bytes, purpose: str, count: int) -> Integers:
    """Return numbers that only the two owners of the keys can make, for one purpose.

    A purpose is never the same twice.
    """
    x25519, ciphers = wire.primitives("asymmetric.x25519"), wire.primitives("ciphers")
    own = x25519.X25519PrivateKey.from_private_bytes(private)
    shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(other))
    key = wire.derived_key(shared, b"unseen masks 1 " + purpose.encode())
    # The key is for this one stream, so its counter may begin anywhere.
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def own_stream(seed: bytes, purpose: str, count: int) -> Integers:
    """Return numbers that only who knows a seed can make, for one purpose."""
    ciphers = wire.primitives("ciphers")
    key = wire.derived_key(seed, b"unseen masks 2 own " + purpose.encode())
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
