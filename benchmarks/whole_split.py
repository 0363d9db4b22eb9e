"""A gradient over a whole training split on a CPU, by how many numbers of inputs pass at a time.

    python benchmarks/whole_split.py [--quick]

FedSGD's, with one thread. The ways differ in rounding alone: the page says by how much.
"""

from __future__ import annotations

from typing import Any

import torch
from harness import Goal, interleaved, main

from unseen import Client, Model, Split
from unseen.core.row_store import keep_freed_memory
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.gradient import Backprop
from unseen.methods.local import in_parts
from unseen.methods.local.train import FullGradient

goals = [
    Goal("cifar", "FedILC's CIFAR net, parts of 2^19 numbers against 2^22", at_most=0.8),
    Goal("lenet", "LeNet, likewise", at_most=1.1),
    Goal("perceptron", "a perceptron of 390 and 390, likewise", at_most=1.1),
]
#: Net -> shape of an input, and how many of them.
NETS = {
    "fedilc-cnn": ((3, 16, 16), 10923),
    "lenet": ((1, 28, 28), 5350),
    "mlp(widths=[390, 390])": ((392,), 21400),
}
#: Exponents of two: the part that is taken, one that would stay in more caches, and a GPU's.
SIZES = (19, 17, 22)


class Gradient:
    """The gradient over one client's split, in parts that hold 2^`size` numbers."""

    def __init__(self, net: str, size: int, rows: int) -> None:
        shape, draws = NETS[net][0], keyed("rows")
        x, y = torch.rand(rows, *shape, generator=draws), torch.arange(rows) % 10
        module = build(net, shape, 10, keyed("net"))
        if len(shape) == 3:
            module = module.to(memory_format=torch.channels_last)
        self.model, self.size = Model(module, "cpu", shape), size
        self.client, self.local = Client("a", Split(x, y), None, 10), FullGradient(Backprop())
        self.row = torch.zeros(0)

    def __call__(self) -> None:
        in_parts.LARGE_ON_CPU = 2**self.size
        inbox = {"model": self.model.vector}
        reply, _ = self.local(self.model, inbox, self.client, {}, Turn(0, 0, 1, "train", "a"))
        self.row = reply.rows["model"].clone()


def run(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every study does: else fresh pages are what is measured
    before = in_parts.LARGE_ON_CPU
    measured, values, apart = [], {}, 0.0
    for net, key in zip(NETS, ("cifar", "lenet", "perceptron"), strict=True):
        rows = NETS[net][1] // (8 if quick else 1)
        ways = {f"2^{size} numbers": Gradient(net, size, rows) for size in SIZES}
        timings = interleaved(ways, repeats=3 if quick else 9)
        measured += timings.rows(f"{net}, {rows:,} examples", f"2^{SIZES[-1]} numbers")
        ours, theirs = (f"2^{size} numbers" for size in (SIZES[0], SIZES[-1]))
        values[key] = timings.ratio(ours, theirs, cpu=True).list()
        one, *others = (way.row for way in ways.values())
        apart = max(apart, *(float((row - one).norm() / one.norm()) for row in others))
    in_parts.LARGE_ON_CPU = before
    note = f"Largest distance between the ways' gradients, over their length: {apart:.1e}."
    return {"measured": measured, "goals": values, "notes": [note]}


if __name__ == "__main__":
    main(__file__)
