"""A method played from its expression, with the network that it makes of a study's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unseen import Model, Training, method, play, start
from unseen.core.client import Client
from unseen.core.exchange import Blueprint, Method, Outcome, State
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed, other_seed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.errors import Incompatible

RECIPE = Training(SGD(0.05), batch_size=8)


def blueprint(clients: dict[str, Client], net: str, seed: int = 0, rounds: int = 4) -> Blueprint:
    """What a study would build for these clients."""
    first = next(iter(clients.values()))
    shape, outputs = tuple(first.split("train").x.shape[1:]), first.classes or 1

    def another(m: int):
        return build(net, shape, outputs, keyed(f"{other_seed(seed, m)}/model"))

    return Blueprint(another(0), shape, outputs, another, first.classes, rounds, len(clients))


def completed(chosen: Method, plan: Blueprint, device: str = "cpu") -> tuple[Method, Model]:
    """The method for its network, and the model; nets of images in channels-last."""
    network = chosen.adapt(plan) if chosen.adapt is not None else plan.network
    if len(plan.shape) == 3:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = Model(network, device, plan.shape)
    return chosen.completed(model, plan), model


@dataclass
class Played:
    """What a run leaves: the model is bound to the last state."""

    state: State
    outcomes: list[Outcome]
    model: Model
    method: Method


def played(
    expression: str,
    clients: dict[str, Client],
    rounds: int = 4,
    seed: int = 0,
    net: str = "mlp(widths=[8])",
    training: Training = RECIPE,
    backend=InProcess,
    fraction: float = 1.0,
    device: str = "cpu",
) -> Played:
    """Play a method to its end."""
    plan = blueprint(clients, net, seed, rounds)
    chosen = method(expression, training)
    if reason := chosen.unfit(plan):
        raise Incompatible(chosen.name, reason)
    chosen, model = completed(chosen, plan, device)
    names = sorted(clients)
    state, outcomes = play(
        chosen, start(chosen, model, names, seed), backend(model, clients), names,
        chosen.rounds or rounds, fraction,
    )  # fmt: skip
    model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
    model.module.eval()
    return Played(state, outcomes, model, chosen)


def only(network) -> Blueprint:
    """A blueprint for methods that change the study's one network."""
    return Blueprint(network, (), 1, lambda m: network, 2, 1, 1)
