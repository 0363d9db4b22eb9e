"""Server rules through inner products against their literal loops, and the geometric mean.

    python benchmarks/rules.py [--quick]

The literal loops run over dictionaries of tensors, as published code writes them, on the shapes of
a net of that size. `limit` reads the K×P updates once; for the geometric mean it takes one
logarithm per entry. Random updates: about half of the pairs conflict, the literal loops' worst
case.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import Goal, interleaved, main, peak_memory

from unseen.core.row_store import keep_freed_memory
from unseen.core.vector import stack
from unseen.errors import UnseenError
from unseen.methods.combine import PPDG, PCGrad, WeightedGeometricMean

SIZES = {"44 k": 43_960, "7.0 M": 6_964_106, "11.7 M": 11_689_512, "25.6 M": 25_557_032}
CLIENTS = (3, 5, 13, 26)
LAM = 0.1
#: More updates than this are not combined literally: minutes each, and several times their memory.
LITERAL_UP_TO = 160e6
#: Above this many parameters, fewer repetitions.
HEAVY = 60e6
goals = [
    Goal("ppdg_mid", "PPDG within 5× of reading the updates once, K ≤ 5 at 7–12 M", at_most=5),
    Goal("ppdg_large", "PPDG within 7× of reading the updates once, K ≤ 5 at 25.6 M", at_most=7),
    Goal("geometric", "geometric mean within 3× of one logarithm per entry, 11.7 M", at_most=3),
    Goal("compiled", "the same with torch.compile within 1.7×, K = 5", at_most=1.7),
    Goal("memory", "rows of memory beyond the updates that a Gram rule takes", at_most=1.05),
]


def updates(clients: int, size: int) -> torch.Tensor:
    """Random updates [K, P], with one thread's numbers whatever the machine."""
    matrix = stack(clients, torch.empty(size))
    generator = torch.Generator().manual_seed(0)
    for row in matrix:
        row.normal_(generator=generator)
    return matrix


def shapes(size: int) -> list[tuple[int, ...]]:
    """Sixty tensors, a third of them small, that hold `size` numbers, as a ResNet's do."""
    weights = [2.0 ** (i % 20 / 2) for i in range(40)]
    large = [max(1, math.floor(size * w / sum(weights))) for w in weights]
    found = [n for i, n in enumerate(large) for n in ((n,) if i % 2 else (n - min(64, n // 2),))]
    small = [min(64, n // 2) for i, n in enumerate(large) if not i % 2]
    rest = size - sum(found) - sum(small)
    return [(n,) for n in (*found, *small, rest) if n]


def dictionaries(matrix: torch.Tensor) -> list[dict[int, torch.Tensor]]:
    sizes = [shape[0] for shape in shapes(matrix.shape[1])]
    return [dict(enumerate(row.split(sizes))) for row in matrix]


def literal(grads: list[dict[int, torch.Tensor]], surgery: bool = False) -> dict[int, torch.Tensor]:
    """PPDG's Algorithm 1, or PCGrad's, line by line, per tensor."""
    hats = [{name: tensor.clone() for name, tensor in grad.items()} for grad in grads]
    for i, hat in enumerate(hats):
        for j in range(len(hats)):
            if i == j:
                continue
            other = grads[j] if surgery else hats[j]
            product = sum(float((hat[name] * other[name]).sum()) for name in hat)
            if product < 0 and surgery:
                square = sum(float((other[name] ** 2).sum()) for name in hat)
                for name in hat:
                    hat[name] = hat[name] - product / square * other[name]
            elif product < 0:
                for name in hat:
                    hat[name] = grads[i][name] - 2 * LAM * (hat[name] - other[name])
    return {name: sum(hat[name] for hat in hats) / len(hats) for name in hats[0]}


def ours(rule: Any, matrix: torch.Tensor) -> torch.Tensor:
    return rule(matrix, {}, rule.init(*matrix.shape))[0]


def read_once(matrix: torch.Tensor) -> None:
    for row in matrix:
        row.sum()


RULES = {"PPDG": PPDG(lam=LAM, order="fixed"), "PCGrad": PCGrad(order="fixed")}


def gram_rules(label: str, clients: int, repeats: int, threads: int = 1) -> list[dict[str, Any]]:
    """PPDG and PCGrad on K updates of one size; the limit with as many threads."""
    matrix = updates(clients, SIZES[label])
    torch.set_num_threads(threads)
    ways: dict[str, Callable[[], object]] = {
        "limit": partial(read_once, matrix),
        "PPDG": partial(ours, RULES["PPDG"], matrix),
        "PCGrad": partial(ours, RULES["PCGrad"], matrix),
    }
    small = matrix.numel() <= LITERAL_UP_TO and threads == 1
    interleaved(ways, 0)  # the vector made in one call is the next one's
    if small:
        grads = dictionaries(matrix)
        ways["literal PPDG"] = partial(literal, grads)
        ways["literal PCGrad"] = partial(literal, grads, True)
    timings = interleaved(ways, repeats, warm=0 if matrix.numel() > HEAVY else 1)
    torch.set_num_threads(1)
    row: dict[str, Any] = {"table": "Rules of inner products", "P": label, "K": clients}
    row["threads"] = threads
    for way, values in timings.wall.items():
        row[f"{way}_ms"] = 1000 * sorted(values)[len(values) // 2]
    for name in RULES:
        row[f"{name} / limit"] = timings.ratio(name, "limit").list()
    for name in RULES:
        row[f"literal / {name}"] = timings.ratio(f"literal {name}", name).list() if small else None
    row.setdefault("literal PPDG_ms", None)
    row.setdefault("literal PCGrad_ms", None)
    return [{key: row[key] for key in sorted(row, key=_column)}]


def _column(key: str) -> tuple[bool, bool, bool]:
    return ("_ms" in key, "limit" in key and "/" in key, "literal /" in key)


def usual(matrix: torch.Tensor) -> torch.Tensor:
    """The weighted geometric mean as one writes it down: masks and logarithms over [K, P]."""
    K = len(matrix)
    plus, minus = matrix > 0, matrix < 0
    logs = matrix.abs().log()
    n, m = plus.sum(0), minus.sum(0)
    up = torch.where(plus, logs, 0).sum(0) / n
    down = torch.where(minus, logs, 0).sum(0) / m
    return torch.where(n > 0, n / K * up.exp(), 0) - torch.where(m > 0, m / K * down.exp(), 0)


def logarithms(matrix: torch.Tensor) -> None:
    """One logarithm per entry, in blocks that stay in the cache."""
    columns = 65536 // len(matrix)
    for begin in range(0, matrix.shape[1], columns):
        matrix[:, begin : begin + columns].abs().log_()


def geometric(label: str, clients: int, repeats: int, compiled: bool) -> list[dict[str, Any]]:
    matrix = updates(clients, SIZES[label])
    rule = WeightedGeometricMean()
    ways: dict[str, Callable[[], object]] = {
        "limit": partial(logarithms, matrix),
        "ours": partial(ours, rule, matrix),
        "usual": partial(usual, matrix),
    }
    if compiled:
        ways["compiled"] = partial(ours, WeightedGeometricMean(compiled=True), matrix)
        try:
            ways["compiled"]()
        except UnseenError:  # no compiler
            compiled = False
            del ways["compiled"]
    heavy = matrix.numel() > HEAVY
    timings = interleaved(ways, 3 if heavy else repeats, warm=1)
    row: dict[str, Any] = {"table": "Weighted geometric mean", "P": label, "K": clients}
    row["ours / limit"] = timings.ratio("ours", "limit").list()
    row["compiled / limit"] = timings.ratio("compiled", "limit").list() if compiled else None
    row["usual / ours"] = timings.ratio("usual", "ours").list()
    row["compiled_ms"] = None
    row |= {f"{w}_ms": 1000 * sorted(v)[len(v) // 2] for w, v in timings.wall.items()}
    return [row]


def prepared(rule: Any, clients: int, size: int) -> tuple[Any, torch.Tensor]:
    torch.set_num_threads(1)
    small = updates(clients, 4096)
    ours(rule, small)  # libraries allocate their own once
    return rule, updates(clients, size)


def called(prepared: tuple[Any, torch.Tensor]) -> None:
    ours(*prepared)


def run(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)  # what a study's jobs have
    keep_freed_memory()  # as every run does: the vector made in one round is the next one's
    sizes = ["44 k"] if quick else list(SIZES)
    measured, values = [], {}
    worst: dict[str, list[list[float]]] = {"ppdg_mid": [], "ppdg_large": []}
    for label in sizes:
        for clients in CLIENTS[:2] if quick else CLIENTS:
            heavy = clients * SIZES[label] > HEAVY
            found = gram_rules(label, clients, 3 if heavy or quick else 7)
            measured += found
            if clients <= 5 and label in ("7.0 M", "11.7 M"):
                worst["ppdg_mid"].append(found[0]["PPDG / limit"])
            if clients <= 5 and label == "25.6 M":
                worst["ppdg_large"].append(found[0]["PPDG / limit"])
    cores = os.cpu_count() or 1
    if cores > 1 and not quick:
        measured += gram_rules("11.7 M", 5, 7, threads=cores)
    values = {key: max(found, default=None) for key, found in worst.items()}
    means = []
    for label, clients in [("44 k", 5)] if quick else [("44 k", 5), ("11.7 M", 5), ("11.7 M", 13)]:
        # A compiler takes a minute or more for thirteen rows, and nothing is won on small ones.
        means += geometric(label, clients, 5, (label, clients) == ("11.7 M", 5))
    measured += means
    values["geometric"] = None if quick else max(row["ours / limit"] for row in means[1:])
    values["compiled"] = None if quick else means[1]["compiled / limit"]
    label = "44 k" if quick else "11.7 M"
    rows = []
    for name, rule in RULES.items():
        mib = peak_memory(called, partial(prepared, rule, 5, SIZES[label]))
        rows.append(mib / (4 * SIZES[label] / 2**20))
        measured.append({"table": "Memory beyond the updates, K = 5", "rule": name, "P": label,
                         "mib": mib, "rows": rows[-1]})  # fmt: skip
    values["memory"] = None if quick else max(rows)
    notes = [
        "Rules, loops and limits have one thread each, but where the table says otherwise. Literal "
        "loops were not run where K·P > 160 M."
    ]
    if not quick and values["compiled"] is None:
        notes.append("No C++ compiler was found, so torch.compile was not measured.")
    return {"measured": measured, "goals": values, "notes": notes}


if __name__ == "__main__":
    main(__file__)
