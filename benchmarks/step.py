"""What a training step gains from freed memory that is kept, and from pooling before ReLU.

    python benchmarks/step.py [--quick]

The bits are the same in all ways, which is checked. Freed memory is handed back or kept by the C
library's own settings, changed before every call (glibc only).
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import Goal, interleaved, main
from published import handwritten
from torch import nn

from unseen import Client, Model, Split, Training
from unseen.core.optimiser import Adam
from unseen.core.row_store import MIB, MMAP_THRESHOLD, TRIM_THRESHOLD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.data.networks.layers import Sequential
from unseen.methods.gradient import Backprop
from unseen.methods.local.train import Train

goals: list[Goal] = []
NETS = {"lenet": (1, 28, 28), "mnist-cnn": (1, 28, 28), "resnet18": (3, 64, 64)}
#: MiB of the largest block that a step frees, up to 32: glibc moves its thresholds to it.
LARGEST = {"lenet": 3, "mnist-cnn": 7, "resnet18": 10}


def allocator(keep: bool, largest: int) -> None:
    """Keep freed memory as `keep_freed_memory` does, or hand it back by the thresholds at which
    glibc's own adjustment ends."""
    setting = ctypes.CDLL(None).mallopt
    setting(TRIM_THRESHOLD, 512 * MIB if keep else 2 * largest * MIB)
    if not setting(MMAP_THRESHOLD, 256 * MIB if keep else largest * MIB):
        setting(MMAP_THRESHOLD, 32 * MIB)  # all that an older glibc takes


def literal(module: nn.Module) -> nn.Module:
    """Layers that run as they stand."""
    for part in module.modules():
        if type(part) is Sequential:
            part.__class__ = nn.Sequential
    return module


class Steps:
    """Some steps of one client from where the last ones ended."""

    def __init__(self, net: str, keep: bool, plain: bool, steps: int) -> None:
        shape, batch = NETS[net], 16 if net == "resnet18" else 64
        pixels, labels = handwritten(1000, shape[1])
        x = torch.from_numpy(pixels).unsqueeze(1).expand(-1, *shape)
        y = torch.as_tensor(labels).long()
        module = build(net, shape, 10, keyed("net")).to(memory_format=torch.channels_last)
        self.model = Model(literal(module) if plain else module, "cpu", shape)
        self.client, self.keep = Client("a", Split(x.contiguous(), y), None, 10), keep
        self.faults: list[float] = []
        self.largest = LARGEST[net]
        self.train = Train(Backprop(), Training(Adam(), epochs=None, steps=steps, batch_size=batch))
        self.calls = 0

    def __call__(self) -> None:
        allocator(self.keep, self.largest)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        turn = Turn(0, self.calls, 10**6, "train", "a")
        self.train(self.model, {"model": self.model.vector}, self.client, {}, turn)
        self.calls += 1
        found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        self.faults.append(found / (self.train.training.steps or 1))


def run(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    measured, notes = [], []
    for net in ("lenet",) if quick else NETS:
        steps = 2 if quick else 10
        make: Callable[..., Steps] = partial(Steps, net, steps=steps)
        ways = {
            "as torch has it": make(keep=False, plain=True),
            "memory kept": make(keep=True, plain=True),
            "pooling first": make(keep=False, plain=False),
            "both": make(keep=True, plain=False),
        }
        timings = interleaved(ways, repeats=3 if quick or net == "resnet18" else 7)
        for row in timings.rows(f"{net}, {steps} steps", "as torch has it"):
            faults = sorted(ways[row["way"]].faults)
            measured.append(row | {"page faults per step": faults[len(faults) // 2]})
        vectors = [way.model.vector for way in ways.values()]
        same = all(torch.equal(v, vectors[0]) for v in vectors[1:])
        notes.append(f"{net}: the ways' parameters are {'equal' if same else '**not** equal'}.")
    return {"measured": measured, "goals": {}, "notes": notes}


if __name__ == "__main__":
    main(__file__)
