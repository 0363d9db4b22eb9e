"""PPDG on K updates of a ResNet-18: inner products against the literal loop over tensors.

    python benchmarks/ppdg_rule.py [--clients 5] [--repeats 7] [--threads 1]

The literal loop is Algorithm 1 on dictionaries of tensors as published code writes it. Both do the
same work on the same updates in one process, one after the other, in an order that alternates.
Memory is the growth of the process's peak beyond the updates, each measured in a fresh process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path

import torch

from unseen.core.vector import stack
from unseen.methods.combine import PPDG

LAM = 0.1


def shapes() -> list[tuple[int, ...]]:
    """The parameters of torchvision's ResNet-18 with 1000 classes: 11,689,512 numbers."""
    found: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            found += [(out, width, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if stage > 0 and block == 0:
                found += [(out, width, 1, 1), (out,), (out,)]
            width = out
    return [*found, (1000, 512), (1000,)]


def updates(clients: int) -> torch.Tensor:
    """Random updates [K, P]: about half of the pairs conflict, the literal loop's worst case."""
    size = sum(torch.Size(shape).numel() for shape in shapes())
    generator = torch.Generator().manual_seed(0)
    matrix = stack(clients, torch.empty(size))
    for row in matrix:
        row.copy_(torch.randn(size, generator=generator))
    return matrix


def as_dictionaries(matrix: torch.Tensor) -> list[dict[int, torch.Tensor]]:
    sizes = [torch.Size(shape).numel() for shape in shapes()]
    return [
        {i: part.view(shapes()[i]) for i, part in enumerate(row.split(sizes))} for row in matrix
    ]


def literal(grads: list[dict[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Algorithm 1, line by line, per tensor."""
    hats = [{name: tensor.clone() for name, tensor in grad.items()} for grad in grads]
    for i, hat in enumerate(hats):
        for j, other in enumerate(hats):
            if i == j:
                continue
            product = sum(float((hat[name] * other[name]).sum()) for name in hat)
            if product < 0:
                for name in hat:
                    hat[name] = grads[i][name] - 2 * LAM * (hat[name] - other[name])
    return {name: sum(hat[name] for hat in hats) / len(hats) for name in hats[0]}


def ours(matrix: torch.Tensor) -> torch.Tensor:
    rule = PPDG(lam=LAM, order="fixed")
    return rule(matrix, {}, rule.init(*matrix.shape))[0]


def seconds(function, argument) -> float:
    begun = time.perf_counter()
    function(argument)
    return time.perf_counter() - begun


def extra_memory(which: str, clients: int, queue) -> None:
    """MiB by which one call raises the process's peak above the updates."""
    torch.set_num_threads(1)
    small = torch.randn(clients, 4096)
    rule = PPDG(lam=LAM, order="fixed")
    rule(small, {}, rule.init(clients, 4096))  # libraries allocate their own once
    matrix = updates(clients)
    argument = as_dictionaries(matrix) if which == "literal" else matrix
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = status("VmRSS")
    (literal if which == "literal" else ours)(argument)
    queue.put((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    """A line of this process's status, in KiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    matrix = updates(options.clients)
    grads = as_dictionaries(matrix)
    size = matrix.shape[1]
    print(f"{options.clients} updates of {size:,} numbers, {options.threads} thread(s)")

    expected = literal(grads)
    flat = torch.cat([expected[i].flatten() for i in range(len(expected))])
    found = ours(matrix)
    print(
        f"largest difference, relative to the largest entry: "
        f"{float((found - flat).abs().max() / flat.abs().max()):.1e}"
    )

    times: dict[str, list[float]] = {"literal": [], "ours": []}
    for repeat in range(options.repeats):
        pair = [("literal", literal, grads), ("ours", ours, matrix)]
        for name, function, argument in pair if repeat % 2 else reversed(pair):
            times[name].append(seconds(function, argument))
    ratios = sorted(a / b for a, b in zip(times["literal"], times["ours"], strict=True))
    for name, values in times.items():
        print(f"{name}: median {1000 * statistics.median(values):.1f} ms")
    print(
        f"literal / ours: median {statistics.median(ratios):.1f}, "
        f"from {ratios[0]:.1f} to {ratios[-1]:.1f}"
    )

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    row = 4 * size / 2**20
    for which in ("literal", "ours"):
        process = context.Process(target=extra_memory, args=(which, options.clients, queue))
        process.start()
        mib = queue.get()
        process.join()
        print(f"{which}: {mib:.0f} MiB beyond the updates, {mib / row:.1f} rows of {row:.0f} MiB")


if __name__ == "__main__":
    main()
