"""Masks that cancel: the server learns the weighted sum of the rows and none of them.

Once the weights are known each client i sends

    y_i = ⌊2^s w_i u_i⌉ + Σ_{j > i} r_ij − Σ_{j < i} r_ij   mod 2^64

where r_ij is a stream that only i and j can make: X25519 of their keys, HKDF, ChaCha20. The sum of
all y_i is the sum of the rounded rows, exactly. A client that does not answer leaves masks
uncancelled, so the exchange begins again among the others, with other streams.

Source:
    Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
    §4.1.

Departs from:
    The paper: keys are fixed and handed out before the run, and secrets are not shared, so that an
    answer which comes after its exchange began again may be unmasked.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core import Exchange, Inbox, Method, Turn
from unseen.errors import BadReply, Departed
from unseen.privacy import kinds, wire
from unseen.privacy.kinds import QUESTION, Masks, SealedRows, ServerSide

Integers = NDArray[np.uint64]


def make_keys() -> tuple[bytes, bytes]:
    """Return the keys of one site, (private, public), 32 bytes each."""
    key = wire.primitives("asymmetric.x25519").X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def stream(private: bytes, other: bytes, purpose: str, count: int) -> Integers:
    """Return numbers that only the two owners of the keys can make, for one purpose.

    Args:
        private: One's private key.
        other: The other's public key.
        purpose: What the numbers are for; never the same twice.
        count: How many.
    """
    x25519, ciphers = wire.primitives("asymmetric.x25519"), wire.primitives("ciphers")
    own = x25519.X25519PrivateKey.from_private_bytes(private)
    shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(other))
    key = wire.derived_key(shared, b"unseen masks 1 " + purpose.encode())
    # The key is for this one stream, so its counter may begin anywhere.
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def fixed(values: NDArray[np.float64], step: int, count: int) -> Integers:
    """Return values in multiples of 2^-step, as integers mod 2^64.

    Raises:
        BadReply: A sum of `count` such values could overflow.
    """
    scaled = np.rint(np.ldexp(values, step))
    largest = float(np.abs(scaled).max(initial=0.0))
    if largest * count >= 2.0**62:
        what = f"{count} updates of {np.ldexp(largest, -step):.4g} would overflow 64 bits"
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
    """Return the numbers under a client's masks with each of the others.

    Args:
        name: The client.
        private: Its key.
        publics: Everybody's public keys.
        names: Who takes part in the sum.
        purpose: What the masks are for; never the same twice.
        numbers: What is masked.
    """
    total = numbers.copy()
    for other in names:
        if other != name:
            r = stream(private, publics[other], purpose, len(numbers))
            total = total + r if name < other else total - r
    return total


def purpose(header: Mapping[str, Any], received: str) -> str:
    """Bind masks to the weights, participants and model received, so that none is used twice."""
    bound = {k: header[k] for k in ("round", "exchange", "nonce", "slot", "names", "once")}
    weights = json.dumps([header["weights"], header["blocks"]]).encode()
    bound |= {"received": received, "weights": hashlib.sha256(weights).hexdigest()}
    return json.dumps(bound, sort_keys=True)


class Site(kinds.Site):
    """A site's side: it keeps its rows until it knows the weights, and sends them masked.

    Args:
        method: The method; like the job, of no use here.
        name: The site.
        files: Its key, and everybody's public keys.
        kind: The channel.
        job: The run.
    """

    def __init__(
        self, method: Method, name: str, files: Mapping[str, bytes], kind: Masks, job: str = ""
    ) -> None:
        super().__init__(name)
        halves: dict[str, str] = json.loads(files[kinds.PUBLICS])
        self.publics = {other: bytes.fromhex(half) for other, half in halves.items()}
        self._private, self.kind = files[kinds.PRIVATE], kind

    def start(self, inbox: Inbox) -> dict[str, Any]:
        """Return what the rows were made from, the rows, and whom each sum was asked among."""
        return {"received": wire.digest_of(inbox).hex(), "held": {}, "asked": {}}

    def message(self, row: Tensor, head: dict[str, Any], exchange: Exchange, turn: Turn) -> bytes:
        self.pending["held"][head["slot"]] = row.clone()
        return wire.pack({**head, "fault": ""})

    def respond(self, header: dict[str, Any], parts: wire.Parts) -> bytes:
        wire.expect(header, QUESTION, kind="mask", **self.label)
        self._admit(header)
        names, row = header["names"], self.pending["held"][header["slot"]].double().numpy()
        weights, blocks = np.array(header["weights"], ndmin=2), header["blocks"] or [[0, len(row)]]
        values = np.zeros_like(row)
        for w, (a, b) in zip(weights[:, names.index(self.name)], blocks, strict=True):
            values[a:b] = w * row[a:b]
        numbers = fixed(values, self.kind.step, len(names))
        bound = purpose(header, self.pending["received"])
        covered = masked(self.name, self._private, self.publics, names, bound, numbers)
        head = {"kind": "masked", "slot": header["slot"], "size": len(row), **self.label}
        return wire.pack(head, [covered.tobytes()])

    def _admit(self, header: Mapping[str, Any]) -> None:
        """Refuse a sum that would show a client's row, or another sum of the same rows."""
        names, slot, quorum = list(header["names"]), header["slot"], self.kind.quorum
        if self.name not in names or len(set(names)) != len(names) or len(names) < quorum:
            least = f"masks hide a row among at least {quorum}"
            raise BadReply(f"a sum of {len(names)} rows was asked for; {least}.")
        for w in np.array(header["weights"], ndmin=2):
            heavy = sorted(n for n, x in zip(names, w, strict=True) if x)
            if heavy and len(heavy) < quorum:
                alone = f"the weights of {slot!r} leave only {', '.join(heavy)} in the sum"
                raise BadReply(f"{alone}, which would be that client's own row.")
        before = self.pending["asked"].get(slot)
        if before is not None and not set(names) < set(before):
            raise BadReply(f"the sum of {slot!r} was asked for before, among the same clients.")
        self.pending["asked"][slot] = names


@dataclass
class MaskedRows(SealedRows["Server"]):
    """Rows of which the server can have a weighted sum, once."""

    unread = "the rows are under masks: no rule reads them."
    unmultiplied = "rows under masks have no inner products. Take the channel ckks."

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Return Σ w_i u_i [P], exact to half a step for each client."""
        (_, P), dtype, label = self.shape, self.sealed[0].dtype, self.server.label
        if not P:
            return torch.zeros(0, dtype=dtype, device=self.device)
        header = {
            "kind": "mask", "slot": self.slot, **label, "names": self.names,
            "once": wire.nonce(), "weights": weights.double().tolist(),
            "blocks": None if blocks is None else [[b.start, b.stop] for b in blocks],
        }  # fmt: skip
        answers = self.ask(dict.fromkeys(self.names, wire.pack(header)))
        replies = wire.accepted(answers, "masked", {"slot": self.slot, "size": P, **label})
        if missing := [name for name in self.names if name not in replies]:
            raise Departed(missing)
        total = np.zeros(P, np.uint64)
        for _, (content,) in replies.values():
            total += np.frombuffer(content, np.uint64)
        numbers = np.ldexp(total.view(np.int64).astype(np.float64), -self.server.kind.step)
        return torch.from_numpy(numbers).to(dtype).to(self.device)


class Server(ServerSide):
    """The server's side: it holds no key at all, and nothing leaves with the replies."""

    form = ""
    stack = MaskedRows

    def __init__(self, method: Method, files: Mapping[str, bytes], kind: Masks) -> None:
        super().__init__()
        self.kind = kind


def exposed(rows: Tensor, kind: Masks) -> list[bytes | Tensor]:
    """Return what the server holds of each row of [K, P] for equal weights; keys are lost."""
    pairs = {f"{k:04d}": make_keys() for k in range(len(rows))}
    publics = {name: public for name, (_, public) in pairs.items()}
    covered: list[bytes | Tensor] = []
    for (name, (private, _)), row in zip(pairs.items(), rows, strict=True):
        numbers = fixed(row.double().cpu().numpy() / len(rows), kind.step, len(rows))
        covered.append(masked(name, private, publics, list(pairs), "seen", numbers).tobytes())
    return covered
