"""Clients with F_i(w) = (a_i/2)(w − x_i*)², whose local training has a closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from unseen import Client, Model, Split, Training, method, play, start
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD
from unseen.engine.inprocess import InProcess


class Point(nn.Module):
    """w x with one number w, so that the squared error of (s, s x*) is s² (w − x*)²."""

    def __init__(self, w: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((1, 1), w, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def quadratics(
    curvatures: Sequence[float], optima: Sequence[float], sizes: Sequence[int]
) -> dict[str, Client]:
    """One client for each: its examples are all the same, so that any batch is the whole."""
    clients = {}
    for k, (a, optimum, n) in enumerate(zip(curvatures, optima, sizes, strict=True)):
        x = torch.full((n, 1), (a / 2) ** 0.5, dtype=torch.float64)
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x, x[:, 0] * optimum), None, None)
    return clients


def recipe(lr: float, momentum: float = 0.0, **settings) -> Training:
    """One example per step: a client of n examples takes n steps in an epoch."""
    settings = {"batch_size": 1, **settings}
    return Training(SGD(lr, momentum), loss=SquaredError(), **settings)


def run(expression: str, training: Training, clients, rounds: int, begin: float = 0.0):
    """The state and outcomes of `play`, from w = begin."""
    model, names = Model(Point(begin)), sorted(clients)
    chosen = method(expression, training)
    backend = InProcess(model, clients)
    return play(chosen, start(chosen, model, names, 0), backend, names, rounds)


def settled(expression: str, training: Training, clients, rounds: int) -> float:
    """Where the server's w is after many rounds."""
    state, _ = run(expression, training, clients, rounds)
    return float(state.inbox["model"])


def fixed_point(expression: str, training: Training, clients) -> float:
    """Where w stays, for a method that keeps nothing between rounds: a round is affine in w."""
    zero, one = (
        float(run(expression, training, clients, 1, begin)[0].inbox["model"])
        for begin in (0.0, 1.0)
    )
    assert abs(one - zero) < 1  # rounds contract, so that w gets there
    return zero / (1 - (one - zero))
