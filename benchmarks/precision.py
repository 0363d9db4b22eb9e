"""bfloat16 against float32: seconds of a step, and what it costs in accuracy.

    python benchmarks/precision.py [--quick]

Only the products of layers are computed in bfloat16 (autocast); parameters, gradients, moments and
all that is sent stay float32. Accuracies are those of a study of rotated digits, at the same seeds.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from harness import Goal, interleaved, main
from published import handwritten

from unseen import Client, InProcess, Model, Split, Study, Training, method, start
from unseen.core.optimiser import SGD
from unseen.core.round import play_round
from unseen.core.turn import keyed
from unseen.data.networks import build

goals: list[Goal] = []
NETS = {
    "lenet": (1, 28, 28),
    "mnist-cnn": (1, 28, 28),
    "mlp(widths=[390, 390])": (1, 28, 28),
    "resnet18": (3, 64, 64),
}


class Steps:
    """Some steps of one client."""

    def __init__(self, net: str, precision: Any, batch: int) -> None:
        shape, steps = NETS[net], 4
        x = torch.from_numpy(handwritten(batch * steps, shape[1])[0]).unsqueeze(1)
        y = torch.arange(len(x)) % 10
        module = build(net, shape, 10, keyed("net"))
        if not net.startswith("mlp"):
            module = module.to(memory_format=torch.channels_last)
        client = Client("a", Split(x.expand(-1, *shape), y), None, 10)
        model = Model(module, "cpu", shape, precision)
        self.method = method("fedavg", Training(SGD(0.01, momentum=0.5), batch_size=batch))
        self.backend = InProcess(model, {"a": client})
        self.state = start(self.method, model, ["a"], 0)

    def __call__(self) -> None:
        self.state, _ = play_round(self.method, self.state, self.backend, ["a"], 10**6)


def accuracies(precision: str, quick: bool) -> dict[str, list[float]]:
    """Accuracy per cell of a small study, by method."""
    study = Study(
        dataset="rotated-digits",
        model="mnist-cnn(channels=[8, 16], hidden=32)",
        methods=("fedavg", "ppdg(lam=0.2)"),
        targets=("0",) if quick else ("0", "45", "75"),
        seeds=1 if quick else 3,
        rounds=2 if quick else 20,
        precision=precision,
        training={"optimiser": "sgd(lr=0.1, momentum=0.9)"},
    )
    results = study.run(jobs=1 if quick else 2)
    found: dict[str, list[float]] = {}
    for job, _, target in results.jobs():
        found.setdefault(job.method, []).append(target[-1]["accuracy"])
    return found


def run(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    measured = []
    for net in ("lenet",) if quick else NETS:
        batch = 16 if net == "resnet18" else 64
        ways = {p: Steps(net, p, batch) for p in ("float32", "bf16")}
        timings = interleaved(ways, repeats=3 if quick else 7)
        measured += [
            row | {"table": "Four steps, one thread", "batch": batch}
            for row in timings.rows(net, "float32")
        ]
    cost = {p: accuracies(p, quick) for p in ("float32", "bf16")}
    for name, values in cost["float32"].items():
        others = cost["bf16"][name]
        differences = [b - a for a, b in zip(values, others, strict=True)]
        measured.append(
            {
                "table": "Accuracy on rotated digits, percent",
                "method": name,
                "cells": len(values),
                "float32": 100 * statistics.mean(values),
                "bf16": 100 * statistics.mean(others),
                "mean difference": 100 * statistics.mean(differences),
                "its standard error": (
                    100 * statistics.stdev(differences) / len(differences) ** 0.5
                    if len(differences) > 1
                    else None
                ),
                "largest difference": 100 * max(map(abs, differences)),
            }
        )
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return {
        "measured": measured,
        "goals": {},
        "notes": [f"This processor {'has' if native else 'lacks'} bfloat16 instructions."],
    }


if __name__ == "__main__":
    main(__file__)
