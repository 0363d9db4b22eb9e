"""The papers' server rules, transcribed line by line: float64 loops over plain vectors.

Nothing here is shared with the package, and nothing here is fast. A test that finds the package
and these loops apart has found a mistake in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

Vector = np.ndarray
#: The outer order of Algorithm 1: each i with the order in which it meets the others.
Orders = list[tuple[int, list[int]]]

BASES = ("raw", "running", "equation")
OTHERS = ("modified", "raw")
WHENS = ("conflict", "always")


class Meeting(NamedTuple):
    """One pass through the inner loop: i before it, the other vector, i after it."""

    i: int
    j: int
    before: Vector
    other: Vector
    after: Vector
    modified: bool

    @property
    def cosine(self) -> float:
        """How clearly the sign of the inner product was decided."""
        lengths = float(np.linalg.norm(self.before) * np.linalg.norm(self.other))
        return float(self.before @ self.other) / lengths


def gradients(seed: int, count: int, size: int = 40, scale: float | None = 1.0) -> Vector:
    """Gaussian rows [K, P], about half of the pairs in conflict; no scale: each row its own."""
    rng = np.random.default_rng((seed, count, size))
    scales = 10 ** rng.uniform(-3, 3, (count, 1)) if scale is None else scale
    return rng.standard_normal((count, size)) * scales


def fixed(count: int) -> Orders:
    """0, 1, ..., K-1 in both loops."""
    return [(i, [j for j in range(count) if j != i]) for i in range(count)]


def drawn(count: int, generator: torch.Generator) -> Orders:
    """One permutation for the outer loop, then one for each inner loop, i itself skipped."""
    outer = torch.randperm(count, generator=generator).tolist()
    orders = []
    for i in outer:
        inner = torch.randperm(count, generator=generator).tolist()
        orders.append((i, [j for j in inner if j != i]))
    return orders


def seeded(seed: int) -> torch.Generator:
    """A torch generator of its own."""
    return torch.Generator().manual_seed(seed)


def ppdg(
    grad: Vector,
    lam: float,
    orders: Orders,
    base: str = "raw",
    others: str = "modified",
    when: str = "conflict",
    trace: list[Meeting] | None = None,
) -> list[Vector]:
    """PPDG, Algorithm 1, lines 2 to 9, in each reading of line 6."""
    hat = [g.copy() for g in grad]
    for i, inner in orders:
        for j in inner:
            other = hat[j] if others == "modified" else grad[j]
            before = hat[i]
            conflict = when == "always" or float(np.dot(hat[i], other)) < 0
            if conflict:
                if base == "raw":
                    hat[i] = grad[i] - 2 * lam * (hat[i] - other)
                elif base == "running":
                    hat[i] = hat[i] - 2 * lam * (hat[i] - other)
                elif base == "equation":
                    hat[i] = grad[i] - 2 * lam * (grad[i] - other)
                else:
                    raise KeyError(base)
            if trace is not None:
                trace.append(Meeting(i, j, before, other, hat[i], conflict))
    return hat


def pcgrad(grad: Vector, orders: Orders, trace: list[Meeting] | None = None) -> list[Vector]:
    """PCGrad: each conflicting gradient loses its part along the other client's raw one."""
    hat = [g.copy() for g in grad]
    for i, inner in orders:
        for j in inner:
            before = hat[i]
            dot = float(np.dot(hat[i], grad[j]))
            if dot < 0:
                hat[i] = hat[i] - dot / float(np.dot(grad[j], grad[j])) * grad[j]
            if trace is not None:
                trace.append(Meeting(i, j, before, grad[j], hat[i], dot < 0))
    return hat


def average(vectors: Sequence[Vector], p: Sequence[float] | None = None) -> Vector:
    """Line 10 of Algorithm 1 (1/K each), or Eq. 1's weights p."""
    total = np.zeros_like(vectors[0])
    for k, vector in enumerate(vectors):
        total = total + (1 / len(vectors) if p is None else p[k]) * vector
    return total


def shares(counts: Sequence[float]) -> list[float]:
    """p_k = n_k / n."""
    return [n / math.fsum(counts) for n in counts]


def sign(x: float) -> int:
    """-1, 0 or 1."""
    return int(x > 0) - int(x < 0)


def agreed(grad: Vector) -> list[bool]:
    """The coordinates on which every client has the same sign, none of them zero."""
    return [abs(sum(sign(x) for x in column)) == len(grad) for column in grad.T]


def agr_sum(grad: Vector, p: Sequence[float] | None = None, times: float = 1) -> Vector:
    """AgrSum: the mean (times K: the sum) where the signs agree, zero elsewhere."""
    mean = average(list(grad), p)
    return np.array(
        [times * m if keep else 0.0 for m, keep in zip(mean, agreed(grad), strict=True)]
    )


def geometric(
    column: Sequence[float], p: Sequence[float], zeros: str = "skip", agreement: float = 0.0
) -> float:
    """FedILC's weighted geometric mean of one coordinate over the clients."""
    pairs = list(zip(p, column, strict=True))
    if abs(math.fsum(w * sign(g) for w, g in pairs)) < agreement:
        return 0.0
    if zeros == "paper":
        plus, minus = [x for x in pairs if x[1] >= 0], [x for x in pairs if x[1] <= 0]
    elif zeros == "released":
        plus, minus = [x for x in pairs if x[1] > 0], [x for x in pairs if x[1] <= 0]
    elif zeros == "skip":
        plus, minus = [x for x in pairs if x[1] > 0], [x for x in pairs if x[1] < 0]
    else:
        raise KeyError(zeros)
    floor = 1e-10 if zeros == "released" else 0.0
    return _half(plus, floor) - _half(minus, floor)


def _half(pairs: Sequence[tuple[float, float]], floor: float) -> float:
    """P (prod |g|^p)^(1/P), P the weight of the set; nothing from an empty set."""
    weight = math.fsum(w for w, _ in pairs)
    if weight == 0:
        return 0.0
    product = 1.0
    for w, g in pairs:
        product *= (abs(g) + floor) ** (w / weight)
    return weight * product


def adjust(
    a: Sequence[Any],
    gap: Sequence[Any],
    step: Any,
    variant: str = "centred",
    decay: Any = 1,
    present: Iterable[int] | None = None,
    known: Callable[[int], bool] = lambda i: True,
) -> list[Any]:
    """GA, Eq. 3: the roster's weights after one round's gaps. Exact when given fractions.

    gap: one entry per roster client, of which only those present and known are read. `decay` is
    d^r / d; the released loop's own factor, step / 3, is applied here.
    """
    here = list(range(len(a)) if present is None else present)
    heard = [i for i in here if known(i)]
    if not heard:
        return list(a)
    mu = sum(gap[i] for i in heard) / len(heard)
    if variant == "centred":
        top = max(abs(gap[i] - mu) for i in heard)
        move = {i: gap[i] - mu for i in heard}
    elif variant == "paper":
        top = max(gap[i] - mu for i in heard)
        move = {i: gap[i] - mu for i in heard}
    elif variant == "reference":
        top = 3 * max(abs(gap[i]) for i in heard)
        move = {i: gap[i] for i in heard}
    else:
        raise KeyError(variant)
    if top == 0:
        return list(a)
    new = list(a)
    for i in heard:
        new[i] = a[i] + step * decay * move[i] / top
        new[i] = max(new[i], 0) if variant == "paper" else min(max(new[i], 0), 1)
    mass, found = sum(a[i] for i in here), sum(new[i] for i in here)
    for i in here:
        new[i] = new[i] * mass / found
    return new
