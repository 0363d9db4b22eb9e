"""`glm`, `boost` and `ensemble` in one process, against the fit of the pooled rows.

    python benchmarks/members.py [--rows 40000] [--columns 34] [--sites 16] [--trees 100]

Made rows of two classes, one thread. `glm` is timed to its end; `boost` against scikit-learn's
HistGradientBoosting on all rows, in the same run; five federations in one job against one. Times
are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.exchange import Blueprint
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed, other_seed
from unseen.models import build


def made(rows: int, columns: int, sites: int) -> dict[str, Client]:
    generator = keyed("rows")
    x = torch.randn(rows, columns, generator=generator)
    score = x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(rows, generator=generator)
    y = (score > 0).long()
    names = (f"site-{k:02d}" for k in range(sites))
    return {n: Client(n, Split(x[k::sites], y[k::sites]), None, 2) for k, n in enumerate(names)}


def played(expression: str, clients: dict[str, Client], rounds: int) -> None:
    shape = clients["site-00"].split("train").x.shape[1:]

    def another(m: int) -> torch.nn.Module:
        return build("mlp(widths=[32])", tuple(shape), 2, keyed(f"{other_seed(0, m)}/model"))

    chosen = method(expression, Training(SGD(0.05), batch_size=64))
    plan = Blueprint(another(0), tuple(shape), 2, another, 2, rounds, len(clients))
    model = Model(chosen.adapt(plan) if chosen.adapt else plan.network)
    chosen = chosen.sized(chosen, model, plan) if chosen.sized else chosen
    names = sorted(clients)
    state = start(chosen, model, names, 0)
    play(chosen, state, InProcess(model, clients), names, chosen.rounds or rounds)


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--columns", type=int, default=34)
    parser.add_argument("--sites", type=int, default=16)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    clients = made(options.rows, options.columns, options.sites)
    x = torch.cat([c.split("train").x for c in clients.values()]).numpy()
    y = torch.cat([c.split("train").y for c in clients.values()]).numpy()
    played("glm(steps=1)", clients, 1)
    print(f"{options.rows:,} rows, {options.columns} columns, {options.sites} sites, 1 thread")
    print(f"glm, to its end: {seconds(lambda: played('glm', clients, 1)):.2f} s")
    pooled = HistGradientBoostingClassifier(max_iter=options.trees, early_stopping=False)
    theirs = seconds(lambda: pooled.fit(x, y))
    ours = seconds(lambda: played(f"boost(trees={options.trees})", clients, 1))
    print(f"boost, {options.trees} trees: {ours:.1f} s; pooled: {theirs:.1f}; {ours / theirs:.1f}")
    one = seconds(lambda: played("fedavg", clients, options.rounds))
    five = seconds(lambda: played("fedavg+ensemble(members=5)", clients, options.rounds))
    print(f"ensemble of 5: {five:.1f} s; one federation: {one:.1f}; {five / one:.2f}")


if __name__ == "__main__":
    main()
