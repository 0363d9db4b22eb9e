"""Studies of small perceptrons: jobs a second as one batch, against one after the other.

Twelve sites of 64 rows, and of 256; six rates × two seeds of FedAvg for five rounds. Both ways make
the same steps of the same batches: eight and thirty-two a round.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from harness import Goal, interleaved, main

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked

SHAPE, CLASSES = (20,), 5
SIZES = (64, 256)
NETS = {"perceptron": "mlp(widths=[32])", "wide": "mlp(widths=[64])", "linear": "logistic"}
NAMES = {"perceptron": "perceptrons", "wide": "perceptrons of 64 units", "linear": "linear models"}
goals = [
    Goal(
        f"{key}_{rows}",
        f"federations of {name} a second, over one by one, sites of {rows} rows",
        at_least=10,
    )
    for rows in SIZES
    for key, name in NAMES.items()
]


def sites(count: int, rows: int) -> dict[str, Client]:
    """Rows of five classes at every site."""
    clients = {}
    for name in (f"site-{k:02d}" for k in range(count)):
        x = torch.randn(rows, *SHAPE, generator=keyed(name))
        clients[name] = Client(name, Split(x, x[:, :CLASSES].argmax(1)), None, CLASSES)
    return clients


def federation(net: str, clients: dict[str, Client], lr: float, seed: int, place: Any) -> None:
    """FedAvg of five rounds."""
    chosen = method("fedavg", Training(SGD(lr, momentum=0.9), epochs=4, batch_size=32))
    model = Model(build(net, SHAPE, CLASSES, keyed(str(seed))), "cpu", SHAPE)
    state = start(chosen, model, list(clients), seed)
    play(chosen, state, place(model, clients), list(clients), 5)


def one_by_one(net: str, clients: dict[str, Client], jobs: list[tuple[float, int]]) -> None:
    for job in jobs:
        federation(net, clients, *job, InProcess)


def together(net: str, clients: dict[str, Client], jobs: list[tuple[float, int]]) -> None:
    meeting = Meeting(Trainer())
    place = partial(Stacked, trainer=meeting)
    meeting.hold([partial(federation, net, clients, *job, place) for job in jobs])


def run(quick: bool) -> dict[str, Any]:
    """Time each net both ways, in turn, on one thread."""
    torch.set_num_threads(1)
    rates = (0.01, 0.1) if quick else (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)
    jobs = [(lr, seed) for lr in rates for seed in range(2)]
    rows, goal = [], {}
    for size, (key, net) in product(SIZES, NETS.items()):
        clients = sites(4 if quick else 12, size)
        ways = {
            "one by one": partial(one_by_one, net, clients, jobs),
            "together": partial(together, net, clients, jobs),
        }
        timings = interleaved(ways, repeats=1 if quick else 5)
        rows += timings.rows(f"{len(jobs)} federations of {net}, {size} rows", "one by one")
        goal[f"{key}_{size}"] = timings.ratio("one by one", "together").list()
    return {"measured": rows, "goals": {} if quick else goal, "notes": []}


if __name__ == "__main__":
    main(__file__)
