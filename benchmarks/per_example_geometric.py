"""The geometric mean over single examples of a perceptron's gradients: algebra against a loop.

    python benchmarks/per_example_geometric.py [--examples 512] [--repeats 5] [--threads 1]

The net is FedILC's for Color-MNIST, 392-390-390-1, and the inputs are non-negative with half of
them blank, as its images are. The loop differentiates one example after the other and adds its
logarithms to running sums; `stack` keeps all the gradients first, as the released code does with
those of mini-batches. All do the same work on the same data in one process, in an order that
alternates. Memory is the growth of the process's peak, each way in a fresh process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unseen import Model
from unseen.core.client import Client, Split
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.combine import WeightedGeometricMean
from unseen.methods.gradient import Backprop, Environments

TURN = Turn(seed=0, round=0, rounds=1)
RULE = WeightedGeometricMean()


def problem(examples: int) -> tuple[Model, Client]:
    generator = keyed("benchmark")
    x = torch.rand(examples, 2, 14, 14, generator=generator)
    x[torch.arange(examples), torch.arange(examples) % 2] = 0.0
    y = torch.randint(2, (examples,), generator=generator)
    net = build("mlp(widths=[390, 390], init='xavier')", (2, 14, 14), 1, keyed("net"))
    return Model(net), Client("site", Split(x, y), None, 2)


def one_by_one(model: Model, client: Client, each: Callable[[torch.Tensor], None]) -> None:
    """Every example's gradient, one after the other."""
    split = client.split("train")
    with Backprop().open(model, {}, client, {}, TURN) as step:
        for i in range(len(split)):
            step(*split.batch(slice(i, i + 1)))
            each(model.gradient)


def loop(model: Model, client: Client) -> torch.Tensor:
    """The formula with four running sums, as one writes it down."""
    n = len(client.split("train"))
    plus, minus, log_plus, log_minus = torch.zeros(4, len(model.vector)).unbind()

    def each(g: torch.Tensor) -> None:
        logs = g.abs().log()
        plus.add_(g > 0)
        minus.add_(g < 0)
        log_plus.add_(torch.where(g > 0, logs, 0))
        log_minus.add_(torch.where(g < 0, logs, 0))

    one_by_one(model, client, each)
    positive = torch.where(plus > 0, plus / n * (log_plus / plus).exp(), 0)
    return positive - torch.where(minus > 0, minus / n * (log_minus / minus).exp(), 0)


def stack(model: Model, client: Client) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    one_by_one(model, client, lambda gradient: kept.append(gradient.clone()))
    rows = torch.stack(kept)
    return RULE(rows, {}, RULE.init(*rows.shape))[0]


def algebra(model: Model, client: Client) -> torch.Tensor:
    part = Environments(Backprop(), "example")
    with part.open(model, {}, client, {}, TURN) as step:
        step(*client.split("train").batch(slice(None)))
    return model.gradient.clone()


WAYS = {"loop": loop, "stack": stack, "algebra": algebra}


def extra_memory(name: str, examples: int, queue) -> None:
    """MiB by which one call raises the process's peak."""
    torch.set_num_threads(1)
    WAYS[name](*problem(8))  # libraries allocate their own once
    model, client = problem(examples)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = status("VmRSS")
    WAYS[name](model, client)
    queue.put((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    """A line of this process's status, in KiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def seconds(function, *arguments) -> float:
    begun = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, client = problem(options.examples)
    size = len(model.vector)
    print(f"{options.examples} examples, {size:,} weights, {options.threads} thread(s)")

    exact = loop(model, client)
    for name in ("stack", "algebra"):
        error = (WAYS[name](model, client) - exact).abs().max() / exact.abs().max()
        print(f"{name}: largest difference from the loop {float(error):.1e} of the largest entry")

    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(options.repeats):
        for name in WAYS if repeat % 2 else reversed(WAYS):
            times[name].append(seconds(WAYS[name], model, client))
    for name, values in times.items():
        print(f"{name}: median {1000 * statistics.median(values):.1f} ms")
    for name in ("loop", "stack"):
        ratios = sorted(a / b for a, b in zip(times[name], times["algebra"], strict=True))
        print(
            f"{name} / algebra: median {statistics.median(ratios):.1f}, "
            f"from {ratios[0]:.1f} to {ratios[-1]:.1f}"
        )

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for name in WAYS:
        process = context.Process(target=extra_memory, args=(name, options.examples, queue))
        process.start()
        mib = queue.get()
        process.join()
        print(f"{name}: {mib:.0f} MiB more at the peak; one gradient is {4 * size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
