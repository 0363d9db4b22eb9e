"""On a GPU: 90 LeNets as one batch of models against one after the other, and a table's minutes.

    [UNSEEN_BENCH_DEVICE=cpu] python benchmarks/gpu.py [--quick]

Six targets of five clients with three seeds each, batches of 64, data on the device. Both ways make
the same steps; a round ends with FedAvg per federation. A third way has the batch's convolutions as
grouped ones, which `vmap` makes of them, and not as products. Then nets with BatchNorm, Dropout and
flipped images, and PPDG's Table 4 as a stacked study,
from files to table, where UNSEEN_DATA names MNIST. Nothing is measured without a GPU. TF32 is off,
as it must be where signs of inner products decide.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from harness import Goal, interleaved, main
from published import handwritten

from unseen import Client, InProcess, Model, Split, Study, Training, method, start
from unseen.core.optimiser import SGD
from unseen.core.round import play_round
from unseen.core.rows import DenseRows, gram
from unseen.core.turn import keyed
from unseen.core.vector import stack
from unseen.data.digits import rotate
from unseen.data.networks import build
from unseen.engine import batch_layers
from unseen.engine.batch_layers import by_products
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked
from unseen.methods.images.augment import build as build_augment

#: Nets with layers that look at a batch or draw, and what changes their images.
LAYERS = (("bn-cnn", ""), ("bn-cnn", "flip"), ("mlp(widths=[64], dropout=0.3)", ""))
ANGLES = (0, 15, 30, 45, 60, 75)
goals = [
    Goal("stacked", "90 LeNets stacked, images per second over one by one: ≥ 10×", at_least=10),
    Goal("table4", "PPDG's Table 4 (8 methods, 6 targets, 3 seeds), minutes", at_most=15),
]


@dataclass
class Run:
    """One federation of the sweep."""

    method: Any
    state: Any
    backend: Any
    clients: list[str]

    def round(self) -> None:
        self.state, _ = play_round(self.method, self.state, self.backend, self.clients, 10**6)


class Sweep:
    """Federations that play round by round: all as one batch, or one client after the other.

    Args:
        device: Where they train.
        targets, seeds, images: How many; images per client.
        how: "one by one", "stacked", "grouped", or "graph".
        net: The network.
        augment: What changes its images.
    """

    def __init__(
        self, device: str, targets: int, seeds: int, images: int, how: str,
        net: str = "lenet", augment: str = "",
    ) -> None:  # fmt: skip
        pixels, labels = handwritten(images, 28)
        x, y = torch.from_numpy(pixels), torch.as_tensor(labels).long()
        turned = {str(a): rotate(x, a).unsqueeze(1) for a in ANGLES}
        network = build(net, (1, 28, 28), 10, keyed("net"))
        self.model = Model(network, device, (1, 28, 28))
        clients = {a: Client(a, Split(t.to(device), y.to(device)), None, 10)
                   for a, t in turned.items()}  # fmt: skip
        changes = build_augment(augment) if augment else None
        recipe = Training(SGD(0.01, momentum=0.5), batch_size=64, augment=changes)
        chosen = method("fedavg", recipe)
        self.runs: list[Run] = []
        self.meeting = Meeting(Trainer(graph=how == "graph")) if how != "one by one" else None
        for target in [str(a) for a in ANGLES][:targets]:
            roster = {a: c for a, c in clients.items() if a != target}
            for seed in range(seeds):
                state = start(chosen, self.model, list(roster), seed)
                backend: Any = (
                    InProcess(self.model, roster)
                    if self.meeting is None
                    else Stacked(self.model, roster, trainer=self.meeting, always=True)
                )
                self.runs.append(Run(chosen, state, backend, list(roster)))
        self.images = 5 * images * len(self.runs)
        self.products = by_products if how != "grouped" else lambda module, device: {}

    def __call__(self) -> None:
        if self.meeting is not None:
            with patch.object(batch_layers, "by_products", self.products):
                self.meeting.hold([run.round for run in self.runs])
        else:
            for run in self.runs:
                run.round()
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()


def products(device: str, clients: int, size: int) -> torch.Tensor:
    matrix = stack(clients, torch.empty(size, device=device))
    return matrix.normal_(generator=torch.Generator(device).manual_seed(0))


def agreement(device: str, clients: int, size: int) -> float:
    """Largest difference of inner products from those of a CPU, in units of the largest."""
    matrix = products("cpu", clients, size)
    expected, found = gram(matrix), gram(matrix.to(device))
    return float((found - expected).abs().max() / expected.abs().max())


def minutes(device: str, quick: bool) -> float:
    """Minutes of a whole table as a stacked study."""
    changes: dict[str, Any] = {"device": device, "stacked": 90}
    changes |= {"rounds": 1, "seeds": 1, "targets": ["0"]} if quick else {}
    study = Study.read("digits" if quick else "ppdg/table4", changes)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of methods that train one model after the other
        study.run(folder)
    return (time.perf_counter() - begun) / 60


def run(quick: bool) -> dict[str, Any]:
    device = os.environ.get("UNSEEN_BENCH_DEVICE", "cuda")  # on a CPU it proves that it runs
    if device == "cuda" and not torch.cuda.is_available():
        return {"measured": [], "goals": {}, "notes": ["There is no GPU here: not measured."]}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    size = (2, 1, 128) if quick else (6, 3, 1000)
    names = ["one by one", "stacked"] + ["grouped", "graph"] * (device == "cuda")
    ways = {name: Sweep(device, *size, name) for name in names}
    timings = interleaved(ways, repeats=1 if quick else 5)
    rows = timings.rows(f"{5 * size[0] * size[1]} LeNets on {device}", "one by one")
    for row in rows:
        row["images_per_s"] = ways["stacked"].images / (row["ms"] / 1000)
    for net, augment in LAYERS:
        both = {how: Sweep(device, *size, how, net, augment) for how in names[:2]}
        title = f"{5 * size[0] * size[1]} of {net}, {augment or 'images as they are'}, on {device}"
        rows += interleaved(both, repeats=1 if quick else 3).rows(title, "one by one")
    first, last = ways["one by one"].runs, ways[names[-1]].runs
    apart = max(
        float((a.state.inbox["model"] - b.state.inbox["model"]).abs().max())
        for a, b in zip(first, last, strict=True)
    )
    ours = [name for name in names[1:] if name != "grouped"]
    best = max(ours, key=lambda name: timings.ratio("one by one", name).median)
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
    goal: dict[str, Any] = {"stacked": timings.ratio("one by one", best).list()}
    if quick or (device == "cuda" and os.environ.get("UNSEEN_DATA")):
        goal["table4"] = minutes(device, quick)
    return {
        "measured": rows,
        "goals": {} if quick else goal,
        "notes": [
            f"Largest difference of a parameter between the ways: {apart:.1e}.",
            "Largest difference of inner products from the CPU's, in units of the largest: "
            f"{agreement(device, 5, 10**6):.1e}.",
        ],
    }


if __name__ == "__main__":
    main(__file__)
