"""Federations behind channels, and what scans a process's memory, for the tests of this folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sites import federation
from torch import Tensor, nn

from unseen import InProcess, Model, Training, method, start
from unseen.apply import Add
from unseen.client import Client
from unseen.exchange import Exchange, Method, Outcome, Reply, Slot, State, Turn
from unseen.metrics import plain
from unseen.privacy import channel, ckks
from unseen.round import play


def network(inputs: int = 6, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes)
    )


def convolutions(classes: int = 3) -> nn.Module:
    """6,000 parameters: more than one ciphertext holds."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 20), nn.ReLU(), nn.Linear(20, classes),
    )  # fmt: skip


def trained(
    expression: str,
    clients: Mapping[str, Client] | int,
    over: str = "clear",
    server: Any = "clear",
    rounds: int = 3,
    training: Training | None = None,
    module: Any = network,
    fraction: float | int = 1.0,
) -> tuple[State, list[Outcome], Any]:
    """The state, the outcomes and the backend after a few rounds behind a channel."""
    clients = federation(clients) if isinstance(clients, int) else clients
    made = method(expression, training or Training(batch_size=8))
    model = Model(module(), shape=tuple(next(iter(clients.values())).split("train").x.shape[1:]))
    state = start(made, model, sorted(clients), 0)
    backend: Any = InProcess(model, clients)
    kind = channel.read(over, server)
    if not isinstance(kind, channel.Clear):
        backend = channel.wrap(kind, server, made, backend, sorted(clients))
        made = backend.method(made)
    state, outcomes = play(made, state, backend, sorted(clients), rounds, fraction)
    return state, outcomes, backend


def difference(found: Tensor, expected: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((found - expected).norm() / expected.norm())


def pieces(content: bytes | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Every eight bytes in a row, as a sorted table of numbers; runs of few bits are left out."""
    raw = np.frombuffer(bytes(content), np.uint8)
    words = raw[: len(raw) // 8 * 8].view(np.uint64)
    return np.unique(words[(words >> np.uint64(32) != 0) & (words & np.uint64(0xFFFFFFFF) != 0)])


def memory(process: int) -> Iterable[bytes]:
    """What a process can write to, region by region, each with a little of the next."""
    regions = Path(f"/proc/{process}/maps").read_text().splitlines()
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as file:
        for line in regions:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not found or "[vvar" in line:
                continue
            begin, end = int(found[1], 16), int(found[2], 16)
            while begin < end:
                size = min(end - begin, 1 << 26)
                try:
                    file.seek(begin)
                    content = file.read(size)
                    pages = np.frombuffer(content, np.uint8).reshape(-1, 4096)
                    yield pages[pages.any(1)].tobytes()  # most of it was never written to
                except OSError:
                    break
                begin += size


def holds(contents: Iterable[bytes], words: np.ndarray[Any, Any], run: int) -> bool:
    """Whether `run` of the words stand one after the other anywhere, at any alignment."""
    table, low = np.zeros(1 << 24, bool), np.uint64(0xFFFFFF)
    table[words & low] = True
    for content in contents:
        raw = np.frombuffer(content, np.uint8)
        for shift in range(8):
            seen = raw[shift : shift + (len(raw) - shift) // 8 * 8].view(np.uint64)
            likely = np.flatnonzero(table[seen & low])
            nearest = np.searchsorted(words, seen[likely]).clip(max=len(words) - 1)
            at = likely[words[nearest] == seen[likely]]
            if len(at) >= run and bool((at[run - 1 :] - at[: len(at) - run + 1] == run - 1).any()):
                return True
    return False


class Stack:
    """Rows [K, P] at K sites with encrypted messages, and no training: for one rule."""

    def __init__(self, rows: Tensor, rule: Any, gram: str = "exact", keys: Any = None) -> None:
        self.secret, self.public = keys or ckks.make_keys()
        self.names = [f"site-{k}" for k in range(len(rows))]
        slot = Slot(rule, apply=Add())
        self.exchange = Exchange("train", local=None, slots={"model": slot})  # type: ignore[arg-type]
        self.method = Method("stack", (self.exchange,), (), plain)
        kind = channel.CKKS(gram)
        self.server = ckks.Server(self.method, self.public, kind)
        self.sites = {n: ckks.Site(self.method, n, self.secret, kind) for n in self.names}
        self.turn = Turn(0, 0, 3, "train", roster=tuple(self.names))
        self.questions: list[dict[str, bytes]] = []
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """A new exchange in which the sites hold these rows."""
        hello = self.server.hello(self.exchange, self.turn, self.names)
        self.messages = {
            name: self.sites[name].seal(
                self.exchange, Reply({"model": row}), {}, replace(self.turn, client=name), hello
            )["model"]
            for name, row in zip(self.names, rows, strict=True)
        }

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        self.questions.append(dict(questions))
        return {name: self.sites[name].answer(q) for name, q in questions.items()}

    def rows(self) -> ckks.EncryptedRows:
        sealed = [self.server.opened(n, {"model": self.messages[n]})["model"] for n in self.names]
        return self.server.rows("model", sealed, self.ask)

    def combine(self, rule: Any, table: Any = None, layout: Any = None) -> Any:
        rows = self.rows()
        state = rule.init(*rows.shape, layout)
        return rule(rows, table or {}, state, torch.Generator().manual_seed(5))
