"""What the bare loop of start and play refuses, where it would train something else in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from unseen import Client, InProcess, Model, Split, Training, UnseenError, method, play, start
from unseen.core.client import pooled
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD

RECIPE = Training(SGD(0.1), batch_size=8)


def site(name: str, count: int, shift: float) -> Client:
    x = torch.linspace(-1, 1, count)[:, None] + shift
    return Client(name, Split(x, (x[:, 0] > shift).long()), None, 2)


def numbers(name: str, slope: float) -> Client:
    x = torch.linspace(-1, 1, 32)[:, None]
    return Client(name, Split(x, slope * x[:, 0] + 10), None, None)


CLIENTS = {"a": site("a", 16, 0.0), "b": site("b", 40, 1.0)}


def trained(expression: str, clients: dict[str, Client], training=RECIPE, outputs: int = 2):
    torch.manual_seed(0)
    model, chosen, names = Model(nn.Linear(1, outputs)), method(expression, training), [*clients]
    first = start(chosen, model, names, seed=0)
    return play(chosen, first, InProcess(model, clients), names, rounds=40)[0].inbox["model"]


def test_numbers_are_not_trained_by_cross_entropy() -> None:
    clients = {"a": numbers("a", 2.0), "b": numbers("b", 2.0)}
    with pytest.raises(UnseenError, match="'a' has numbers to predict.*SquaredError"):
        trained("fedavg", clients, outputs=1)
    fit = trained("fedavg", clients, replace(RECIPE, loss=SquaredError()), outputs=1)
    assert fit.tolist() == pytest.approx([2.0, 10.0], abs=1e-3)


@pytest.mark.parametrize("expression", ["deepall", "deepall+jigen"])
def test_a_method_of_all_rows_in_one_place_is_not_played_by_several_clients(expression) -> None:
    with pytest.raises(UnseenError, match="trains on all rows in one place; it has 2 clients"):
        trained(expression, CLIENTS)


def test_gathered_clients_play_it() -> None:
    gather = method("deepall", RECIPE).gather
    assert gather is not None
    one = trained("fedavg", {"pooled": pooled(CLIENTS)})
    assert torch.equal(trained("deepall", dict(gather(CLIENTS))), one)


@pytest.mark.parametrize("expression", ["glm", "boost", "bag", "stack", "fedavg+ema", "fpl"])
def test_a_method_that_waits_for_its_network_is_not_played(expression: str) -> None:
    with pytest.raises(UnseenError, match="of its own.*unseen.train"):
        trained(expression, CLIENTS)


@pytest.mark.parametrize("expression", ["fedsr", "fedadg"])
def test_a_network_without_a_methods_layers_is_named(expression: str) -> None:
    with pytest.raises(UnseenError, match=f"{expression} adds layers"):
        trained(expression, CLIENTS)


@pytest.mark.parametrize("length", [{"epochs": 1}, {"epochs": None, "steps": 3}])
def test_a_client_without_a_whole_batch_is_refused_where_short_ones_are_left_out(length) -> None:
    recipe = replace(RECIPE, batch_size=32, drop_last=True, **length)
    with pytest.raises(UnseenError, match="'a' would take no step: its 16 training examples"):
        trained("fedavg", CLIENTS, recipe)


@pytest.mark.parametrize("word", ["raise", "ignore", None])
def test_what_happens_to_a_bad_reply_is_one_of_two_words(word) -> None:
    model, chosen = Model(nn.Linear(1, 2)), method("fedavg", RECIPE)
    with pytest.raises(UnseenError, match="on_bad_reply must be one of 'stop', 'drop'"):
        play(
            chosen, start(chosen, model, ["a"], seed=0), InProcess(model, CLIENTS), ["a"], 1,
            on_bad_reply=word,
        )  # fmt: skip


@pytest.mark.parametrize("part", ["optimiser", "schedule", "loss", "server", "augment"])
def test_a_recipe_is_made_of_objects(part: str) -> None:
    with pytest.raises(UnseenError, match=f"{part} of a Training is an object; found the text"):
        Training(**{part: "sgd(lr=0.1)"})
