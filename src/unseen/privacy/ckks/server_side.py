"""The server's side: rows as ciphertexts, whose inner products are a question to the sites."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core.disclosure import Undecided
from unseen.core.exchange import Method
from unseen.core.rows import Mixing, RuleState
from unseen.core.rule import Combine
from unseen.core.types import Table
from unseen.errors import BadReply, UnseenError
from unseen.privacy import seal
from unseen.privacy.ckks.arithmetic import (
    LARGEST,
    WEIGHT_STEP,
    products,
    weighted_sum,
)
from unseen.privacy.ckks.keys import Keys, check_public
from unseen.privacy.kinds import CKKS, CPU, Ask, Sealed, ServerSide
from unseen.privacy.seal import SLOTS
from unseen.privacy.sealed_rows import SealedRows
from unseen.privacy.wire import (
    Parts,
    accepted,
    digest,
    encode,
    expect,
    generator_of,
    pack,
    randomness,
    type_of,
)


class Server(ServerSide):
    """The server's side: made of public bytes, and of nothing else."""

    form = "encrypted"

    def __init__(self, method: Method, public: bytes, kind: CKKS) -> None:
        super().__init__()
        check_public(public)
        self.keys, self.kind = Keys(public, "public"), kind

    def sealed(self, name: str, head: dict[str, Any], parts: Parts, what: str) -> Sealed:
        """Return the ciphertexts of a row, of these keys."""
        expect(head, what, context=self.keys.identity)
        kind = type_of(head, what)
        try:
            shape, fault = torch.Size(head["shape"]), str(head.get("fault", ""))
            chunks = -(-shape.numel() // SLOTS)
            sound = head["size"] == shape.numel() and head["chunks"] == chunks <= len(parts)
            sound = sound and abs(int(head["exponent"])) < 1100 and head["levels"] in seal.MODULI
        except (KeyError, TypeError, ValueError):
            shape, fault, sound = torch.Size(), str(head.get("fault", "")), False
        if not (sound or fault):
            raise BadReply(f"{what} does not hold the ciphertexts that its header speaks of.")
        return Sealed(name, shape, kind, head, parts, fault)

    def rows(
        self, slot: str, rows: Sequence[Sealed], ask: Ask, device: torch.device = CPU
    ) -> EncryptedRows:
        """Return the rows for a rule."""
        return EncryptedRows(self, slot, tuple(rows), ask, device)

    def deliver(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """Return the sum, decrypted by a participant and rounded; the rounds take turns."""
        name = rows[self.label["round"] % len(rows)].client
        if not header["size"]:
            return torch.zeros(0, dtype=rows[0].dtype)
        answers = ask({name: pack({"kind": "open", **header}, parts)})
        if name not in answers:
            raise BadReply(f"site {name!r} did not open the sum of {header['slot']!r}.")
        sums = accepted(answers, "sum", {"slot": header["slot"], **self.label})
        _, (content,) = sums[name]
        vector = torch.frombuffer(bytearray(content), dtype=rows[0].dtype)
        if len(vector) != header["size"] or not bool(torch.isfinite(vector).all()):
            raise BadReply(f"site {name!r} opened the sum of {header['slot']!r} wrongly.")
        return vector


@dataclass
class EncryptedRows(SealedRows[Server]):
    """Rows as ciphertexts: sums are formed here, inner products are a question to the sites."""

    unread = "the rows are encrypted: no rule reads them."
    unmultiplied = (
        "inner products of encrypted rows are decrypted at the sites and stay there: a rule asks "
        "for its weights by Rows.weigh."
    )

    def weigh(
        self,
        rule: Mixing,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        """The weights that the sites compute of the decrypted inner products; all must agree."""
        label, (K, P) = self.server.label, self.shape
        runs = None if blocks is None else [[b.start, b.stop] for b in blocks]
        width = self.server.kind.width if runs is None else 0
        key = "sketch exponent" if width else "exponent"
        header = {
            "kind": "weigh", "slot": self.slot, **label, "context": self.server.keys.identity,
            "names": [row.client for row in self.sealed], "levels": self._levels(), "blocks": runs,
            "count": 1 if runs is None else len(runs), "width": width, "size": P,
            "covers": runs is None or sum(b - a for a, b in runs) == P,
            "exponents": [row.header[key] for row in self.sealed],
            "table": encode(dict(table)), "state": encode(state),
            "generator": randomness(generator),
        }  # fmt: skip
        question = pack(header, products(self.server.keys, self.sealed, runs, width))
        answers = self.ask({row.client: question for row in self.sealed})
        if not answers:
            raise BadReply("no site answered the question for the weights.")
        replies = accepted(answers, "weights", {"slot": self.slot, **label})
        steps, undecided = self._agreed({name: head for name, (head, _) in replies.items()})
        after = own_state(rule, table, state, generator, K)
        if digest(after) != next(iter(replies.values()))[0]["state"]:
            raise UnseenError(
                f"{type(rule).__name__} remembers what it makes of inner products, which the "
                "server does not see. Take the channel 'clear', or another rule."
            )
        names = [row.client for row in self.sealed]
        for i, j in sorted({(i, j) for _, i, j in undecided}):
            at = (label["round"], label["exchange"], self.slot)
            self.server.undecided.append(Undecided(*at, names[i], names[j]))
        return torch.tensor(steps, dtype=torch.float64) * WEIGHT_STEP, after

    def _agreed(self, headers: Mapping[str, Mapping[str, Any]]) -> tuple[Any, list[list[int]]]:
        """What all sites say; a disagreement stops the round and names who is alone with it."""
        texts = {n: json.dumps([h["weights"], h["state"]]) for n, h in headers.items()}
        ranks = Counter(texts.values()).most_common()
        if len(ranks) > 1:
            tied = ranks[0][1] == ranks[1][1]
            odd = sorted(n for n, text in texts.items() if tied or text != ranks[0][0])
            raise BadReply(
                "the sites computed different weights from the same inner products; "
                + (f"no majority among {', '.join(odd)}" if tied else f"alone: {', '.join(odd)}")
                + ". The round was stopped: compare the sites' versions and keys."
            )
        first = next(iter(headers.values()))
        return first["weights"], first["undecided"]

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Σ w_i u_i, wherever it may be read."""
        w = weights.double().cpu().numpy()
        top = max(row.header["exponent"] for row in self.sealed)
        lift = np.array([2.0 ** (row.header["exponent"] - top) for row in self.sealed])
        total = float((np.abs(w) * lift).sum(-1).max())
        if not total <= LARGEST:
            raise UnseenError(
                f"the weights of {self.slot!r} add up to {total:.4g} in absolute value; a sum of "
                f"ciphertexts holds {LARGEST:g}. Nothing was decrypted."
            )
        runs = None if blocks is None else [(b.start, b.stop) for b in blocks]
        present, parts = weighted_sum(self.server.keys, self.sealed, w * lift, runs)
        header = {
            "slot": self.slot, **self.server.label, "context": self.server.keys.identity,
            "size": self.shape[1], "exponent": top, "levels": self._levels(), "present": present,
            "dtype": str(self.sealed[0].dtype).removeprefix("torch."), "total": total,
            "steps": np.round(w / WEIGHT_STEP).astype(int).tolist(),
        }  # fmt: skip
        return self.server.deliver(header, parts, self.sealed, self.ask).to(self.device)

    def _levels(self) -> int:
        return int(self.sealed[0].header["levels"])


def own_state(
    rule: Mixing, table: Table, state: RuleState, generator: torch.Generator | None, K: int
) -> RuleState:
    """Return the rule's state after this exchange, as far as it follows from scalars."""
    if not isinstance(rule, Combine):
        return state
    return rule.with_prior(rule.checked(table, K), state, generator_of(randomness(generator)))[1]
