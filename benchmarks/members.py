"""`glm`, `boost`, `ensemble` and a mixture, against pooled fits, one federation and copies."""

from __future__ import annotations

from typing import Any

import torch
from harness import Goal, interleaved, main
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from unseen import Client, InProcess, Model, Split, Training, method, start
from unseen.core import play_round
from unseen.core.exchange import Blueprint
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed, other_seed
from unseen.data.networks import build
from unseen.engine.stacked import Stacked

#: Without it, boost takes some four times as long.
extras = ("fast",)
goals = [
    Goal("glm", "seconds of `glm` to its end", at_most=2.0),
    Goal("boost", "`boost` against HistGradientBoosting on the pooled rows", at_most=2.0),
    Goal("ensemble", "five federations in one job against one", at_most=5.0),
    Goal("batch", "five federations as one batch of models (`Stacked`) against one", at_most=3.0),
    Goal(
        "parts",
        "a mixture with trees whose parts are written in place, against copies",
        at_most=0.9,
    ),
]


def sites(rows: int, columns: int, count: int, classes: int = 2) -> dict[str, Client]:
    """Rows of some classes, dealt to the sites in turn."""
    generator = keyed("rows")
    x = torch.randn(rows, columns, generator=generator)
    score = x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(rows, generator=generator)
    y = (score > 0).long() if classes == 2 else (score.abs() * 3).long().clamp(max=classes - 1)
    names = (f"site-{k:02d}" for k in range(count))
    own = {n: Split(x[k::count], y[k::count]) for k, n in enumerate(names)}
    return {n: Client(n, split, None, classes) for n, split in own.items()}


def played(
    expression: str,
    clients: dict[str, Client],
    rounds: int = 1,
    backend: Any = InProcess,
    owned: set[str] | None = None,
) -> None:
    """A method from its start to its end."""
    shape = tuple(clients["site-00"].split("train").x.shape[1:])
    classes = clients["site-00"].classes or 2

    def another(m: int) -> torch.nn.Module:
        return build("mlp(widths=[32])", shape, classes, keyed(f"{other_seed(0, m)}/model"))

    chosen = method(expression, Training(SGD(0.05), batch_size=64))
    plan = Blueprint(another(0), shape, classes, another, classes, rounds, len(clients))
    model = Model(chosen.adapt(plan) if chosen.adapt else plan.network)
    chosen = chosen.completed(model, plan)
    names = sorted(clients)
    state, place = start(chosen, model, names, 0), backend(model, clients)
    rounds = chosen.rounds or rounds
    for _ in range(rounds):
        state, _ = play_round(chosen, state, place, names, rounds, owned=owned)


def run(quick: bool) -> dict[str, Any]:
    """Time each against its counterpart, in turn, on one thread."""
    torch.set_num_threads(1)
    rows, columns, count = (2_000, 6, 4) if quick else (40_000, 34, 16)
    trees, repeats = (5, 1) if quick else (100, 5)
    clients = sites(rows, columns, count)
    x = torch.cat([c.split("train").x for c in clients.values()]).numpy()
    y = torch.cat([c.split("train").y for c in clients.values()]).numpy()
    pooled = HistGradientBoostingClassifier(max_iter=trees, early_stopping=False)
    boosts = {
        "unseen": lambda: played(f"boost(trees={trees})", clients),
        "pooled": lambda: pooled.fit(x, y),
    }
    glms = {
        "unseen": lambda: played("glm", clients),
        "pooled": lambda: LogisticRegression(solver="newton-cholesky").fit(x, y),
    }
    federations = {
        "five": lambda: played("fedavg+ensemble(members=5)", clients, 3),
        "five as one batch": lambda: played("fedavg+ensemble(members=5)", clients, 3, Stacked),
        "one": lambda: played("fedavg", clients, 3),
    }
    small = sites(600, 10, 6, classes=11)
    mixture = f"portfolio(members=['fedavg', 'forest(trees={trees})'], ensemble=1)"
    mixtures = {
        "in place": lambda: played(mixture, small, 20, Stacked, set()),
        "copies": lambda: played(mixture, small, 20, Stacked),
    }
    parts = interleaved(mixtures, repeats)
    boost, glm = interleaved(boosts, repeats), interleaved(glms, repeats)
    ensemble = interleaved(federations, repeats)
    measured = [
        *glm.rows("glm", "pooled"),
        *boost.rows(f"boost, {trees} trees", "pooled"),
        *ensemble.rows("ensemble of five", "one"),
        *parts.rows(f"a network and {trees} trees, mixed", "copies"),
    ]
    asked = {
        "glm": sorted(glm.cpu["unseen"])[repeats // 2],
        "boost": boost.ratio("unseen", "pooled", cpu=True).list(),
        "ensemble": ensemble.ratio("five", "one", cpu=True).list(),
        "parts": parts.ratio("in place", "copies", cpu=True).list(),
        "batch": ensemble.ratio("five as one batch", "one", cpu=True).list(),
    }
    notes = [f"{rows:,} made rows of two classes, {columns} columns, {count} sites, one thread.",
             "The mixture: 600 rows of eleven classes, 10 columns, 6 sites."]  # fmt: skip
    return {"measured": measured, "goals": asked, "notes": notes}


if __name__ == "__main__":
    main(__file__)
