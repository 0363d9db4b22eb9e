"""How a round's time, memory and bytes grow with clients, parameters, and groups of clients.

    python benchmarks/scaling.py [--quick]

Simulation on one core: every client takes one step of a small net, or none where only the server's
part is measured; all of them each round, or a sample of a hundred. The last table is of the groups
in docs/performance.md: a Gram rule in each group of clients, and the same rule over the groups'
results.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from harness import Goal, forget_peak, fresh, interleaved, main, status

from unseen.core.rows import DenseRows, gram
from unseen.core.turn import keyed
from unseen.core.vector import stack
from unseen.methods.combine import PPDG

goals: list[Goal] = []


#: How many clients of a large roster take part in a round.
SAMPLE = 100


def played(clients: int, width: int, name: str, rounds: int, share: int = 0) -> dict[str, Any]:
    """Seconds and memory of a round: `clients` clients, a perceptron of `width` units.

    share: how many of the clients take part in each round; 0 for all of them.
    """
    from unseen import Client, InProcess, Model, Split, Training, method, start
    from unseen.core.optimiser import SGD
    from unseen.core.round import play_round
    from unseen.data.networks import build
    from unseen.studies.execution.job import traffic

    generator = keyed("x")
    roster = {}
    for k in range(clients):
        x = torch.randn(32, 64, generator=generator)
        roster[f"{k:04}"] = Client(f"{k:04}", Split(x, (x[:, 0] > 0).long()), None, 2)
    model = Model(build(f"mlp(widths=[{width}])", (64,), 2, keyed("net")), shape=(64,))
    backend, names = InProcess(model, roster), sorted(roster)
    chosen = method(name, Training(SGD(0.1), batch_size=32))
    state = start(chosen, model, names, 0)
    forget_peak()
    before, seconds = status("VmRSS"), []
    for _ in range(rounds + 1):
        begun = time.process_time()
        state, _ = play_round(chosen, state, backend, names, rounds + 1, share or 1.0)
        seconds.append(time.process_time() - begun)
    down, up = next(iter(traffic(chosen, state.inbox).values()))
    P = len(model.vector)
    active = share or clients
    whole = f"A round of one step of {SAMPLE} clients, drawn from K, one core"
    return {
        "table": whole if share else "A round of one step per client, one core",
        "method": name,
        "K": clients,
        "P": P,
        "cpu_ms": 1000 * sorted(seconds[1:])[len(seconds[1:]) // 2],
        "cpu_us_per_client": 1e6 * sorted(seconds[1:])[len(seconds[1:]) // 2] / active,
        "memory_mib": (status("VmHWM") - before) / 1024,
        "updates_mib": 4 * active * P / 2**20,
        "bytes_per_client": down + up,
        "mib_per_round": active * (down + up) / 2**20,
    }


def random_rows(clients: int, size: int) -> torch.Tensor:
    matrix = stack(clients, torch.empty(size))
    common = torch.randn(size, generator=keyed("common"))
    for k, row in enumerate(matrix):
        row.normal_(generator=keyed(f"row {k}")).add_(common, alpha=0.05)
    return matrix


def grouped(matrix: torch.Tensor, rule: PPDG, groups: int) -> torch.Tensor:
    """The rule inside each of `groups` runs of clients, then over the groups' results."""
    parts = []
    for rows in matrix.tensor_split(groups):
        parts.append(rule(rows, {}, rule.init(*rows.shape), keyed("order"))[0])
    top = stack(len(parts), parts[0])
    for row, part in zip(top, parts, strict=True):
        row.copy_(part)
    return rule(top, {}, rule.init(*top.shape), keyed("order"))[0]


def server(clients: int, size: int) -> list[dict[str, Any]]:
    """The parts of a Gram rule, and the rule in groups of about √K."""
    torch.set_num_threads(1)
    matrix, rule = random_rows(clients, size), PPDG(lam=0.1, order="fixed")
    state, table = rule.init(clients, size), {}
    G = gram(matrix)
    checked = rule.checked(table, clients)
    groups = max(1, round(clients**0.5))
    whole = rule(matrix, table, state, keyed("order"))[0]
    sketch = grouped(matrix, rule, groups)
    mean = matrix.mean(0)
    weights = torch.full((clients,), 1 / clients)
    ways = {
        "mean": lambda: DenseRows(matrix).linear(weights),
        "inner products": lambda: gram(matrix),
        "coefficients": lambda: rule.weights(G, checked, state, keyed("order")),
        "PPDG": lambda: rule(matrix, table, state, keyed("order")),
        f"PPDG in {groups} groups": lambda: grouped(matrix, rule, groups),
    }
    timings = interleaved(ways, repeats=3, warm=int(clients < 1000))
    norm = float(mean.norm())
    return [
        {
            "table": "The server's part, one core",
            "K": clients,
            "P": size,
            "part": name if "groups" not in name else "PPDG in groups",
            "cpu_ms": 1000 * sorted(values)[1],
            "from_whole_rule": float((sketch - whole).norm()) / norm if "groups" in name else None,
            "whole_from_mean": float((whole - mean).norm()) / norm if "groups" in name else None,
        }
        for name, values in timings.cpu.items()
    ]


def run(quick: bool) -> dict[str, Any]:
    counts = (10,) if quick else (10, 30, 100, 300, 1000)
    measured = [fresh(played, k, 64, name, 3) for name in ("fedavg", "ppdg") for k in counts]
    widths: tuple[int, ...] = () if quick else (256, 1024, 4096, 16384)
    measured += [fresh(played, 10, width, "ppdg", 3) for width in widths]
    rosters = (1000,) if quick else (100, 1000, 10_000)
    names = ("fedavg",) if quick else ("fedavg", "scaffold", "ppdg")
    measured += [fresh(played, k, 64, name, 10, SAMPLE) for name in names for k in rosters]
    for clients in counts:
        measured += fresh(server, clients, 43_960)
    return {"measured": measured, "goals": {}, "notes": []}


if __name__ == "__main__":
    main(__file__)
