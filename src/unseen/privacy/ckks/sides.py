"""The two sides: a site's, which can decrypt, and the server's, which asks it to."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Generator, Tensor

from unseen.core import Combine, Inbox, Table
from unseen.core.exchange import Exchange, Method, Slot, Undecided
from unseen.core.rows import Mixing, RuleState
from unseen.core.turn import Turn, keyed
from unseen.errors import BadReply, UnseenError
from unseen.privacy import kinds, wire
from unseen.privacy.ckks import arithmetic
from unseen.privacy.ckks.arithmetic import WEIGHT_STEP, Floats
from unseen.privacy.kinds import QUESTION, Ask, Sealed, SealedRows, ServerSide
from unseen.privacy.seal import MODULI, SLOTS, Keys, check_public

Slices = Sequence[slice] | None
Draws = Generator | None
#: What may have happened where the sites' check of their own numbers fails.
WRONG = "overflow, lost precision, or a server that"


class Site(kinds.Site):
    """A site's side: it alone, with the other sites, holds the secret key.

    `width` is the length of sketches, in place of rows in inner products; 0 for exact ones.

    It answers each kind of question once per slot and exchange, and only about the exchange that it
    last sealed a reply for. Who takes part, the scheme's levels and its own row's scale it knows
    itself, and its own square it compares in every block.
    """

    def __init__(
        self, method: Method, name: str, files: Mapping[str, bytes], width: int = 0
    ) -> None:
        self.secret, self.width = files[kinds.SECRET], width
        self.keys = Keys(self.secret, "secret")
        super().__init__(name, {"context": self.keys.identity})
        self.exchanges = {exchange.name: exchange for exchange in method.exchanges}

    def start(self, inbox: Inbox) -> dict[str, Any]:
        return {"asked": [], "sizes": {}, "rows": {}, "sealed": {}, "weights": {}, "energy": {}}

    def message(self, row: Tensor, head: dict[str, Any], exchange: Exchange, turn: Turn) -> bytes:
        """Return the row, encrypted; with a sketch of it, where inner products are of sketches."""
        slot, rule = head["slot"], exchange.slots[head["slot"]].combine
        products = rule is not None and rule.sees == "products"
        layers = rule is not None and products and rule.blocks != "whole"
        multiplied, sketch = row.double(), None
        if products and self.width:
            stream = f"{turn.seed}/sketch/{turn.round}/{exchange.name}/{slot}"
            multiplied = sketch = arithmetic.sketched(row, self.width, keyed(stream))
        self.pending["sizes"][slot] = len(row)
        content = arithmetic.encrypt(self.keys, row, head, 2 if layers else 1, sketch)
        if products:
            sealed, _ = wire.unpack(content, "the own row")
            exponent = sealed["exponent" if sketch is None else "sketch exponent"]
            self.pending["rows"][slot] = multiplied.clone()
            self.pending["sealed"][slot] = {"levels": sealed["levels"], "exponent": exponent}
        return content

    def respond(self, header: dict[str, Any], parts: wire.Parts) -> bytes:
        """Return the weights for inner products, or a decrypted sum, rounded."""
        wire.expect(header, QUESTION, **self.mark, **self.label)
        kind, slot = header["kind"], header["slot"]
        if [kind, slot] in self.pending["asked"]:
            raise BadReply(f"{kind!r} for the slot {slot!r} was asked before.")
        self.pending["asked"].append([kind, slot])
        answers = {"weigh": self.weigh, "open": self.open}
        if kind not in answers:
            raise BadReply(f"no question of this channel is called {kind!r}.")
        return answers[kind](header, parts)

    def weigh(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Return the rule's weights in steps of 2^-30; the inner products stay here."""
        slot, layers = header["slot"], header["blocks"] is not None
        rule = self.exchanges[header["exchange"]].slots[slot].combine
        if rule is None or rule.sees != "products":
            raise BadReply(f"the rule of {slot!r} does not use inner products.")
        self._check_script(header, rule.blocks != "whole")
        gram = arithmetic.inner_products(self.keys, header, parts)
        size, exponents = header["size"], header["exponents"]
        spread = arithmetic.DECIDED * arithmetic.uncertainty(gram, exponents, size, layers)
        self._own(header, gram, spread)
        zero = np.abs(gram) <= spread
        nothing = np.einsum("bii->bi", zero)  # a row that cannot be distinguished from 0
        zero = zero | nothing[:, :, None] | nothing[:, None, :]
        gram[zero] = 0  # cannot be distinguished from 0: neither a conflict nor an agreement
        if header["width"]:
            norms = np.einsum("bii->bi", gram)
            doubt = arithmetic.DECIDED_SKETCH / np.sqrt(header["width"])
            zero |= np.abs(gram) < doubt * np.sqrt(norms[:, :, None] * norms[:, None, :])
        products = torch.from_numpy(gram if layers else gram[0])
        table, state = wire.decode(header["table"]), wire.decode(header["state"])
        draws = wire.generator_of(header["generator"])
        weights, after = cast("Mixing", rule).weights(products, table, state, draws)
        steps = torch.round(weights / WEIGHT_STEP).long()
        v = (steps.double().numpy() * WEIGHT_STEP).reshape(len(gram), -1)
        self.pending["weights"][slot] = steps.tolist()
        if not header["width"]:
            energy = np.einsum("bi,bij,bj->", v, gram, v)
            self.pending["energy"][slot] = float(max(energy, 0.0))
        undecided = [[int(b), int(i), int(j)] for b, i, j in np.argwhere(zero) if i < j]
        result = {"weights": steps.tolist(), "state": wire.digest(after), "undecided": undecided}
        return wire.pack({"kind": "weights", "slot": slot, **self.label, **result})

    def _check_script(self, header: Mapping[str, Any], by_blocks: bool) -> None:
        """Refuse products of others, or in another form, than the exchange has."""
        slot, names = header["slot"], list(header["names"])
        own, blocks = self.pending["sealed"][slot], header["blocks"]
        if self.name not in names or len(set(names)) != len(names) or len(names) < 2:
            raise BadReply("inner products are of several sites' rows, this one's among them.")
        if self.company and (others := sorted(set(names) - set(self.company))):
            raise BadReply(f"{', '.join(others)} take no part in this exchange.")
        expected = {
            "size": self.pending["sizes"][slot], "levels": own["levels"],
            "count": len(blocks) if by_blocks else 1,
            "width": 0 if by_blocks else self.width,
        }  # fmt: skip
        wire.expect(header, QUESTION, **expected)
        if by_blocks == (blocks is None) or len(header["exponents"]) != len(names):
            raise BadReply("the blocks of the products are not those of the rule.")
        if header["exponents"][names.index(self.name)] != own["exponent"]:
            raise BadReply("the own row came back at another scale.")

    def _own(self, header: Mapping[str, Any], gram: Floats, spread: Floats) -> None:
        """Check this site's own squares: a wrong one is overflow, lost precision or a lie."""
        i, row = header["names"].index(self.name), self.pending["rows"][header["slot"]]
        for b, (begin, end) in enumerate(header["blocks"] or [[0, len(row)]]):
            returned, right = float(gram[b, i, i]), float(row[begin:end].square().sum())
            # Four times the spread: an honest server must not be accused by the tail of the noise.
            if abs(returned - right) > 1e-6 * right + 4 * float(spread[b, i, i]):
                what = "the square of the own update came back as another number"  # not as which
                raise BadReply(f"{what}: {WRONG} multiplied something else. Nothing was answered.")

    def open(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Return the sum for a server that is not blind, rounded."""
        name = header["slot"]
        weighed = self._slot(header).like or name
        rule = self.exchanges[header["exchange"]].slots[weighed].combine
        if rule is not None and rule.sees == "products" and weighed not in self.pending["weights"]:
            raise BadReply(f"the sum of {name!r} was asked for before its weights.")
        if header["size"] != self.pending["sizes"].get(name):
            raise BadReply(f"the sum of {name!r} has another size than the rows here.")
        kind = wire.type_of(header, "the server's sum")
        step = 2.0 ** (header["exponent"] - arithmetic.SUM_BITS)
        vector = np.round(self.combined(header, parts) / step) * step
        content = torch.from_numpy(vector).to(kind).numpy().tobytes()
        head = {"kind": "sum", "slot": header["slot"], "size": len(vector), **self.label}
        return wire.pack(head, [content])

    def combined(self, header: Mapping[str, Any], parts: wire.Parts) -> Floats:
        """Return the decrypted sum, after the checks that a site can make."""
        name = header["slot"]
        weights = self.pending.get("weights", {}).get(self._slot(header).like or name)
        if weights is not None and header["steps"] != weights:
            raise BadReply(f"the sum of {name!r} has other weights than the sites computed.")
        scheme, _, decryptor = self.keys.tools(header["levels"])
        slots = np.zeros(header["size"])
        for c, part in zip(header["present"], parts, strict=True):
            piece = slots[c * SLOTS : (c + 1) * SLOTS]
            content = scheme.ciphertext(part, "an encrypted sum")
            # At a smaller scale, numbers and noise would be read larger than they are.
            if not math.isclose(content.scale, arithmetic.sum_scale(scheme), rel_tol=1e-9):
                raise BadReply(f"the sum of {name!r} is not at the scale of sums.")
            numbers = scheme.decoded(decryptor, content)
            if not float(np.abs(numbers).max()) <= arithmetic.LARGEST:
                raise BadReply(f"the sum of {name!r} has numbers that no sum of rows has.")
            piece[:] = numbers[: len(piece)]
        vector: Floats = np.ldexp(slots, header["exponent"])
        energy = self.pending.get("energy", {}).get(name)
        if energy is not None:
            norm, right = float(np.linalg.norm(vector)), energy**0.5
            step = np.ldexp(header["total"], header["exponent"])
            noise = arithmetic.SIGMA * step * len(vector) ** 0.5
            if abs(norm - right) > 1e-4 * right + 8 * noise:
                what = f"the sum of {name!r} has another length than inner products make of it"
                raise BadReply(f"{what}: {WRONG} summed something else.")
        return vector

    def _slot(self, header: Mapping[str, Any]) -> Slot:
        return self.exchanges[header["exchange"]].slots[header["slot"]]


@dataclass
class EncryptedRows(SealedRows["Server"]):
    """Rows as ciphertexts: sums are formed here, inner products are a question to the sites."""

    unread = "the rows are encrypted: no rule reads them."
    unmultiplied = (
        "inner products of encrypted rows are decrypted at the sites and stay there: a rule asks "
        "for its weights by Rows.weigh."
    )

    def weigh(
        self, rule: Mixing, blocks: Slices, table: Table, state: RuleState, generator: Draws
    ) -> tuple[Tensor, RuleState]:
        """Return the weights that the sites compute of the inner products; all must agree."""
        server, names, (K, P) = self.server, self.names, self.shape
        runs = None if blocks is None else [[b.start, b.stop] for b in blocks]
        width = server.width if runs is None else 0
        key = "sketch exponent" if width else "exponent"
        header = {
            "kind": "weigh", **self._label(), "names": names, "blocks": runs,
            "count": 1 if runs is None else len(runs), "width": width, "size": P,
            "exponents": [row.header[key] for row in self.sealed],
            "table": wire.encode(dict(table)), "state": wire.encode(state),
            "generator": wire.randomness(generator),
        }  # fmt: skip
        question = wire.pack(header, arithmetic.products(server.keys, self.sealed, runs, width))
        answers = self.ask(dict.fromkeys(names, question))
        if not answers:
            raise BadReply("no site answered the question for the weights.")
        about = {"slot": self.slot, **server.label}
        replies = {n: wire.opened(n, a, ("weights",), about)[0] for n, a in answers.items()}
        answer = agreed(replies)
        after = state
        if isinstance(rule, Combine):  # as far as it follows from scalars
            draws = wire.generator_of(wire.randomness(generator))
            after = rule.with_prior(rule.checked(table, K), state, draws)[1]
        if wire.digest(after) != answer["state"]:
            why = f"{type(rule).__name__} remembers what it makes of hidden inner products."
            raise UnseenError(why, remedy="Take the channel 'clear', or another rule.")
        at = (server.label["round"], server.label["exchange"], self.slot)
        for i, j in sorted({(i, j) for _, i, j in answer["undecided"]}):
            server.undecided.append(Undecided(*at, names[i], names[j]))
        return torch.tensor(answer["weights"], dtype=torch.float64) * WEIGHT_STEP, after

    def linear(self, weights: Tensor, blocks: Slices = None) -> Tensor:
        w = weights.double().cpu().numpy()
        top = max(row.header["exponent"] for row in self.sealed)
        lift = np.array([2.0 ** (row.header["exponent"] - top) for row in self.sealed])
        total = float((np.abs(w) * lift).sum(-1).max())
        if not total <= arithmetic.LARGEST:
            what = f"the weights of {self.slot!r} add up to {total:.4g} in absolute value"
            limit = f"a sum of ciphertexts holds {arithmetic.LARGEST:g}"
            raise UnseenError(f"{what}; {limit}. Nothing was decrypted.")
        runs = None if blocks is None else [(b.start, b.stop) for b in blocks]
        present, parts = arithmetic.weighted_sum(self.server.keys, self.sealed, w * lift, runs)
        header = {
            **self._label(), "size": self.shape[1], "exponent": top, "present": present,
            "dtype": wire.name_of(self.sealed[0].dtype), "total": total,
            "steps": np.round(w / WEIGHT_STEP).astype(int).tolist(),
        }  # fmt: skip
        return self.server.deliver(header, parts, self.sealed, self.ask).to(self.device)

    def _label(self) -> dict[str, Any]:
        """Return what every question about the rows says of the exchange and the scheme."""
        levels = int(self.sealed[0].header["levels"])
        return {"slot": self.slot, **self.server.label, **self.server.mark, "levels": levels}


def agreed(headers: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return one of the sites' answers, which must all be the same."""
    texts = {n: json.dumps([h["weights"], h["state"]]) for n, h in headers.items()}
    ranks = Counter(texts.values()).most_common()
    if len(ranks) > 1:
        tied = ranks[0][1] == ranks[1][1]
        odd = ", ".join(sorted(n for n, text in texts.items() if tied or text != ranks[0][0]))
        who = f"{'no majority among' if tied else 'alone:'} {odd}. The round was stopped."
        why = f"the sites computed different weights from the same inner products; {who}"
        raise BadReply(why, remedy="Compare the sites' versions and keys.")
    return next(iter(headers.values()))


class Server(ServerSide):
    """The server's side: made of public bytes, and of nothing else."""

    form = "encrypted"
    stack = EncryptedRows

    def __init__(self, files: Mapping[str, bytes], width: int = 0) -> None:
        public = files[kinds.PUBLIC]
        super().__init__({"context": check_public(public)})
        self.keys, self.width = Keys(public, "public"), width

    def whole(self, head: Mapping[str, Any], parts: wire.Parts, size: int) -> bool:
        counted = head["size"] == size and head["chunks"] == -(-size // SLOTS) <= len(parts)
        return counted and abs(int(head["exponent"])) < 1100 and head["levels"] in MODULI

    def deliver(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """Return a sum, decrypted by a participant and rounded; the rounds take turns."""
        name = rows[self.label["round"] % len(rows)].client
        if not header["size"]:
            return torch.zeros(0, dtype=rows[0].dtype)
        answers = ask({name: wire.pack({"kind": "open", **header}, parts)})
        if name not in answers:
            raise BadReply(f"site {name!r} did not open the sum of {header['slot']!r}.")
        about = {"slot": header["slot"], **self.label}
        _, (content,) = wire.opened(name, answers[name], ("sum",), about)
        vector = torch.frombuffer(bytearray(content), dtype=rows[0].dtype)
        if len(vector) != header["size"] or not bool(torch.isfinite(vector).all()):
            raise BadReply(f"site {name!r} opened the sum of {header['slot']!r} wrongly.")
        return vector
