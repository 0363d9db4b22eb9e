"""The ledger: what left each client in each exchange, in which form, and ε so far."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core import Backend, Inbox, Rows, Turn
from unseen.core.added_rows import Added
from unseen.core.exchange import Disclosure, Exchange, Method, Reply
from unseen.core.record_lines import LEDGER, Record, read_lines
from unseen.core.row_codes import widths
from unseen.privacy.accounting import Guarantee, Release, releases
from unseen.privacy.dp import Guarded, NoisedRows, mechanism

#: What the scalars of a reply are called together.
SCALARS = "scalars"
#: Bytes of one scalar: a float64.
NUMBER = 8
#: More examples than that no client has; who says so is broken.
LARGEST = 2**53


@dataclass(frozen=True)
class _Call:
    """One exchange as it went out."""

    exchange: Exchange
    turn: Turn
    names: tuple[str, ...]
    counts: tuple[int, ...]
    items: tuple[Disclosure, ...]
    present: int


class Metered(Backend):
    """A backend whose replies are measured on the way.

    A channel that changes what leaves a client reports it itself, see `Backend.disclosed`.
    """

    def __init__(self, backend: Backend, method: Method) -> None:
        self.backend, self.method = backend, method
        self.model, self.clients, self.memories = backend.model, backend.clients, backend.memories
        self.calls: list[_Call] = []
        self.spending: dict[tuple[str, str], Counter[Release]] = {}
        #: How many examples each client has, and replies that came before it said so.
        self.sizes: dict[str, int] = {}
        self.uncounted: Counter[tuple[str, str]] = Counter()

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        self._settle()
        replies = self.backend.map(exchange, inbox, clients, turn)
        pairs = list(zip(clients, replies, strict=True))
        sizes = zip(pairs, row_bytes(replies), strict=True)
        items = tuple(item for pair, own in sizes for item in measured(*pair, own))
        counts = tuple(self._count(name, reply) for name, reply in pairs)
        here = sum(not reply.fault for reply in replies)
        self.calls.append(_Call(exchange, turn, tuple(clients), counts, items, here))
        return replies

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        # Asked again without those who stopped answering meanwhile.
        self.calls[-1] = replace(self.calls[-1], present=len(replies))
        return self.backend.rows(slot, replies, reference)

    def lines(self) -> list[Record]:
        """Return the records of all exchanges since the last call."""
        self._settle()
        calls, self.calls = self.calls, []
        return [self._line(call) for call in calls]

    def resume(self, folder: Path, roster: Sequence[str]) -> None:
        """Count what an earlier run of the same job spent."""
        exchanges = {exchange.name: exchange for exchange in self.method.exchanges}
        for line in read_lines(folder / LEDGER):
            if exchange := exchanges.get(line.get("exchange", "")):
                turn = Turn(0, line["round"], 0, exchange.name, roster=tuple(roster))
                counts = line.get("examples", [0] * len(line["clients"]))
                present = line.get("present", len(line["clients"]))
                self._spend(exchange, turn, line["clients"], counts, present)

    def closing(self) -> list[Record]:
        """Return the last record: what each client was promised, if anything."""
        guarantees = []
        for (client, protects), counter in sorted(self.spending.items()):
            promise = Guarantee(client, tuple(counter.items()))
            bounds = {name: finite(promise.epsilon(name)) for name in ("prv", "rdp")}
            line = {"client": client, "protects": protects, "delta": promise.release.delta}
            guarantees.append({**line, **bounds, "text": promise.text})
        return [{"guarantees": guarantees}] if guarantees else []

    def _count(self, name: str, reply: Reply) -> int:
        """Return how many examples a client says it has, or is known to have; 0 if nobody says.

        A reply that no rule will use, since it is broken, has left its client all the same.
        """
        reported = torch.as_tensor(reply.scalars.get("examples", 0), dtype=torch.float64)
        if reported.numel() == 1 and 1 <= float(reported) <= LARGEST:
            return int(reported)
        client = self.backend.clients.get(name)
        return len(client.train) if client is not None and client.train is not None else 0

    def _settle(self) -> None:
        """Let a channel say what left in the last exchange, now that its rules have run."""
        if self.calls and (disclosed := tuple(self.backend.disclosed())):
            last = self.calls[-1]
            reported = any(item.slot == SCALARS for item in disclosed)
            scalars = () if reported else tuple(item for item in last.items if item.slot == SCALARS)
            self.calls[-1] = replace(last, items=(*disclosed, *scalars))

    def _line(self, call: _Call) -> Record:
        noised = self._spend(call.exchange, call.turn, call.names, call.counts, call.present)
        slots: dict[tuple[str, str], Counter[str]] = {}
        for item in call.items:
            form = item.form
            if noised and item.slot != SCALARS:
                form = "noised" if form == "plain" else f"noised+{form}"
            slots.setdefault((item.slot, form), Counter())[item.client] += item.bytes
        names, items = list(call.names), []
        for (slot, form), sizes in slots.items():
            items.append({"slot": slot, "form": form, "bytes": [sizes[n] for n in names]})
        head = {"round": call.turn.round, "exchange": call.exchange.name}
        line: Record = {**head, "clients": names, "left": items}
        if noised:
            line["examples"], line["present"] = list(call.counts), call.present
            line["epsilon"] = {p: [self._so_far(name, p) for name in names] for p in noised}
        return line

    def _spend(
        self, exchange: Exchange, turn: Turn, names: Sequence[str], counts: Sequence[int],
        present: int,
    ) -> list[str]:  # fmt: skip
        """Count an exchange, and return what its noise protects."""
        noised = mechanism(exchange.local, NoisedRows)
        private = noised is not None or mechanism(exchange.local, Guarded) is not None
        planned = noised.count(turn) if noised is not None else len(names)
        protects: dict[str, None] = {}
        for name, count in zip(names, counts, strict=True):
            size = self.sizes[name] = count or self.sizes.get(name, 0)
            # A reply that did not say its number of examples counts as soon as another one does.
            late = self.uncounted.pop((name, exchange.name), 0) if size else 0
            for release in releases(exchange, size, present, planned) if private else ():
                again = 1 + (late if release.protects == "example" else 0)
                self.spending.setdefault((name, release.protects), Counter())[release] += again
                protects[release.protects] = None
            if not size:
                self.uncounted[name, exchange.name] += 1
        return list(protects)

    def _so_far(self, client: str, protects: str) -> float | None:
        """Return ε; None until the client says how many examples it has."""
        counter = self.spending.get((client, protects), Counter())
        return finite(Guarantee(client, tuple(counter.items())).epsilon("rdp")) if counter else None


def row_bytes(replies: Sequence[Reply]) -> list[dict[str, int]]:
    """Return the bytes of each reply's rows as they stand, by slot."""
    sizes: list[dict[str, int]] = [{} for _ in replies]
    for slot in dict.fromkeys(slot for reply in replies for slot in reply.rows):
        rows: list[object] = [reply.rows.get(slot) for reply in replies]
        tensors = {i: row for i, row in enumerate(rows) if isinstance(row, Tensor)}
        for i, size in zip(tensors, widths(list(tensors.values())), strict=True):
            sizes[i][slot] = size
        added = {i: row.bytes for i, row in enumerate(rows) if isinstance(row, Added)}
        for i, size in added.items():
            sizes[i][slot] = size
    return sizes


def measured(client: str, reply: Reply, sizes: Mapping[str, int]) -> list[Disclosure]:
    """Return the bytes of a reply as it stands: every row, and all scalars together."""
    rows = [Disclosure(client, name, "plain", size) for name, size in sizes.items() if size]
    numbers = sum(
        1 if isinstance(value, float | int) else torch.as_tensor(value).numel()
        for value in reply.scalars.values()
    )
    return [*rows, Disclosure(client, SCALARS, "plain", NUMBER * numbers)] if numbers else rows


def before_training(clients: Iterable[str], statistics: Tensor) -> list[Record]:
    """Return the record of what is exchanged before round 0."""
    names, size = sorted(clients), statistics.numel() * statistics.element_size()
    item = {"slot": "statistics", "form": "plain", "bytes": [size] * len(names)}
    return [{"round": 0, "exchange": "statistics", "clients": names, "left": [item]}]


def finite(value: float) -> float | None:
    """Return a number of five digits, or None for infinity, which JSON lacks."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


@dataclass(frozen=True)
class Summary:
    """One job's ledger, added up.

    A row is exchange, slot, form, mean bytes of one client's reply, and replies of all clients.
    """

    rows: tuple[tuple[str, str, str, float, int], ...]
    guarantees: tuple[Mapping[str, Any], ...]


def summary(lines: Iterable[Record]) -> Summary:
    """Return a ledger, added up by exchange, slot and form."""
    total: dict[tuple[str, str, str], list[int]] = {}
    promises: list[Mapping[str, Any]] = []
    for line in lines:
        promises += line.get("guarantees", ())
        for item in line.get("left", ()):
            key = (line["exchange"], item["slot"], item["form"])
            total.setdefault(key, []).extend(item["bytes"])
    rows = [(*key, sum(sizes) / len(sizes), len(sizes)) for key, sizes in total.items() if sizes]
    return Summary(tuple(rows), tuple(promises))


def card(folder: Path | str) -> list[str]:
    """Return what a model card says of a job's privacy."""
    text = summary(read_lines(Path(folder) / LEDGER))
    if not text.rows:
        return []
    head = ("exchange | what left a client | form | bytes per reply | replies",
            ":-- | :-- | :-- | --: | --:")  # fmt: skip
    rows = (f"{e} | {slot} | {form} | {size:,.0f} | {n:,}" for e, slot, form, size, n in text.rows)
    none = "Differential privacy: none. No noise was put on what left the clients."
    promises = [f"- {promise['text']}" for promise in text.guarantees] or [none]
    return [*(f"| {row} |" for row in (*head, *rows)), "", *promises]
