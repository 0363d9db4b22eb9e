"""FixBN: the second stage against a net whose BatchNorm is written out as an affine map."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import images
from torch import nn

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.gradient import Backprop, SelfChallenging
from unseen.gradient.fixed_statistics import FixedStatistics


def turn(r: int) -> Turn:
    return Turn(seed=0, round=r, rounds=4, exchange="train", client="site-a")


def net() -> nn.Module:
    torch.manual_seed(0)
    whole = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    whole[1].running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
    whole[1].running_var.copy_(torch.tensor([0.5, 2.0, 1.0, 0.3]))
    return whole


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draws = keyed("fixbn")
    return torch.randn(6, 1, 8, 8, generator=draws), torch.randint(3, (6,), generator=draws)


def step_of(model: Model, r: int, gradient=None) -> torch.Tensor:
    x, y = data()
    client = Client("site-a", Split(x, y), None, 3)
    model.module.train()
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    with (gradient or FixedStatistics(Backprop(), 0.5)).open(
        model, inbox, client, {}, turn(r)
    ) as step:
        return step(x, y)


def test_the_second_stage_is_an_affine_map_by_the_received_statistics() -> None:
    model, other, (x, y) = Model(net()), net(), data()
    before = model.buffers.clone()
    value = step_of(model, 2)
    conv, norm, head = other[0], other[1], other[4]
    z = conv(x)
    z = (z - norm.running_mean.view(1, 4, 1, 1)) / (norm.running_var.view(1, 4, 1, 1) + 1e-5).sqrt()
    z = z * norm.weight.view(1, 4, 1, 1) + norm.bias.view(1, 4, 1, 1)
    loss = F.cross_entropy(head(z.relu().flatten(1)), y)
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(other.parameters()))])
    torch.testing.assert_close(value, loss.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.gradient, flat, rtol=1e-4, atol=1e-6)
    assert torch.equal(model.buffers, before)


def test_the_first_stage_is_the_inner_gradient_bit_for_bit() -> None:
    model, other = Model(net()), Model(net())
    step_of(model, 1)
    step_of(other, 1, Backprop())
    assert torch.equal(model.gradient, other.gradient)
    assert torch.equal(model.buffers, other.buffers)
    assert not torch.equal(model.buffers, Model(net()).buffers)


def test_parts_that_switch_modes_do_not_switch_it_off() -> None:
    """RSC puts the net in evaluation mode and back inside a step."""
    model = Model(net())
    before = model.buffers.clone()
    step_of(model, 3, FixedStatistics(SelfChallenging(Backprop())))
    assert torch.equal(model.buffers, before)
    step_of(model, 0, FixedStatistics(SelfChallenging(Backprop())))
    assert not torch.equal(model.buffers, before)


def test_the_servers_statistics_stand_still_from_the_middle_on() -> None:
    clients = images(2)
    states = [
        played("fixbn", clients, rounds=4, net="bn-cnn"), played("fedavg", clients, 4, net="bn-cnn")
    ]  # fmt: skip
    half = played("fixbn(start=1)", clients, 2, net="bn-cnn")
    torch.testing.assert_close(states[0].state.inbox["buffers"], half.state.inbox["buffers"])
    assert not torch.equal(states[1].state.inbox["buffers"], half.state.inbox["buffers"])
    assert not torch.equal(states[0].state.inbox["model"], half.state.inbox["model"])


def test_it_asks_for_batchnorm_and_is_put_on_once() -> None:
    assert "batchnorm" in method("fedprox+fixbn").asks
    with pytest.raises(UnseenError, match="already"):
        method("fixbn+fixbn")


@pytest.mark.parametrize(("r", "fixed"), [(6, False), (7, True), (8, True)])
def test_it_starts_in_the_round_that_the_share_names(r: int, fixed: bool) -> None:
    """0.07 of 100 rounds is round 7, though 0.07 * 100 is more than 7 in floating point."""
    model, (x, y) = Model(net()), data()
    model.module.train()
    before = model.buffers.clone()
    inbox = {"model": model.vector.clone(), "buffers": before.clone()}
    at = Turn(seed=0, round=r, rounds=100, exchange="train", client="site-a")
    client = Client("site-a", Split(x, y), None, 3)
    with FixedStatistics(Backprop(), 0.07).open(model, inbox, client, {}, at) as step:
        step(x, y)
    assert torch.equal(model.buffers, before) == fixed
