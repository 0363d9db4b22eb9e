"""The server's side of masks: sums of vectors that it cannot read, and who is left in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unseen.core import Exchange, Turn
from unseen.errors import BadReply, Departed
from unseen.privacy import wire
from unseen.privacy.kinds import SealedRows, ServerSide
from unseen.privacy.masks import shares
from unseen.privacy.masks.masked_answers import (
    Deal,
    blamed,
    counted,
    published_in,
    shares_in,
    vector_in,
)
from unseen.privacy.masks.shares import Integers, own_stream, purpose, stream

LOG = logging.getLogger("flwr")
T = TypeVar("T")
#: (site, header of its answer, parts) -> the content; raises what is wrong with it.
Read = Callable[[str, dict[str, Any], wire.Parts], T]


@dataclass(frozen=True)
class Collected:
    """Masked vectors of one sum, before it is opened.

    Attributes:
        header: The question that asked for them.
        answers: Site -> its vector, and the model that it received.
        deal: The seeds' public parts.
        weights: Of the sites [K], or of each block [B, K].
    """

    header: Mapping[str, Any]
    answers: Mapping[str, tuple[Integers, str]]
    deal: Deal
    weights: Tensor

    @property
    def present(self) -> list[str]:
        return [name for name in self.deal.names if name in self.answers]

    @property
    def total(self) -> float:
        """The weights of those whose vectors came, added up."""
        return float(self.share(self.present).sum())

    def share(self, names: Sequence[str]) -> Tensor:
        """Return the weights of some of the sites."""
        return self.weights[..., [self.deal.names.index(name) for name in names]]


@dataclass
class MaskedRows(SealedRows["Server"]):
    """Rows of which the server can have a weighted sum, once."""

    unread = "the rows are under masks: no rule reads them."
    unmultiplied = "rows under masks have no inner products. Take the channel ckks."

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Return Σ w_i u_i [P], exact to half a step for each client.

        Who leaves once its seeds are shared is left out of the sum. The rules begin again without
        it; where they give the others weights in the old proportion, as every mean does, the
        vectors that came are opened and nobody is asked for a row again.
        """
        (_, P), dtype, server = self.shape, self.sealed[0].dtype, self.server
        if not P:
            return torch.zeros(0, dtype=dtype, device=self.device)
        before = server.waiting.pop(self.slot, None)
        if before is not None and len(before.answers) < server.least(before.deal):
            before = None  # too few are left to open it
        scale = None if before is None else proportion(before, self.names, weights)
        if before is None or scale is None:
            if before is not None or self.slot in server.asked:
                server.deals.pop(self.slot, None)  # no seed covers two sums
            before = self._collected(weights, blocks)
            absent = [name for name in self.names if name not in before.answers]
            if absent and not server.final:
                server.waiting[self.slot] = before
                raise Departed(absent, server.faults)
            # What was opened before is final: the others stand for those who left.
            scale = float(weights.sum()) / before.total if absent and before.total else 1.0
        total = self._opened(before)
        numbers = np.ldexp(total.view(np.int64).astype(np.float64), -server.step) * scale
        return torch.from_numpy(numbers).to(dtype).to(self.device)

    def _collected(self, weights: Tensor, blocks: Sequence[slice] | None) -> Collected:
        """Ask for masked rows, among those whose seeds were shared."""
        server, label = self.server, self.server.label
        deal = self._shared([n for n in self.names if n not in server.faults or not server.final])
        here = [name for name in self.names if name in deal.names]
        own = weights.new_zeros((*weights.shape[:-1], len(deal.names)), dtype=torch.float64)
        places = [deal.names.index(name) for name in here]
        own[..., places] = weights.double()[..., [self.names.index(name) for name in here]]
        server.asked.add(self.slot)
        header = {
            "kind": "mask", "slot": self.slot, **label, "names": deal.names, "deal": deal.id,
            "once": wire.nonce(), "weights": own.tolist(),
            "blocks": None if blocks is None else [[b.start, b.stop] for b in blocks],
            "keys": deal.keys, "commits": deal.commits,
        }  # fmt: skip
        questions = {
            name: wire.pack({**header, "marks": deal.marks_to(name)}, deal.bundles_to(name))
            for name in here
        }
        read = partial(vector_in, size=self.shape[1])
        answers = self._read(questions, ("masked", "accused"), {"slot": self.slot}, read)
        accused = {name: by for name, by in answers.items() if isinstance(by, list)}
        if not accused:
            vectors = {name: v for name, v in answers.items() if not isinstance(v, list)}
            return Collected(header, vectors, deal, own)
        blame = blamed(accused, len(deal.names) - 1)
        server.faults |= blame
        server.deals = {slot: other for slot, other in server.deals.items() if other is not deal}
        if not server.final:
            raise Departed([name for name in self.names if name in server.faults], server.faults)
        return self._collected(weights, blocks)

    def _shared(self, names: list[str]) -> Deal:
        """Return the public parts of seeds that are shared among these, or those of them here."""
        server, label = self.server, self.server.label
        before = server.deals.get(self.slot)
        # Whoever else seeds were shared among has left.
        whole = before is not None and set(names) <= {*before.names}
        if before is not None and whole and len(names) >= server.least(before):
            return before
        header = {"kind": "share", "slot": "", **label, "names": names, "deal": wire.nonce()}
        header["slots"] = server.dealt_with(self.slot)
        questions = dict.fromkeys(names, wire.pack(header))
        read = partial(published_in, names=names, slots=header["slots"])
        replies = self._read(questions, ("shared",), {}, read)
        if missing := [name for name in names if name not in replies]:
            if not server.final:
                raise Departed(missing, server.faults)
            return self._shared([name for name in names if name in replies])
        deal = Deal(header["deal"], names, replies)
        server.deals |= dict.fromkeys(header["slots"], deal)
        return deal

    def _opened(self, sum: Collected) -> Integers:
        """Return the sum of the vectors that came, without any mask."""
        server, names, present = self.server, sum.deal.names, sum.present
        t = server.least(sum.deal)
        about = {key: sum.header[key] for key in ("slot", "names", "deal", "once")}
        question = wire.pack({"kind": "confirm", **about, **server.label, "present": present})
        count = partial(counted, count=len(present) - 1)
        replies = self._enough("confirmed", dict.fromkeys(present, question), t, count)
        tags: dict[str, dict[str, bytes]] = {name: {} for name in present}
        for name, parts in replies.items():
            others = [other for other in present if other != name]
            for other, tag in zip(others, parts, strict=True):
                tags[other][name] = tag
        server.final.append(self.slot)
        header = {"kind": "unmask", **about, **server.label}
        questions = {
            name: wire.pack({**header, "vouched": list(tags[name])}, list(tags[name].values()))
            for name in replies
        }
        read = partial(shares_in, deal=sum.deal, slot=self.slot, came=sum.answers)
        opened = self._enough("unmasked", questions, t, read)
        total = np.zeros(self.shape[1], np.uint64)
        for vector, _ in sum.answers.values():
            total = total + vector
        for place, name in enumerate(names):
            own = {other: parts[place] for other, parts in opened.items()}
            total = total - self._cover(sum, name, own, t)
        return total

    def _cover(self, sum: Collected, name: str, parts: Mapping[str, bytes], t: int) -> Integers:
        """Return what lies on the sum because of one site: its own stream, or others' with it."""
        deal, slot, size = sum.deal, self.slot, self.shape[1]
        if name in sum.answers:
            published = deal.own[name].commits[slot]
            seed = shares.joined(
                parts, t, deal.names, lambda s: shares.commitment(s) == published, name
            )
            return own_stream(seed, purpose(sum.header, sum.answers[name][1]), size)
        published = deal.own[name].keys[slot]
        seed = shares.joined(
            parts, t, deal.names,
            lambda s: shares.public_of(shares.key_of(s)).hex() == published, name,
        )  # fmt: skip
        private, total = shares.key_of(seed), np.zeros(size, np.uint64)
        for other, (_, received) in sum.answers.items():
            public = bytes.fromhex(deal.own[other].keys[slot])
            r = stream(private, public, purpose(sum.header, received), size)
            total = total + r if other < name else total - r
        return total

    def _enough(
        self, kind: str, questions: Mapping[str, bytes], t: int, read: Read[list[bytes]]
    ) -> dict[str, list[bytes]]:
        """Return the answers of at least t sites, without which a sum stays closed."""
        faults = self.server.faults
        replies = self._read(questions, (kind,), {"slot": self.slot}, read)
        if len(replies) < t:
            away = sorted(questions.keys() - replies.keys())
            reasons = "; ".join(f"{name}: {faults[name]}" for name in away if name in faults)
            silent = ", ".join(name for name in away if name not in faults)
            raise BadReply(
                f"{len(replies)} sites help to open the sum of {self.slot!r}, and {t} are needed"
                + (f"; silent: {silent}" if silent else "") + (f"; {reasons}" if reasons else "."),
                remedy="The same command begins the round again once they are back.",
            )  # fmt: skip
        return replies

    def _read(
        self, questions: Mapping[str, bytes], kinds: Sequence[str], about: Mapping[str, Any],
        read: Read[T],
    ) -> dict[str, T]:  # fmt: skip
        """Return what sites answer; an answer that cannot be used is the fault of its site.

        `about` is what it must say beside the exchange.
        """
        label, replies = {**about, **self.server.label}, dict[str, T]()
        for name, answer in self.ask(questions).items():
            try:
                replies[name] = read(name, *wire.opened(name, answer, kinds, label))
            except BadReply as error:
                self.server.faults[name] = str(error)
            except (LookupError, ValueError, TypeError, AttributeError, OverflowError):
                self.server.faults[name] = f"an answer to {kinds[0]!r} of another form"
            if name in self.server.faults:
                LOG.warning("site %s: %s", name, self.server.faults[name])
        return replies


def proportion(sum: Collected, names: Sequence[str], weights: Tensor) -> float | None:
    """Return by which factor new weights are the old ones of those left; None if by none."""
    if sum.present != list(names):
        return None
    old, new = sum.share(names).flatten(), weights.double().flatten()
    if old.shape != new.shape or not bool(old.abs().max()):
        return None
    scale = float((old @ new) / (old @ old))
    return scale if torch.allclose(scale * old, new, rtol=1e-9, atol=1e-12) else None


class Server(ServerSide):
    """The server's side: it holds no key at all, and nothing leaves with the replies.

    Attributes:
        deals: Slot -> the seeds that were shared for it in this exchange.
        waiting: Slot -> vectors of a sum that somebody left before it was opened.
        asked: Slots of which masked rows were asked for.
        final: Slots whose sums were opened, so that nothing of the exchange begins again.
        faults: Site -> what was wrong with an answer of it in this exchange.
    """

    form = ""
    stack = MaskedRows

    def __init__(self, quorum: int, threshold: float, step: int) -> None:
        super().__init__()
        self.quorum, self.threshold, self.step = quorum, threshold, step
        self.deals: dict[str, Deal] = {}
        self.waiting: dict[str, Collected] = {}
        self.final: list[str] = []
        self.asked: set[str] = set()
        self.faults: dict[str, str] = {}
        self.alike: list[str] = []

    def begin(self, exchange: Exchange, turn: Turn) -> None:
        self.deals, self.waiting, self.final, self.asked = {}, {}, [], set()
        self.faults = {}
        self.alike = [name for name, slot in exchange.row_slots.items() if slot.view is None]
        super().begin(exchange, turn)

    def least(self, deal: Deal) -> int:
        """Return how many sites open what was shared."""
        return shares.least(self.threshold, len(deal.names), self.quorum)

    def dealt_with(self, slot: str) -> list[str]:
        """Return the slots that seeds are shared for together with one: of the same clients."""
        if slot not in self.alike:
            return [slot]
        return [name for name in self.alike if name not in self.final and name not in self.waiting]
