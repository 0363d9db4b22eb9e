"""A server of region servers, each a process of its own, against one server that holds all rows.

    python benchmarks/hierarchy.py [--quick]

K clients in about √K regions. A region's server applies the rule to its clients' rows and sends one
vector and its number of examples up through a pipe; the top server applies the rule to those. Two
worker processes serve the regions in turn; each makes the rows where it needs them, which is not
timed. For the mean the result is that of all rows, up to rounding; for PPDG it is another rule.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from harness import cpu_seconds, forget_peak, fresh, main, status

from unseen.core.turn import keyed
from unseen.core.vector import stack
from unseen.methods.combine import PPDG, Combine, Mean

goals: list[Any] = []
RULES: dict[str, Combine] = {
    "mean": Mean("examples"),
    "PPDG": PPDG(lam=0.1, order="fixed", prior=Mean("examples")),
}
WORKERS = 2


def examples(client: int) -> float:
    """Examples of a client: from 10 to 49, so that weights matter."""
    return float(10 + client % 40)


def rows(clients: Sequence[int], size: int) -> torch.Tensor:
    """Updates [K, P] of these clients: chance, and a small part that is common to all."""
    matrix = stack(len(clients), torch.empty(size))
    common = torch.randn(size, generator=keyed("common"))
    for client, row in zip(clients, matrix, strict=True):
        row.normal_(generator=keyed(f"row {client}")).add_(common, alpha=0.05)
    return matrix


def combined(rule: str, matrix: torch.Tensor, counts: Sequence[float]) -> torch.Tensor:
    """The rule's vector [P] of rows [K, P] with numbers of examples [K]."""
    chosen = RULES[rule]
    table = {"examples": torch.tensor(counts)}
    return chosen(matrix, table, chosen.init(*matrix.shape), keyed("order"))[0]


def regions(clients: int) -> list[list[int]]:
    """Clients in about √K runs of neighbours."""
    parts = torch.arange(clients).tensor_split(max(1, round(clients**0.5)))
    return [part.tolist() for part in parts]


def serve(pipe: Connection, rule: str, shares: list[list[int]], size: int) -> None:
    """The servers of some regions: one vector up for each, at last seconds and the peak."""
    torch.set_num_threads(1)
    forget_peak()
    spent = 0.0
    for clients in shares:
        matrix, counts = rows(clients, size), [examples(k) for k in clients]
        begun = cpu_seconds()
        vector = combined(rule, matrix, counts)
        pipe.send_bytes(vector.numpy().tobytes())
        pipe.send(sum(counts))
        spent += cpu_seconds() - begun
    pipe.send((spent, status("VmHWM") / 1024))


def layered(rule: str, clients: int, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """The top server's vector [P], and what the hierarchy took. CPU time is of rules and pipes."""
    shares, context = regions(clients), multiprocessing.get_context("spawn")
    forget_peak()
    begun, cpu = time.perf_counter(), 0.0
    pipes, processes = [], []
    for worker in range(WORKERS):
        here, there = context.Pipe()
        given = (there, rule, shares[worker::WORKERS], size)
        processes.append(context.Process(target=serve, args=given))
        processes[-1].start()
        pipes.append(here)
    top, counts, received = stack(len(shares), torch.empty(size)), [0.0] * len(shares), 0
    for region in range(len(shares)):
        pipe, own = pipes[region % WORKERS], time.process_time()
        sent = pipe.recv_bytes()
        top[region].copy_(torch.frombuffer(bytearray(sent), dtype=torch.float32))
        counts[region] = pipe.recv()
        received += len(sent)
        cpu += time.process_time() - own
    own = time.process_time()
    vector = combined(rule, top, counts)
    cpu += time.process_time() - own
    ends = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return vector, {
        "wall_s": time.perf_counter() - begun,
        "cpu_s": cpu + sum(spent for spent, _ in ends),
        "top_cpu_s": cpu,
        "peak_mib": max(status("VmHWM") / 1024, *(peak for _, peak in ends)),
        "received_mib": received / 2**20,
    }


def flat(rule: str, clients: int, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """One server's vector [P] of all rows, and what it took."""
    forget_peak()
    begun = time.perf_counter()
    matrix, counts = rows(range(clients), size), [examples(k) for k in range(clients)]
    own = time.process_time()
    vector = combined(rule, matrix, counts)
    cpu = time.process_time() - own
    return vector, {
        "wall_s": time.perf_counter() - begun,
        "cpu_s": cpu,
        "top_cpu_s": cpu,
        "peak_mib": status("VmHWM") / 1024,
        "received_mib": 4 * clients * size / 2**20,
    }


def both(rule: str, clients: int, size: int) -> list[dict[str, Any]]:
    """A row for the hierarchy and one for one server; `distance` is relative to one server's."""
    torch.set_num_threads(1)
    low, layers = layered(rule, clients, size)  # first: a peak here is not one server's
    whole, one = flat(rule, clients, size)
    distance = float((low - whole).norm() / whole.norm())
    about = {"K": clients, "P": size, "rule": rule}
    return [
        {**about, "way": "one server", **one, "distance": None},
        {**about, "way": f"{len(regions(clients))} regions", **layers, "distance": distance},
    ]


def run(quick: bool) -> dict[str, Any]:
    clients, size = (30, 1000) if quick else (1000, 43_960)
    measured = [row for rule in RULES for row in fresh(both, rule, clients, size)]
    note = (
        "Wall time counts making the rows and, in the hierarchy, the start of its two worker "
        "processes; CPU time is that of rules and pipes alone. The peak is that of the process "
        "that takes most, torch itself included. PPDG over regions is another rule: clients of "
        "different regions meet only as regions."
    )
    return {"measured": measured, "notes": [note]}


if __name__ == "__main__":
    main(__file__)
