"""On a GPU: the minutes of a table, and what server rules compute on the device.

    [UNSEEN_BENCH_DEVICE=cpu] python benchmarks/gpu.py [--quick]

PPDG's Table 4 from files to table, where UNSEEN_DATA names MNIST. Nothing is measured without a
GPU. TF32 is off, as it must be where signs of inner products decide.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from typing import Any

import torch
from harness import Goal, interleaved, main

from unseen import Study
from unseen.core.rows import DenseRows, gram
from unseen.core.vector import stack

goals = [
    Goal("table4", "PPDG's Table 4 (8 methods, 6 targets, 3 seeds), minutes", at_most=15),
]


def products(device: str, clients: int, size: int) -> torch.Tensor:
    matrix = stack(clients, torch.empty(size, device=device))
    return matrix.normal_(generator=torch.Generator(device).manual_seed(0))


def agreement(device: str, clients: int, size: int) -> float:
    """Largest difference of inner products from those of a CPU, in units of the largest."""
    matrix = products("cpu", clients, size)
    expected, found = gram(matrix), gram(matrix.to(device))
    return float((found - expected).abs().max() / expected.abs().max())


def minutes(device: str, quick: bool) -> float:
    """Minutes of a whole table."""
    changes: dict[str, Any] = {"device": device}
    changes |= {"rounds": 1, "seeds": 1, "targets": ["0"]} if quick else {}
    study = Study.read("digits" if quick else "ppdg/table4", changes)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        study.run(folder)
    return (time.perf_counter() - begun) / 60


def run(quick: bool) -> dict[str, Any]:
    device = os.environ.get("UNSEEN_BENCH_DEVICE", "cuda")  # on a CPU it proves that it runs
    if device == "cuda" and not torch.cuda.is_available():
        return {"measured": [], "goals": {}, "notes": ["There is no GPU here: not measured."]}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    shapes = [(5, 44_000)] if quick else [(13, 11_689_512), (13, 25_557_032)]
    for clients, width in shapes:
        matrix = products(device, clients, width)
        weights = torch.full((clients,), 1 / clients)
        times = interleaved({
            "inner products": partial(gram, matrix),
            "mean": lambda m=matrix, w=weights: float(DenseRows(m).linear(w)[0]),
        })  # fmt: skip
        rows += [
            times.row("rows", way, table="Rules on the device", K=clients, P=width)
            for way in times.wall
        ]
    goal: dict[str, Any] = {}
    if quick or (device == "cuda" and os.environ.get("UNSEEN_DATA")):
        goal["table4"] = minutes(device, quick)
    return {
        "measured": rows,
        "goals": {} if quick else goal,
        "notes": [
            "Largest difference of inner products from the CPU's, in units of the largest: "
            f"{agreement(device, 5, 10**6):.1e}.",
        ],
    }


if __name__ == "__main__":
    main(__file__)
