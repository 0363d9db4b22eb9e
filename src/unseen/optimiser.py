"""SGD and Adam on a flat vector, in torch's own order of operations.

`torch.optim` gives the same bits and costs four times as much per step on a flat vector, so these
two are written out; the tests hold them to `torch.optim` bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unseen.errors import number

Moments = Mapping[str, Tensor]

#: How many numbers Adam handles at a time, so that they and its two temporaries stay in cache. A
#: multiple of every vector unit's width: each number takes the path that it takes in the whole.
COLUMNS = 65536


class Optimiser(Protocol):
    """A rule for one step: changes `vector` in place, returns the new moments."""

    @property
    def lr(self) -> float: ...

    def step(self, vector: Tensor, gradient: Tensor, moments: Moments, lr: float) -> Moments: ...


@dataclass(frozen=True)
class SGD:
    """d = g + wd·w;  b ← m·b + d (b = d at first);  w ← w − lr·b.

    As `torch.optim.SGD`. lr: learning rate; momentum: m in [0, 1); weight_decay: wd, coupled.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        number("sgd(lr)", self.lr, 0, open_low=True)
        number("sgd(momentum)", self.momentum, 0, 1)
        number("sgd(weight_decay)", self.weight_decay, 0)

    def step(self, vector: Tensor, gradient: Tensor, moments: Moments, lr: float) -> Moments:
        """One step with learning rate `lr`, which a schedule may have changed."""
        if self.weight_decay:
            gradient = gradient.add(vector, alpha=self.weight_decay)
        if not self.momentum:
            vector.add_(gradient, alpha=-lr)
            return moments
        if "momentum" in moments:
            buffer = moments["momentum"].mul_(self.momentum).add_(gradient)
        else:
            buffer = gradient.clone()
        vector.add_(buffer, alpha=-lr)
        return {"momentum": buffer}


@dataclass(frozen=True)
class Adam:
    """Adam with coupled weight decay, as `torch.optim.Adam`.

    beta1, beta2: decay of the moments; eps: added to the root of the second moment.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        number("adam(lr)", self.lr, 0, open_low=True)
        number("adam(beta1)", self.beta1, 0, 1)
        number("adam(beta2)", self.beta2, 0, 1)
        number("adam(eps)", self.eps, 0, open_low=True)
        number("adam(weight_decay)", self.weight_decay, 0)

    def step(self, vector: Tensor, gradient: Tensor, moments: Moments, lr: float) -> Moments:
        """One step with learning rate `lr`, which a schedule may have changed."""
        if not moments:
            zeros = {name: torch.zeros_like(vector) for name in ("first", "second")}
            moments = {**zeros, "steps": torch.zeros((), dtype=torch.float64)}
        first, second = moments["first"], moments["second"]
        steps = moments["steps"] + 1
        t = int(steps)
        scale, rate = (1 - self.beta2**t) ** 0.5, -lr / (1 - self.beta1**t)
        for w, g, m, v in blocks(vector, gradient, first, second):
            if self.weight_decay:
                g = g.add(w, alpha=self.weight_decay)
            m.lerp_(g, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            # Divided root by root, as torch does: sqrt(v / c) differs from sqrt(v) / sqrt(c) in
            # bits.
            w.addcdiv_(m, v.sqrt().div_(scale).add_(self.eps), value=rate)
        return {"first": first, "second": second, "steps": steps}


def blocks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The vectors [P] in runs of columns that fit the cache, or whole: on a device, and where
    threads share them, whose number then decides where they are cut."""
    first = vectors[0]
    if first.device.type != "cpu" or torch.get_num_threads() > 1 or len(first) < 2 * COLUMNS:
        yield vectors
        return
    yield from zip(*(vector.split(COLUMNS) for vector in vectors), strict=True)
