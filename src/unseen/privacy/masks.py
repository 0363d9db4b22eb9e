"""Masks that cancel: the server learns the weighted sum of the rows and none of them.

Once the weights are known each client i sends

    y_i = ⌊2^s w_i u_i⌉ + Σ_{j > i} r_ij − Σ_{j < i} r_ij   mod 2^64

where r_ij is a stream that only i and j can make: X25519 of their keys, HKDF, ChaCha20. The sum of
all y_i is the sum of the rounded rows, exactly. Who does not answer leaves masks uncancelled, so
the exchange begins again among those left, with other streams.

Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", §4.1. Departs from it: keys are fixed and handed out before the run, and secrets are
not shared, so that an answer which comes after its exchange began again may be unmasked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.replies import NOT_FINITE
from unseen.core.types import Inbox
from unseen.errors import BadReply, Departed, UnseenError
from unseen.privacy import kinds
from unseen.privacy.kinds import CPU, Ask, Masks, Sealed, ServerSide
from unseen.privacy.sealed_rows import SealedRows
from unseen.privacy.stream import digest_of
from unseen.privacy.wire import (
    Parts,
    accepted,
    decode,
    encode,
    expect,
    nonce,
    pack,
    refusal,
    type_of,
    unpack,
)

Integers = NDArray[np.uint64]


def make_keys() -> tuple[bytes, bytes]:
    """(private, public) of one site, 32 bytes each."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def stream(private: bytes, other: bytes, purpose: str, count: int) -> Integers:
    """`count` numbers that only the two owners of the keys can make, for one purpose."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import (
            X25519PrivateKey,
            X25519PublicKey,
        )
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise UnseenError(
            "masks need the package cryptography: install it with pip install 'unseen[he]'."
        ) from error

    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(other)
    )
    info = b"unseen masks 1 " + purpose.encode()
    key = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)
    # The key is for this one stream, so its counter may begin anywhere.
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), np.uint64)


def fixed(values: NDArray[np.float64], step: int, count: int) -> Integers:
    """Multiples of 2^-step as integers mod 2^64, if `count` of them cannot overflow."""
    scaled = np.rint(np.ldexp(values, step))
    largest = float(np.abs(scaled).max()) if len(scaled) else 0.0
    if largest * count >= 2.0**62:
        raise BadReply(
            f"a weighted update reaches {np.ldexp(largest, -step):.4g}, which {count} times does "
            f"not fit into 64 bits in steps of 2^-{step}: the sum would overflow. Set "
            f"privacy.channel = 'masks(step={max(8, step - 12)})', or look at the learning rate."
        )
    return scaled.astype(np.int64).view(np.uint64)


def masked(
    name: str,
    private: bytes,
    publics: Mapping[str, bytes],
    names: Sequence[str],
    purpose: str,
    numbers: Integers,
) -> Integers:
    """Return the numbers under this client's masks with each of the others."""
    total = numbers.copy()
    for other in names:
        if other == name:
            continue
        r = stream(private, publics[other], purpose, len(numbers))
        total = total + r if name < other else total - r
    return total


def purpose(header: Mapping[str, Any], received: str) -> str:
    """Bind the mask to the weights, participants and model received.

    So no mask is ever reused for a second update.
    """
    bound = {k: header[k] for k in ("round", "exchange", "nonce", "slot", "names", "once")}
    bound["received"] = received
    bound["weights"] = hashlib.sha256(
        json.dumps([header["weights"], header["blocks"]]).encode()
    ).hexdigest()
    return json.dumps(bound, sort_keys=True)


class Site(kinds.Site):
    """A site's side: it keeps its rows until it knows the weights, and sends them masked."""

    def __init__(
        self, name: str, private: bytes, publics: Mapping[str, bytes], kind: Masks
    ) -> None:
        self.name, self._private, self.publics, self.kind = name, private, dict(publics), kind
        self.label: dict[str, Any] = {}
        self.held: dict[str, Tensor] = {}
        #: A digest of what the rows were made from.
        self.received = ""
        #: The names that each slot's sum was last asked for.
        self.asked: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"Site({self.name!r})"

    def __reduce__(self) -> Any:
        raise UnseenError("a site's side holds its key and is never pickled.")

    def save(self) -> bytes:
        """What a new process must be given to go on within an exchange; it stays at the site."""
        state = {
            "label": self.label, "received": self.received, "held": self.held, "asked": self.asked
        }  # fmt: skip
        return pack({"state": encode(state)})

    def load(self, content: bytes) -> None:
        """Go on from what `save` returned."""
        state = decode(unpack(content, "a site's saved state")[0]["state"])
        self.label, self.held, self.asked = state["label"], state["held"], state["asked"]
        self.received = state["received"]

    def seal(
        self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
    ) -> dict[str, bytes]:
        """That the rows are there, and of which shape; their numbers stay until they are asked."""
        greeting = json.loads(hello)
        self.label = {"round": turn.round, "exchange": exchange.name, "nonce": greeting["nonce"]}
        self.held, self.asked, messages = {}, {}, {}
        self.received = digest_of(inbox).hex()
        for name in exchange.slots:
            row = reply.rows[name].detach().cpu()
            sound = bool(torch.isfinite(row).all())
            if sound:
                self.held[name] = row.clone()
            head = {"kind": "row", "slot": name, "client": self.name, **self.label}
            shape = {"shape": list(row.shape), "dtype": str(row.dtype).removeprefix("torch.")}
            messages[name] = pack({**head, **shape, "fault": "" if sound else NOT_FINITE})
        return messages

    def answer(self, question: bytes) -> bytes:
        """This site's masked and weighted row; or why not."""
        try:
            header, _ = unpack(question, "the server's question")
            expect(header, "the server's question", kind="mask", **self.label)
            self._admit(header)
            return self._masked(header)
        except (UnseenError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            return refusal(error)

    def _admit(self, header: Mapping[str, Any]) -> None:
        names, slot = list(header["names"]), header["slot"]
        if self.name not in names or len(set(names)) != len(names) or len(names) < self.kind.quorum:
            raise BadReply(
                f"a sum of {len(names)} rows was asked for; masks hide a row among at least "
                f"{self.kind.quorum}."
            )
        for w in np.array(header["weights"], ndmin=2):
            heavy = sorted(n for n, x in zip(names, w, strict=True) if x)
            if heavy and len(heavy) < self.kind.quorum:
                raise BadReply(
                    f"the weights of {slot!r} leave only {', '.join(heavy)} in the sum, which "
                    "would be that client's own row."
                )
        before = self.asked.get(slot)
        if before is not None and not set(names) < set(before):
            raise BadReply(f"the sum of {slot!r} was asked for before, among the same clients.")
        self.asked[slot] = names

    def _masked(self, header: Mapping[str, Any]) -> bytes:
        names, row = header["names"], self.held[header["slot"]].double().numpy()
        i = names.index(self.name)
        weights = np.array(header["weights"], dtype=np.float64)
        if header["blocks"] is None:
            values = weights[i] * row
        else:
            values = np.zeros_like(row)
            for w, (a, b) in zip(weights[:, i], header["blocks"], strict=True):
                values[a:b] = w * row[a:b]
        numbers = fixed(values, self.kind.step, len(names))
        bound = purpose(header, self.received)
        covered = masked(self.name, self._private, self.publics, names, bound, numbers)
        head = {"kind": "masked", "slot": header["slot"], "size": len(row), **self.label}
        return pack(head, [covered.tobytes()])


class Server(ServerSide):
    """The server's side: it holds no key at all."""

    form = ""  # nothing leaves with the replies

    def __init__(self, method: Method, kind: Masks) -> None:
        super().__init__()
        self.kind = kind

    def sealed(self, name: str, head: dict[str, Any], parts: Parts, what: str) -> Sealed:
        """Return what a client says of the row that it keeps."""
        kind = type_of(head, what)
        try:
            shape, fault = torch.Size(head["shape"]), str(head["fault"])
        except (KeyError, TypeError, ValueError):
            raise BadReply(f"{what} does not say its shape.") from None
        return Sealed(name, shape, kind, head, parts, fault)

    def rows(
        self, slot: str, rows: Sequence[Sealed], ask: Ask, device: torch.device = CPU
    ) -> MaskedRows:
        """Return the rows for a rule."""
        return MaskedRows(self, slot, tuple(rows), ask, device)


@dataclass
class MaskedRows(SealedRows[Server]):
    """Rows of which the server can have a weighted sum, once."""

    unread = "the rows are under masks: no rule reads them."
    unmultiplied = "rows under masks have no inner products. Take the channel ckks."

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Σ w_i u_i, exact to half a step for each client."""
        P, kind = self.shape[1], self.sealed[0].dtype
        if not P:
            return torch.zeros(0, dtype=kind, device=self.device)
        names = [row.client for row in self.sealed]
        header = {
            "kind": "mask", "slot": self.slot, **self.server.label, "names": names,
            "once": nonce(), "weights": weights.double().tolist(),
            "blocks": None if blocks is None else [[b.start, b.stop] for b in blocks],
        }  # fmt: skip
        question = pack(header)
        answers = self.ask(dict.fromkeys(names, question))
        label = {"slot": self.slot, "size": P, **self.server.label}
        answered = accepted(answers, "masked", label)
        if missing := [name for name in names if name not in answered]:
            raise Departed(missing)
        total = np.zeros(P, np.uint64)
        for _, (content,) in answered.values():
            total = total + np.frombuffer(content, np.uint64)
        numbers = np.ldexp(total.view(np.int64).astype(np.float64), -self.server.kind.step)
        return torch.from_numpy(numbers).to(kind).to(self.device)


def exposed(rows: Tensor, kind: Masks) -> list[bytes | Tensor]:
    """What the server holds of each row of [K, P] for equal weights; keys are thrown away."""
    names = [f"{k:04d}" for k in range(len(rows))]
    pairs = {name: make_keys() for name in names}
    publics = {name: public for name, (_, public) in pairs.items()}
    content: list[bytes | Tensor] = []
    for name, row in zip(names, rows, strict=True):
        numbers = fixed(row.double().cpu().numpy() / len(rows), kind.step, len(rows))
        content.append(masked(name, pairs[name][0], publics, names, "seen", numbers).tobytes())
    return content
