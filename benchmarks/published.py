"""Federated training as published code writes it: what the benchmarks compare with.

Written from public behaviour, no line copied: a Dataset that turns every image with Pillow when it
is asked for, a DataLoader, one deep copy of the net per client and round, torch.optim,
`loss.item()` per batch, averages over state dicts key by key, server rules as loops over tensors,
and evaluation of every source and of the target after every round. All in one process with torch's
default threads.

    python benchmarks/published.py ROUNDS TARGETS SEEDS METHODS     # commas inside
"""

from __future__ import annotations

import copy
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

Weights = dict[str, torch.Tensor]


class Turned(Dataset):
    """Images [N, H, W] of bytes, each turned when it is asked for."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, angle: float) -> None:
        self.images, self.labels, self.angle = images, labels, angle

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[index], mode="L")
        if self.angle:
            image = image.rotate(self.angle, Image.BILINEAR)
        x = torch.from_numpy(np.array(image, dtype=np.uint8)).float().div(255)
        return x.unsqueeze(0), int(self.labels[index])


class LeNet(nn.Module):
    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float, momentum: float) -> nn.Module:
    """One client's local training, on a copy."""
    net = copy.deepcopy(net)
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    criterion = nn.CrossEntropyLoss()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimiser.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return net


def test(net: nn.Module, loader: DataLoader) -> float:
    net.eval()
    right, count = 0, 0
    with torch.no_grad():
        for x, y in loader:
            right += (net(x).argmax(1) == y).sum().item()
            count += len(y)
    return right / count


def average(states: list[Weights], weights: list[float]) -> Weights:
    """The weighted mean of state dicts, key by key."""
    mean = copy.deepcopy(states[0])
    for key in mean:
        mean[key] = mean[key] * weights[0]
        for state, weight in zip(states[1:], weights[1:], strict=True):
            mean[key] += state[key] * weight
    return mean


def ppdg(before: Weights, states: list[Weights], lam: float = 0.1) -> Weights:
    """PPDG's Algorithm 1 on updates, tensor by tensor."""
    grads = [{k: s[k] - before[k] for k in before} for s in states]
    hats = [{k: g[k].clone() for k in g} for g in grads]
    order = random.sample(range(len(hats)), len(hats))
    for i in order:
        for j in random.sample(range(len(hats)), len(hats)):
            if i == j:
                continue
            product = sum((hats[i][k] * hats[j][k]).sum().item() for k in before)
            if product < 0:
                for k in before:
                    hats[i][k] = grads[i][k] - 2 * lam * (hats[i][k] - hats[j][k])
    return {k: before[k] + sum(hat[k] for hat in hats) / len(hats) for k in before}


def federation(
    name: str, net: nn.Module, sources: list[tuple[Dataset, Dataset]], target: Dataset,
    rounds: int, epochs: int, batch: int, lr: float, momentum: float,
) -> float:  # fmt: skip
    """A whole run of one method; the accuracy on the target in the round that validates best."""
    trains = [DataLoader(t, batch_size=batch, shuffle=True) for t, _ in sources]
    checks = [DataLoader(v, batch_size=256) for _, v in sources]
    judge = DataLoader(target, batch_size=256)
    if name == "deepall":
        pool = ConcatDataset([t for t, _ in sources])
        trains = [DataLoader(pool, batch_size=batch, shuffle=True)]
    sizes = [len(loader.dataset) for loader in trains]
    weights = [n / sum(sizes) for n in sizes]
    best, chosen = -1.0, 0.0
    own: list[float] | None = None
    for r in range(rounds):
        before = copy.deepcopy(net.state_dict())
        if name == "fedavg+ga" and own is not None:  # the generalization gap of the mean
            gaps = [o - test(net, loader) for o, loader in zip(own, checks, strict=True)]
            largest = max(map(abs, gaps)) or 1.0
            step = 0.2 * (1 - r / rounds)
            weights = [max(0.0, w + step * g / largest) for w, g in zip(weights, gaps, strict=True)]
            weights = [w / sum(weights) for w in weights]
        states, measured = [], []
        for loader, check in zip(trains, checks, strict=False):
            local = train(net, loader, epochs, lr, momentum)
            if name == "fedavg+ga":
                measured.append(test(local, check))
            states.append(local.state_dict())
        own = measured or None
        net.load_state_dict(ppdg(before, states) if name == "ppdg" else average(states, weights))
        validation = float(np.mean([test(net, loader) for loader in checks]))
        accuracy = test(net, judge)
        if validation > best:
            best, chosen = validation, accuracy
    return chosen


def digits() -> tuple[list[tuple[np.ndarray, np.ndarray, float]], dict]:
    """scikit-learn's digits, dealt to six angles, with the recipe of the study `digits`."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images * 255 / 16).astype(np.uint8)
    order = np.random.RandomState(0).permutation(len(images))
    angles = (0, 15, 30, 45, 60, 75)
    parts = [order[i::6] for i in range(6)]
    domains = [(images[p], found.target[p], a) for p, a in zip(parts, angles, strict=True)]
    return domains, {"net": perceptron, "share": 0.1, "epochs": 1, "batch": 32, "lr": 0.1}


def handwritten(count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits as bytes [N, side, side] with an empty rim, as MNIST's are."""
    from sklearn.datasets import load_digits

    found = load_digits()
    index = np.arange(count) % len(found.images)
    small = torch.from_numpy(found.images[index] / 16).float().unsqueeze(1)
    inner = F.interpolate(small, size=side * 20 // 28, mode="bilinear", align_corners=False)
    rim = side - inner.shape[-1]
    x = F.pad(inner, (rim // 2, rim - rim // 2, rim // 2, rim - rim // 2)).squeeze(1)
    return (x * 255).byte().numpy(), found.target[index]


def study(rounds: int, targets: list[int], seeds: int, methods: list[str]) -> float:
    """Every run of a study, one after the other; seconds."""
    begun = time.perf_counter()
    domains, recipe = digits()
    for method in methods:
        for t in targets:
            for seed in range(seeds):
                torch.manual_seed(seed)
                random.seed(seed)
                sources = []
                for i, (images, labels, angle) in enumerate(domains):
                    if i == t:
                        continue
                    whole = Turned(images, labels, angle)
                    order = torch.randperm(len(whole)).tolist()
                    held = round(recipe["share"] * len(whole))
                    sources.append((Subset(whole, order[held:]), Subset(whole, order[:held])))
                accuracy = federation(
                    method, recipe["net"](), sources, Turned(*domains[t]), rounds,
                    recipe["epochs"], recipe["batch"], recipe["lr"], 0.9,
                )  # fmt: skip
                print(method, t, seed, f"{accuracy:.3f}", flush=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    rounds, targets, seeds, methods = sys.argv[1:]
    at = [int(t) for t in targets.split(",")]
    print(study(int(rounds), at, int(seeds), methods.split(",")))
