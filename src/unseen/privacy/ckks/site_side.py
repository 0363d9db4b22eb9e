"""A site's side: it encrypts its rows, and answers questions about inner products and sums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from unseen.core.exchange import Exchange, Method, Reply, Turn, keyed
from unseen.core.replies import NOT_FINITE
from unseen.core.rows import Mixing
from unseen.core.types import Inbox
from unseen.errors import BadReply, UnseenError
from unseen.privacy import kinds
from unseen.privacy.ckks.arithmetic import (
    DECIDED,
    DECIDED_SKETCH,
    SIGMA,
    WEIGHT_STEP,
    Floats,
    combination,
    encrypt,
    inner_products,
    rounded,
    sketched,
    uncertainty,
)
from unseen.privacy.ckks.keys import Keys
from unseen.privacy.kinds import CKKS
from unseen.privacy.wire import (
    decode,
    digest,
    encode,
    expect,
    generator_of,
    pack,
    refusal,
    type_of,
    unpack,
)


class Site(kinds.Site):
    """A site's side: it alone, with the other sites, holds the secret key.

    It answers each kind of question once per slot and exchange, and only about the exchange that
    it last sealed a reply for.
    """

    def __init__(self, method: Method, name: str, secret: bytes, kind: CKKS) -> None:
        self.exchanges = {exchange.name: exchange for exchange in method.exchanges}
        self.name, self.kind, self.keys = name, kind, Keys(secret, "secret")
        #: What must be remembered between the messages of one exchange, as plain data.
        self.pending: dict[str, Any] = {}

    def save(self) -> bytes:
        """Return what a new process must be given to go on within an exchange."""
        return pack({"pending": encode(self.pending)})

    def load(self, content: bytes) -> None:
        """Go on from what `save` returned."""
        self.pending = decode(unpack(content, "a site's saved state")[0]["pending"])

    def seal(
        self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
    ) -> dict[str, bytes]:
        """Return every slot's row, encrypted; of a row that is not finite the fault alone."""
        number = json.loads(hello)["nonce"]
        label = {"round": turn.round, "exchange": exchange.name, "nonce": number}
        self.pending = {"label": label, "asked": [], "norms": {}, "weights": {}, "energy": {}}
        messages = {}
        for name in exchange.slots:
            row = reply.rows[name]
            head = {"kind": "row", "slot": name, "client": self.name, **label}
            if not bool(torch.isfinite(row).all()):
                shape = {"shape": list(row.shape), "dtype": str(row.dtype).removeprefix("torch.")}
                fault = {**head, **shape, "context": self.keys.identity, "fault": NOT_FINITE}
                messages[name] = pack(fault)
                continue
            rule = exchange.slots[name].combine
            products = rule is not None and rule.sees == "products"
            layers = rule is not None and products and rule.blocks != "whole"
            multiplied, sketch = row.double(), None
            if products and self.kind.width:
                stream = f"{turn.seed}/sketch/{turn.round}/{exchange.name}/{name}"
                multiplied = sketch = sketched(row.cpu(), self.kind.width, keyed(stream))
            messages[name] = encrypt(self.keys, row, head, 2 if layers else 1, sketch)
            self.pending["norms"][name] = float(multiplied.square().sum())
        return messages

    def answer(self, question: bytes) -> bytes:
        """Return the weights for inner products, or a decrypted sum, rounded; or why not."""
        try:
            header, parts = unpack(question, "the server's question")
            self.admit(header)
            if header["kind"] == "weigh":
                return self.weigh(header, parts)
            if header["kind"] == "open":
                return self.open(header, parts)
            raise BadReply(f"no question of this channel is called {header['kind']!r}.")
        except (UnseenError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            return refusal(error)

    def admit(self, header: Mapping[str, Any]) -> None:
        """Refuse questions about other exchanges, with other keys, or asked before."""
        expect(header, "the server's question", context=self.keys.identity)
        expect(header, "the server's question", **self.pending.get("label", {"round": None}))
        question = [header["kind"], header["slot"]]
        if question in self.pending["asked"]:
            raise BadReply(f"{question[0]!r} for the slot {question[1]!r} was asked before.")
        self.pending["asked"].append(question)

    def weigh(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> bytes:
        """Return the rule's weights in steps of 2^-30; the inner products stay here."""
        rule = self.exchanges[header["exchange"]].slots[header["slot"]].combine
        if rule is None or rule.sees != "products":
            raise BadReply(f"the rule of {header['slot']!r} does not use inner products.")
        gram = inner_products(self.keys, header, parts)
        layers = header["blocks"] is not None
        spread = DECIDED * uncertainty(gram, header["exponents"], header["size"], layers)
        self._own(header, gram, spread)
        zero = np.abs(gram) <= spread
        nothing = np.einsum("bii->bi", zero)  # a row that is not to be told from 0
        zero = zero | nothing[:, :, None] | nothing[:, None, :]
        gram[zero] = 0  # not to be told from 0: neither a conflict nor an agreement
        if header["width"]:
            norms = np.einsum("bii->bi", gram)
            doubt = DECIDED_SKETCH / np.sqrt(header["width"])
            zero |= np.abs(gram) < doubt * np.sqrt(norms[:, :, None] * norms[:, None, :])
        table, state = decode(header["table"]), decode(header["state"])
        products = torch.from_numpy(gram if layers else gram[0])
        weights, after = cast("Mixing", rule).weights(
            products, table, state, generator_of(header["generator"])
        )
        steps = torch.round(weights / WEIGHT_STEP).long()
        w = steps.double().numpy() * WEIGHT_STEP
        v = w.reshape(len(gram), -1)
        energy = np.einsum("bi,bij,bj->", v, gram, v)
        self.pending["weights"][header["slot"]] = steps.tolist()
        if not header["width"]:
            self.pending["energy"][header["slot"]] = float(max(energy, 0.0))
        undecided = [[int(b), int(i), int(j)] for b, i, j in np.argwhere(zero) if i < j]
        result = {"weights": steps.tolist(), "state": digest(after), "undecided": undecided}
        return pack({"kind": "weights", "slot": header["slot"], **self.pending["label"], **result})

    def _own(self, header: Mapping[str, Any], gram: Floats, spread: Floats) -> None:
        """This site knows its own square: a wrong one is overflow, lost precision or a lie."""
        if self.name not in header["names"] or not header["covers"]:
            return
        i = header["names"].index(self.name)
        returned, right = float(gram[:, i, i].sum()), self.pending["norms"][header["slot"]]
        # Four times the spread: an honest server must not be accused by the tail of the noise.
        if abs(returned - right) > 1e-6 * right + 4 * float(spread[:, i, i].sum()):
            raise BadReply(
                f"the square of this site's own update came back as {returned:.6g} where "
                f"{right:.6g} was sent: overflow, lost precision, or a server that multiplied "
                "something else. Nothing was answered."
            )

    def open(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> bytes:
        """Return the sum for a server that is not blind, rounded."""
        kind = type_of(header, "the server's sum")
        vector = rounded(self.combined(header, parts), header["exponent"])
        content = torch.from_numpy(vector).to(kind).numpy().tobytes()
        head = {"kind": "sum", "slot": header["slot"], "size": len(vector)}
        return pack({**head, **self.pending["label"]}, [content])

    def combined(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> Floats:
        """Return the decrypted sum, after the checks that a site can make."""
        slot = self.exchanges[header["exchange"]].slots[header["slot"]]
        source = slot.like or header["slot"]
        weights = self.pending.get("weights", {}).get(source)
        if weights is not None and header["steps"] != weights:
            raise BadReply(
                f"the sum of {header['slot']!r} was formed with other weights than those that the "
                "sites computed."
            )
        vector = combination(self.keys, header, parts)
        energy = self.pending.get("energy", {}).get(header["slot"])
        if energy is not None:
            norm, right = float(np.linalg.norm(vector)), energy**0.5
            noise = SIGMA * np.ldexp(header["total"], header["exponent"]) * len(vector) ** 0.5
            if abs(norm - right) > 1e-4 * right + 8 * noise:
                raise BadReply(
                    f"the sum of {header['slot']!r} has the length {norm:.6g} where its inner "
                    f"products make {right:.6g}: overflow, lost precision, or a server that "
                    "summed something else."
                )
        return vector
