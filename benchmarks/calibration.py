"""An epoch of CSAC's calibration against a plain epoch on the MNIST CNN.

    python benchmarks/calibration.py [--examples 700] [--side 16] [--batch 64] [--repeats 7]

Both are the package's own loop over the same images from the same weights, in one process and one
thread, in an order that alternates. Plain is what a FedAvg client does; calibration runs the frozen
model too, trains the projections and compares every pair of layers. Acquisition is a plain epoch
with smoothed labels, so CSAC's whole run costs less than this ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from unseen import Client, Model, Split, Training
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.csac import Calibration
from unseen.methods.gradient import Backprop
from unseen.methods.local.train import Train

VARIANTS = {
    "mmd": {},
    "mmd, logits too": {"logits": True},
    "mmd, fixed projections": {"projections": "fixed"},
    "mmd, gradient through attention": {"attention_gradient": True},
    "mse": {"metric": "mse"},
}


def digits(examples: int, side: int) -> Client:
    generator = keyed("digits")
    x = torch.rand(examples, 1, side, side, generator=generator)
    y = torch.randint(10, (examples,), generator=generator)
    return Client("site", Split(x, y), None, 10)


def seconds(local: Train, model: Model, client: Client, start: torch.Tensor) -> float:
    inbox = {"model": start, "buffers": model.buffers.clone()}
    memory = {"own.model": start, "own.buffers": model.buffers.clone()}
    model.vector.copy_(start)
    begun = time.process_time()
    local(model, inbox, client, memory, Turn(0, 1, 2, "train", "site"))
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=700)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    client = digits(options.examples, options.side)
    net = build("mnist-cnn", (1, options.side, options.side), 10, keyed("net"))
    model = Model(net.to(memory_format=torch.channels_last))
    start = model.vector.clone()
    recipe = Training(SGD(0.01, momentum=0.5), batch_size=options.batch)
    plain = Train(Backprop(), recipe)
    print(
        f"{options.examples} images of {options.side} x {options.side}, batches of "
        f"{options.batch}, {model.layout.size:,} parameters, 1 thread"
    )
    for name, settings in VARIANTS.items():
        local = Train(Calibration(recipe, **settings), recipe)
        seconds(plain, model, client, start), seconds(local, model, client, start)
        times: dict[str, list[float]] = {"plain": [], name: []}
        for repeat in range(options.repeats):
            pair = [("plain", plain), (name, local)]
            for which, train in pair if repeat % 2 else reversed(pair):
                times[which].append(seconds(train, model, client, start))
        ratios = sorted(b / a for a, b in zip(times["plain"], times[name], strict=True))
        ms, plain_ms = (1000 * statistics.median(times[which]) for which in (name, "plain"))
        print(
            f"{name}: {ms:.0f} ms an epoch against {plain_ms:.0f}; "
            f"ratio {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )


if __name__ == "__main__":
    main()
