"""Memory at the peak: a thousand small clients, and twenty-six of 25.6 million parameters.

    python benchmarks/memory.py [--quick]

Every case is a round of FedAvg and of PPDG in a fresh process, each client taking one step on one
example of 16 numbers. The large net is an embedding of which a step touches few rows, so that
memory is measured and not arithmetic. `anonymous` is memory that the system cannot take away;
pages of the mapped file are not among it. Linux only.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from harness import Goal, forget_peak, fresh, main, status
from torch import nn

goals = [
    Goal("many", "K = 1000 of 44 k parameters, GiB at the peak", at_most=8),
    Goal("large", "K = 26 of 25.6 M parameters, GiB at the peak", at_most=8),
    Goal("mapped", "the latter with rows in a file, anonymous GiB at the peak", at_most=2),
]


class Wide(nn.Module):
    """A linear classifier of 16 numbers, and as many more parameters as make `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.zeros(size - 34))
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + self.more[:2]


class Anonymous:
    """The most anonymous memory that the process has while the context is open, in GiB."""

    def __enter__(self) -> Anonymous:
        self.most, self.ends = 0.0, False
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.ends:
            self.most = max(self.most, status("RssAnon") / 2**20)
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.ends = True
        self.thread.join()


def case(clients: int, size: int, limit: int | None) -> dict[str, Any]:
    """A round of two methods; GiB and seconds."""
    from unseen import Client, InProcess, Model, Split, Training, method, start
    from unseen.core.optimiser import SGD
    from unseen.core.round import play_round
    from unseen.core.turn import keyed

    x = torch.randn(1, 16, generator=keyed("x"))
    roster = {f"{k:04}": Client(f"{k:04}", Split(x, torch.tensor([k % 2])), None, 2)
              for k in range(clients)}  # fmt: skip
    model = Model(Wide(size), shape=(16,))
    backend = InProcess(model, roster, memory_limit=limit)
    forget_peak()
    found: dict[str, Any] = {}
    with Anonymous() as anonymous:
        for name in ("fedavg", "ppdg"):
            chosen = method(name, Training(SGD(0.1), batch_size=1))
            state = start(chosen, model, sorted(roster), 0)
            begun = time.perf_counter()
            play_round(chosen, state, backend, sorted(roster), 1)
            found[f"{name}_s"] = time.perf_counter() - begun
    return {
        "K": clients,
        "P": size,
        "updates_gib": 4 * clients * size / 2**30,
        "peak_gib": status("VmHWM") / 2**20,
        "anonymous_gib": anonymous.most,
        "rows": "in a file" if backend._rows.file is not None else "in memory",
        **found,
    }


def run(quick: bool) -> dict[str, Any]:
    large = 256_000 if quick else 25_557_032
    many = fresh(case, 100 if quick else 1000, 43_960, None)
    plain = fresh(case, 26, large, None)
    mapped = fresh(case, 26, large, 0)
    values = {
        "many": many["peak_gib"],
        "large": plain["peak_gib"],
        "mapped": mapped["anonymous_gib"],
    }
    return {
        "measured": [many, plain, mapped],
        "goals": {} if quick else values,
        "notes": [
            "Pages of the mapped file count towards the peak as long as nobody else wants the "
            "memory; the system takes them back when somebody does."
        ],
    }


if __name__ == "__main__":
    main(__file__)
