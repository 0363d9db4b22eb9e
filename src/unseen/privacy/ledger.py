"""The ledger: what left each client in each exchange, in which form, and ε so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.disclosure import Disclosure
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.round import Backend
from unseen.core.rows import Rows
from unseen.core.types import Inbox
from unseen.privacy.accounting import Guarantee, Release, releases
from unseen.privacy.dp import NoisedRows, mechanism
from unseen.results.records import LEDGER, Record, read_lines

#: What the scalars of a reply are called together.
SCALARS = "scalars"
#: Bytes of one scalar: a float64.
NUMBER = 8
#: More examples than that no client has; who says so is broken.
LARGEST = 2**53


@dataclass(frozen=True)
class _Call:
    """One exchange as it went out: with whom, and how many examples each says it has."""

    exchange: Exchange
    turn: Turn
    names: tuple[str, ...]
    counts: tuple[int, ...]
    left: tuple[Disclosure, ...]


class Metered(Backend):
    """A backend whose replies are measured on the way.

    A channel that changes what leaves a client reports it itself, see `Backend.disclosed`.
    """

    def __init__(self, backend: Backend, method: Method) -> None:
        self.backend, self.method = backend, method
        self.model, self.clients = backend.model, backend.clients
        self.memories = backend.memories
        self.calls: list[_Call] = []
        self.spending: dict[tuple[str, str], Counter[Release]] = {}
        #: How many examples each client has, and replies that came before it said so.
        self.sizes: dict[str, int] = {}
        self.uncounted: Counter[tuple[str, str]] = Counter()

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Return the backend's replies; those of the exchange before are done with."""
        self._settle()
        replies = self.backend.map(exchange, inbox, clients, turn)
        left = [item for n, r in zip(clients, replies, strict=True) for item in measured(n, r)]
        counts = tuple(self._count(n, r) for n, r in zip(clients, replies, strict=True))
        self.calls.append(_Call(exchange, turn, tuple(clients), counts, tuple(left)))
        return replies

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """Return the backend's own."""
        return self.backend.rows(slot, replies, reference)

    def lines(self) -> list[Record]:
        """Return the records of all exchanges since the last call."""
        self._settle()
        lines = [self._line(call) for call in self.calls]
        self.calls = []
        return lines

    def resume(self, folder: Path, roster: Sequence[str]) -> None:
        """Count what an earlier run of the same job spent, from its ledger."""
        exchanges = {exchange.name: exchange for exchange in self.method.exchanges}
        for line in read_lines(folder / LEDGER):
            if line.get("exchange") in exchanges:
                exchange = exchanges[line["exchange"]]
                turn = Turn(0, line["round"], 0, exchange.name, roster=tuple(roster))
                counts = line.get("examples", [0] * len(line["clients"]))
                self._spend(exchange, turn, line["clients"], counts)

    def closing(self) -> list[Record]:
        """Return the last record: what each client was promised, if anything."""
        guarantees = [
            Guarantee(client, tuple(counter.items()))
            for (client, _), counter in sorted(self.spending.items())
        ]
        if not guarantees:
            return []
        return [{"guarantees": [_promise(guarantee) for guarantee in guarantees]}]

    def _count(self, name: str, reply: Reply) -> int:
        """How many examples a client says it has, or is known to have; 0 if nobody says.

        A reply that no rule will use, since it is broken, has left its client all the same.
        """
        reported = torch.as_tensor(reply.scalars.get("examples", 0), dtype=torch.float64)
        if reported.numel() == 1 and 1 <= float(reported) <= LARGEST:
            return int(reported)
        client = self.backend.clients.get(name)
        return len(client.train) if client is not None and client.train is not None else 0

    def _settle(self) -> None:
        """Let a channel say what left in the last exchange, now that its rules have run."""
        if not self.calls:
            return
        last = self.calls[-1]
        if disclosed := tuple(self.backend.disclosed()):
            scalars = () if any(item.slot == SCALARS for item in disclosed) else _scalars(last.left)
            self.calls[-1] = _Call(last.exchange, last.turn, last.names, last.counts,
                                   (*disclosed, *scalars))  # fmt: skip

    def _line(self, call: _Call) -> Record:
        noised = self._spend(call.exchange, call.turn, call.names, call.counts)
        slots: dict[tuple[str, str], dict[str, int]] = {}
        for item in call.left:
            form = _form(item, noised)
            by_client = slots.setdefault((item.slot, form), {})
            by_client[item.client] = by_client.get(item.client, 0) + item.bytes
        line: Record = {
            "round": call.turn.round,
            "exchange": call.exchange.name,
            "clients": list(call.names),
            "left": [
                {"slot": slot, "form": form, "bytes": [by_client.get(n, 0) for n in call.names]}
                for (slot, form), by_client in slots.items()
            ],
        }
        if noised:
            line["examples"] = list(call.counts)
            line["epsilon"] = {
                protects: [self._so_far(name, protects) for name in call.names]
                for protects in noised
            }
        return line

    def _spend(
        self, exchange: Exchange, turn: Turn, names: Sequence[str], counts: Sequence[int]
    ) -> list[str]:
        """Count an exchange; what its noise protects."""
        noised = mechanism(exchange.local, NoisedRows)
        planned = noised.count(turn) if noised is not None else len(names)
        protects: dict[str, None] = {}
        for name, count in zip(names, counts, strict=True):
            size = self.sizes[name] = count or self.sizes.get(name, 0)
            # A reply that did not say its number of examples counts as soon as another one does.
            late = self.uncounted.pop((name, exchange.name), 0) if size else 0
            for release in releases(exchange, size, len(names), planned):
                again = 1 + (late if release.protects == "example" else 0)
                self.spending.setdefault((name, release.protects), Counter())[release] += again
                protects[release.protects] = None
            if not size:
                self.uncounted[name, exchange.name] += 1
        return list(protects)

    def _so_far(self, client: str, protects: str) -> float | None:
        counter = self.spending.get((client, protects))
        if counter is None:  # nobody knows, until it says how many examples it has
            return None
        return finite(Guarantee(client, tuple(counter.items())).spent("rdp"))


def measured(client: str, reply: Reply) -> list[Disclosure]:
    """Return the bytes of a reply as it stands: every row, and all scalars together."""
    rows = [
        Disclosure(client, name, "plain", row.numel() * row.element_size())
        for name, row in reply.rows.items()
        if isinstance(row, Tensor) and row.numel()
    ]
    numbers = sum(torch.as_tensor(value).numel() for value in reply.scalars.values())
    return [*rows, Disclosure(client, SCALARS, "plain", NUMBER * numbers)] if numbers else rows


def before_training(clients: Iterable[str], statistics: Tensor) -> list[Record]:
    """Return the record of the sums by which tables are standardised, exchanged before round 0."""
    names, size = sorted(clients), statistics.numel() * statistics.element_size()
    left = {"slot": "statistics", "form": "plain", "bytes": [size] * len(names)}
    return [{"round": 0, "exchange": "statistics", "clients": names, "left": [left]}]


def finite(value: float) -> float | None:
    """Return a number of five digits, or None for infinity, which JSON lacks."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _scalars(left: Iterable[Disclosure]) -> tuple[Disclosure, ...]:
    return tuple(item for item in left if item.slot == SCALARS)


def _form(item: Disclosure, noised: Sequence[str]) -> str:
    if not noised or item.slot == SCALARS:
        return item.form
    return "noised" if item.form == "plain" else f"noised+{item.form}"


def _promise(guarantee: Guarantee) -> Record:
    return {
        "client": guarantee.client,
        "protects": guarantee.release.protects,
        "delta": guarantee.release.delta,
        "prv": finite(guarantee.spent("prv")),
        "rdp": finite(guarantee.spent("rdp")),
        "text": guarantee.text,
    }


@dataclass(frozen=True)
class Summary:
    """One job's ledger, added up.

    Attributes:
        rows: Exchange, slot, form, bytes of one client's reply (the mean), replies of all clients.
        guarantees: As the last record has them.
    """

    rows: tuple[tuple[str, str, str, float, int], ...]
    guarantees: tuple[Mapping[str, Any], ...]


def summary(lines: Iterable[Record]) -> Summary:
    """Return a ledger, added up by exchange, slot and form."""
    total: dict[tuple[str, str, str], list[int]] = {}
    promises: list[Mapping[str, Any]] = []
    for line in lines:
        promises += line.get("guarantees", ())
        for left in line.get("left", ()):
            key = (line["exchange"], left["slot"], left["form"])
            total.setdefault(key, []).extend(left["bytes"])
    rows = [(*key, sum(sizes) / len(sizes), len(sizes)) for key, sizes in total.items() if sizes]
    return Summary(tuple(rows), tuple(promises))


def card(folder: Path | str) -> list[str]:
    """What a model card says of a job's privacy, as lines of Markdown; none without a ledger.

    Args:
        folder: Folder of one job, which has its `ledger.jsonl`.
    """
    text = summary(read_lines(Path(folder) / LEDGER))
    if not text.rows:
        return []
    lines = [
        "| exchange | what left a client | form | bytes per reply | replies |",
        "| :-- | :-- | :-- | --: | --: |",
        *(
            f"| {exchange} | {slot} | {form} | {size:,.0f} | {replies:,} |"
            for exchange, slot, form, size, replies in text.rows
        ),
        "",
    ]
    if text.guarantees:
        return [*lines, *(f"- {promise['text']}" for promise in text.guarantees)]
    return [*lines, "Differential privacy: none. No noise was put on what left the clients."]
