"""A site's side of masks: what it shares, masks, vouches for and opens, each once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.core import Exchange, Inbox, Method, Turn, Weighted
from unseen.errors import BadReply
from unseen.privacy import kinds, wire
from unseen.privacy.kinds import QUESTION
from unseen.privacy.masks import shares
from unseen.privacy.masks.shares import fixed, masked, own_stream, purpose

#: How many times as heavy as another a row may be that is hidden by it.
HEAVY = 20.0


class Site(kinds.Site):
    """A site's side: it keeps its rows until it knows the weights, and sends them masked.

    In this order, and each for the last answer of the kind before alone: it shares new seeds among
    those who take part; sends its masked row; says who is left; and gives the shares that open the
    sum of those. A sum that was opened is final: of the rows of this exchange in this round no
    other sum is opened, whatever they were made from, since the two would differ by rows of few
    sites.
    """

    remembers = True

    def __init__(
        self, method: Method, name: str, files: Mapping[str, bytes], quorum: int,
        threshold: float, step: int,
    ) -> None:  # fmt: skip
        super().__init__(name)
        halves: dict[str, str] = json.loads(files[kinds.PUBLICS])
        self.publics = {other: bytes.fromhex(half) for other, half in halves.items()}
        self._private, self.step = files[kinds.PRIVATE], step
        self.quorum, self.threshold = quorum, threshold
        self.fewest, self.company = quorum, tuple(self.publics)
        self.exchanges = {exchange.name: exchange for exchange in method.exchanges}

    def start(self, inbox: Inbox) -> dict[str, Any]:
        """Return what the rows were made from, the rows, and whom each sum was asked among."""
        # The last says which sum of which rows was opened, over all exchanges of the run.
        return {
            "received": wire.digest_of(inbox).hex(),
            "held": {},
            "asked": {},
            "deals": {},
            "final": self.pending.get("final", {}),
        }

    def message(self, row: Tensor, head: dict[str, Any], exchange: Exchange, turn: Turn) -> bytes:
        self.pending["held"][head["slot"]] = row.clone()
        return wire.pack({**head, "fault": ""})

    def respond(self, header: dict[str, Any], parts: wire.Parts) -> bytes:
        wire.expect(header, QUESTION, **self.label)
        answers = {
            "share": self.share, "mask": self.mask, "confirm": self.confirm, "unmask": self.unmask
        }  # fmt: skip
        if header["kind"] not in answers:
            raise BadReply(f"no question of this channel is called {header['kind']!r}.")
        return answers[header["kind"]](header, parts)

    def share(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Make new seeds for some slots, and return what the others need of them."""
        names, slots = self._company(header), list(header["slots"])
        for slot in slots:
            if slot not in self.pending["held"]:
                raise BadReply(f"no row {slot!r} is here.")
        t = shares.least(self.threshold, len(names), self.quorum)
        seeds = {slot: (os.urandom(shares.SEED), os.urandom(shares.SEED)) for slot in slots}
        keys = {n: shares.public_of(shares.key_of(pair[0])).hex() for n, pair in seeds.items()}
        commits = {slot: shares.commitment(pair[1]) for slot, pair in seeds.items()}
        by_name: dict[str, dict[str, list[str]]] = {name: {} for name in names}
        for slot, pair in seeds.items():
            halves = [shares.split(seed, t, names) for seed in pair]
            for name in names:
                by_name[name][slot] = [half[name].hex() for half in halves]
        deal = {
            "id": header["deal"], "names": names, "least": t, "keys": {self.name: keys},
            "seeds": {slot: [seed.hex() for seed in pair] for slot, pair in seeds.items()},
            "shares": {self.name: by_name[self.name]}, "sums": {},
        }  # fmt: skip
        self.pending["deals"] |= dict.fromkeys(slots, deal)
        published = {"keys": keys, "commits": commits}
        marks = {
            name: {slot: [shares.mark(bytes.fromhex(half)) for half in halves]
                   for slot, halves in own.items()}
            for name, own in by_name.items()
        }  # fmt: skip
        about = {"what": "shares", **published}
        bundles = [
            self._to(n, json.dumps(by_name[n]).encode(), deal, {**about, "marks": marks[n]})
            for n in names
            if n != self.name
        ]
        head = {"kind": "shared", "slot": "", **self.label, **published, "marks": marks}
        return wire.pack(head, bundles)

    def mask(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Return a row under its masks, or whose shares do not fit what they published.

        The others' shares come with the question, and stay. A wrong one leaves this site's row
        unmasked: whoever dealt it could not be told from somebody else.
        """
        deal, slot = self._deal(header), header["slot"]
        self._company(header)
        if accused := self._take(header, parts, deal):
            head = {"kind": "accused", "slot": slot, **self.label, "accused": accused}
            return wire.pack(head)
        self._admit(header)
        names, row = header["names"], self.pending["held"][slot].double().numpy()
        weights, blocks = np.array(header["weights"], ndmin=2), header["blocks"] or [[0, len(row)]]
        values = np.zeros_like(row)
        for w, (a, b) in zip(weights[:, names.index(self.name)], blocks, strict=True):
            values[a:b] = w * row[a:b]
        numbers = fixed(values, self.step, len(names))
        bound = purpose(header, self.pending["received"])
        pair_seed, own_seed = (bytes.fromhex(seed) for seed in deal["seeds"][slot])
        publics = {name: bytes.fromhex(keys[slot]) for name, keys in deal["keys"].items()}
        covered = masked(self.name, shares.key_of(pair_seed), publics, names, bound, numbers)
        covered = covered + own_stream(own_seed, bound, len(row))
        by_name = dict(zip(names, weights.T.tolist(), strict=True))
        deal["sums"][slot] = {
            "once": header["once"], "present": None, "weights": by_name, "blocks": blocks,
        }  # fmt: skip
        head = {"kind": "masked", "slot": slot, "size": len(row), **self.label}
        return wire.pack({**head, "received": self.pending["received"]}, [covered.tobytes()])

    def _take(
        self, header: Mapping[str, Any], parts: wire.Parts, deal: dict[str, Any]
    ) -> list[str]:
        """Keep the shares that the others dealt to this site; return whose are wrong."""
        others = [name for name in deal["names"] if name != self.name]
        accused = []
        for name, bundle in zip(others, parts, strict=True):
            published = {key: header[key][name] for key in ("keys", "commits", "marks")}
            try:
                content = self._from(name, bytes(bundle), deal, {"what": "shares", **published})
                own_shares = checked_shares(content, published["marks"])
            except BadReply:
                accused.append(name)
                continue
            deal["shares"][name], deal["keys"][name] = own_shares, published["keys"]
        return accused

    def confirm(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Vouch to each of the others for who is left in a sum; for one answer to that alone."""
        deal, sum = self._sum(header)
        present, slot = list(header["present"]), header["slot"]
        if not set(present) <= set(deal["names"]) or len(set(present)) != len(present):
            raise BadReply("some are said to be left in a sum who were never in it.")
        least = max(deal["least"], self.fewest)
        if self.name not in present or len(present) < least:
            few = f"{len(present)} are left in the sum of {slot!r}, and {least} are needed"
            raise BadReply(f"{few}, this site among them.")
        self._check_weights(slot, present, [sum["weights"][name] for name in present])
        if sum["present"] not in (None, present):
            raise BadReply(f"others were said to be left in the sum of {slot!r} before.")
        self._check_opened(slot, sum, present)
        sum["present"] = present
        about = {"what": "left", "slot": slot, "once": sum["once"], "left": present}
        tags = [self._to(name, b"", deal, about) for name in present if name != self.name]
        return wire.pack({"kind": "confirmed", "slot": slot, **self.label}, tags)

    def unmask(self, header: Mapping[str, Any], parts: wire.Parts) -> bytes:
        """Return shares: of each vector's own seed, and of the other seed of those who left."""
        deal, sum = self._sum(header)
        slot, present = header["slot"], sum["present"]
        if present is None:
            raise BadReply("shares were asked for before anybody vouched for who is left.")
        vouched = {self.name}
        for name, tag in zip(header["vouched"], parts, strict=True):
            about = {"what": "left", "slot": slot, "once": sum["once"], "left": present}
            with suppress(BadReply):  # it vouches for nothing, and the others may be enough
                self._from(name, bytes(tag), deal, about)
                vouched.add(name)
        if len(vouched & set(present)) < deal["least"]:
            raise BadReply(f"{len(vouched)} vouch for who is left; {deal['least']} are needed.")
        self._check_opened(slot, sum, present)
        self.pending["final"][self._row(slot)] = self._contents(sum, present)
        # The second share is of what covers a vector that came, the first of what covers others.
        given_up = [
            bytes.fromhex(deal["shares"][name][slot][name in present]) for name in deal["names"]
        ]
        return wire.pack({"kind": "unmasked", "slot": slot, **self.label}, given_up)

    def _check_opened(self, slot: str, sum: Mapping[str, Any], present: Sequence[str]) -> None:
        """Refuse another sum of the rows of this position than the one that was opened."""
        before = self.pending["final"].get(self._row(slot))
        if before not in (None, self._contents(sum, present)):
            other = f"another sum of the rows of {slot!r} was opened in this round before"
            raise BadReply(f"{other}: the two would differ by rows of few sites.")

    def _row(self, slot: str) -> str:
        """Return the position of the row of a slot."""
        about = self.label["round"], self.label["exchange"], slot
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]

    def _contents(self, sum: Mapping[str, Any], present: Sequence[str]) -> str:
        """Return what a sum of those who are left consists of."""
        weights = {name: sum["weights"][name] for name in sorted(present)}
        return hashlib.sha256(json.dumps([weights, sum["blocks"]]).encode()).hexdigest()[:32]

    def _to(self, name: str, content: bytes, deal: Any, about: Mapping[str, Any]) -> bytes:
        """Seal something of a deal for another site."""
        return shares.sealed((self._private, self.publics[name]), content,
                             self._bound(self.name, name, deal, about))  # fmt: skip

    def _from(self, name: str, content: bytes, deal: Any, about: Mapping[str, Any]) -> bytes:
        """Open what another site sealed for this one."""
        return shares.unsealed((self._private, self.publics[name]), content,
                               self._bound(name, self.name, deal, about))  # fmt: skip

    def _bound(
        self, sender: str, to: str, deal: Mapping[str, Any], about: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what a message between two sites belongs to."""
        ends = {"from": sender, "to": to, "names": deal["names"], "deal": deal["id"]}
        return {**about, **ends, **self.label}

    def _deal(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return the seeds that were shared last for a slot, if the question is about those."""
        deal: dict[str, Any] = self.pending["deals"].get(header["slot"]) or {"id": None}
        if header["deal"] != deal["id"] or list(header["names"]) != deal["names"]:
            raise BadReply("a sum was asked for among others than seeds were shared among.")
        return deal

    def _sum(self, header: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a sum for which this site masked its row, and the seeds."""
        deal, slot = self._deal(header), header["slot"]
        sum: dict[str, Any] = deal["sums"].get(slot) or {"once": None}
        if sum["once"] is None or header["once"] != sum["once"]:
            raise BadReply(f"no row was masked for this sum of {slot!r}.")
        return deal, sum

    def _company(self, header: Mapping[str, Any]) -> list[str]:
        """Return those among whom a sum is asked for; refuse too few of them."""
        names, few = list(header["names"]), self.fewest
        if self.name not in names or len(set(names)) != len(names) or len(names) < few:
            least = f"masks hide a row among at least {few}"
            raise BadReply(f"a sum of {len(names)} rows was asked for; {least}.")
        if others := sorted(set(names) - set(self.company)):
            raise BadReply(f"{', '.join(others)} take no part in this exchange.")
        if strangers := sorted(set(names) - self.publics.keys()):
            raise BadReply(f"this site has no public key of {', '.join(strangers)}.")
        return names

    def _admit(self, header: Mapping[str, Any]) -> None:
        """Refuse a sum that would show a client's row, or another sum of the same rows."""
        names, slot = self._company(header), header["slot"]
        self._check_weights(slot, names, np.array(header["weights"], ndmin=2).T)
        before = self.pending["asked"].get(slot)
        if before is not None and not set(names) <= set(before):
            raise BadReply(f"the sum of {slot!r} was asked for before, without some of these.")
        self.pending["asked"][slot] = names

    def _check_weights(self, slot: str, names: Sequence[str], weights: Any) -> None:
        """Refuse weights by which a sum would be the rows of too few clients."""
        equal = weighs_alike(self.exchanges.get(self.label["exchange"]), slot)
        for w in np.asarray(weights, dtype=float).T:
            if not np.isfinite(w).all():
                raise BadReply(f"the weights of {slot!r} are not all finite numbers.")
            own = np.abs(w[w != 0])
            if equal and len(own) and not np.allclose(own, own[0], rtol=1e-9, atol=0):
                raise BadReply(f"the rule of {slot!r} weighs all rows alike; these weights do not.")
            least = np.abs(w).max() / HEAVY
            heavy = sorted(n for n, x in zip(names, w, strict=True) if x and abs(x) >= least)
            if heavy and len(heavy) < self.fewest:
                alone = f"the weights of {slot!r} leave only {', '.join(heavy)} in the sum"
                less = f"or the others with less than 1/{HEAVY:g} of the largest weight"
                raise BadReply(f"{alone}, {less}: it would be that client's own row.")


def checked_shares(content: bytes, marks: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the shares in a bundle: slot -> both, as text."""
    try:
        own_shares = {slot: list(map(str, halves)) for slot, halves in json.loads(content).items()}
        fits = {n: [shares.mark(bytes.fromhex(h)) for h in own] for n, own in own_shares.items()}
    except (ValueError, TypeError, AttributeError):
        fits = {}
    if not fits or fits != {slot: list(both) for slot, both in marks.items()}:
        raise BadReply("shares do not fit what their site published of them.")
    return own_shares


def weighs_alike(exchange: Exchange | None, slot: str) -> bool:
    """Return whether the rule of a slot weighs all rows alike, whatever comes with them."""
    own = exchange.slots.get(slot) if exchange is not None else None
    rule = own.combine if own is not None else None
    if not isinstance(rule, Weighted) or rule.all_needs() or rule.adapts:
        return False
    weights, _ = rule.weights({"client": torch.arange(2)}, rule.init(2, 1))
    return bool((weights == weights[0]).all())
