"""One round of FedAvg: LeNet, five clients of 1000 images of 28×28, five epochs, batches of 64.

    python benchmarks/fedavg_round.py [--quick]

Published style is `published.py`: DataLoader, Pillow, deep copies, state dicts. Two processes are
two jobs of a study side by side, as `--jobs 2` runs them: a round's time is half of that of both.
All ways train on the same images, rotated alike: ours once when the data set is read, which is not
timed, the published style whenever an image is asked for, which is.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Goal, cpu_seconds, interleaved, main
from published import LeNet, Turned, average, handwritten, train
from torch.utils.data import DataLoader

from unseen import Client, InProcess, Model, Split, Training, method, start
from unseen.core.optimiser import SGD
from unseen.core.round import play_round
from unseen.core.turn import keyed
from unseen.data.digits import rotate
from unseen.data.networks import build

ANGLES = (15, 30, 45, 60, 75)
goals = [
    Goal("processes", "FedAvg round, two processes of one thread: ≥ 1.9×", at_least=1.9),
    Goal("threads", "FedAvg round, one process of two threads: ≥ 2.2×", at_least=2.2),
]


class Ours:
    """A federation of ours that goes on round by round."""

    def __init__(self, images: int, epochs: int, seed: int = 0) -> None:
        x, y = handwritten(images, 28)
        pixels, labels = torch.from_numpy(x), torch.from_numpy(np.asarray(y)).long()
        clients = {
            str(a): Client(str(a), Split(rotate(pixels, a).unsqueeze(1), labels), None, 10)
            for a in ANGLES
        }
        net = build("lenet", (1, 28, 28), 10, keyed(f"{seed}/model"))
        model = Model(net.to(memory_format=torch.channels_last), "cpu", (1, 28, 28))
        training = Training(SGD(0.01, momentum=0.5), epochs=epochs, batch_size=64)
        self.names = sorted(clients)
        self.method = method("fedavg", training)
        self.backend = InProcess(model, clients)
        self.state = start(self.method, model, self.names, seed)

    def round(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.state, _ = play_round(self.method, self.state, self.backend, self.names, 10**6)


class Published:
    """The same federation in the published style."""

    def __init__(self, images: int, epochs: int) -> None:
        torch.manual_seed(0)
        x, y = handwritten(images, 28)
        self.loaders = [DataLoader(Turned(x, y, a), batch_size=64, shuffle=True) for a in ANGLES]
        self.net, self.epochs = LeNet(), epochs

    def round(self, threads: int) -> None:
        torch.set_num_threads(threads)
        states = [
            train(self.net, loader, self.epochs, 0.01, 0.5).state_dict() for loader in self.loaders
        ]
        self.net.load_state_dict(average(states, [1 / len(states)] * len(states)))


class Pair:
    """Two processes of one thread, each with a federation of its own."""

    def __init__(self, images: int, epochs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.cpu: list[float] = []
        self.pipes, self.processes = [], []
        for seed in range(2):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, images, epochs, seed))
            process.start()
            self.pipes.append(here)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def round(self) -> None:
        for pipe in self.pipes:
            pipe.send(True)
        self.cpu.append(sum(pipe.recv() for pipe in self.pipes) / 2)

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(False)
            process.join()


def serve(pipe: Any, images: int, epochs: int, seed: int) -> None:
    torch.set_num_threads(1)
    ours = Ours(images, epochs, seed)
    pipe.send(None)
    while pipe.recv():
        begun = cpu_seconds()
        ours.round()
        pipe.send(cpu_seconds() - begun)


def run(quick: bool) -> dict[str, Any]:
    images, epochs = (64, 1) if quick else (1000, 5)
    cores = os.cpu_count() or 1
    published, ours, pair = Published(images, epochs), Ours(images, epochs), Pair(images, epochs)
    ways = {
        f"published style, {cores} threads": partial(published.round, cores),
        "published style, 1 thread": partial(published.round, 1),
        "ours, 1 thread": partial(ours.round, 1),
        f"ours, {cores} threads": partial(ours.round, cores),
        "ours, 2 processes of 1 thread": pair.round,
    }
    timings = interleaved(ways, repeats=1 if quick else 3)
    pair.end()
    base, threads, processes = (list(ways)[i] for i in (0, 3, 4))
    timings.wall[processes] = [seconds / 2 for seconds in timings.wall[processes]]
    timings.cpu[processes] = pair.cpu[1:]
    rows = timings.rows(f"5 × {images} images × {epochs} epochs", base)
    for row in rows:
        row["images_per_s"] = 5 * images * epochs / (row["ms"] / 1000)
    return {
        "measured": rows,
        "goals": {
            "processes": timings.ratio(base, processes).list(),
            "threads": timings.ratio(base, threads).list(),
        },
    }


if __name__ == "__main__":
    main(__file__)
