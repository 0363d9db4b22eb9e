"""Layers that look at a batch or draw: in a batch of models as alone, or refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked, unstackable
from unseen.errors import UnseenError

RECIPE = Training(SGD(0.05), batch_size=6)
#: Largest difference of a parameter, in units of the largest: rounding, over some ten steps.
TOLERANCE = 2e-4


class Net(nn.Module):
    """A layer of one's own between two that are linear."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(width, 3)
        self.norm, self.drop, self.other = nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.between(self.first(x)))
        return z

    def between(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class Resting(Net):
    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        self.drop.eval()
        return self

    def between(self, z: Tensor) -> Tensor:
        return self.drop(self.norm(z).relu())  # type: ignore[no-any-return]


class TrainsOtherwise(Net):
    def between(self, z: Tensor) -> Tensor:
        z = self.norm(z).relu()
        return self.drop(z) if self.training else self.other(z)  # type: ignore[no-any-return]


class Functional(Net):
    def between(self, z: Tensor) -> Tensor:
        own = self.norm
        return F.batch_norm(
            z, own.running_mean, own.running_var, own.weight, own.bias, self.training
        )


class Draws(Net):
    def between(self, z: Tensor) -> Tensor:
        return F.dropout(z.relu(), 0.3, self.training)


class Centres(Net):
    def between(self, z: Tensor) -> Tensor:
        return self.norm(z - z.mean(0))  # type: ignore[no-any-return]


class Doubles(Net):
    def between(self, z: Tensor) -> Tensor:
        return self.norm(torch.cat([z, -z]))[: len(z)]  # type: ignore[no-any-return]


class Turned(Net):
    def __init__(self) -> None:
        super().__init__(12)

    def between(self, z: Tensor) -> Tensor:
        pairs = z.relu().unflatten(1, (2, 3)).transpose(1, 2)
        return torch.cat([self.drop(pairs).flatten(1), z], 1)


class Scaled(Net):
    def __init__(self, scale: float, order: list[int]) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("order", torch.tensor(order))

    def between(self, z: Tensor) -> Tensor:
        return self.scale * z[:, self.order].relu()  # type: ignore[index]


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class Twice(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)  # type: ignore[no-any-return]


def between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[2].weight = net[0].weight
    return net


def same_parts() -> nn.Module:
    drop, relu = nn.Dropout(0.3), nn.ReLU()
    return between(relu, drop, nn.Linear(6, 6), relu, drop)


def own_forward() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    net[1].forward = lambda x: x + 1  # type: ignore[method-assign]
    return net


def same_linear() -> nn.Module:
    inner = nn.Linear(6, 6)
    return between(nn.ReLU(), inner, nn.Tanh(), inner)


def deep() -> nn.Module:
    layers = [(nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(20)]
    return between(*(layer for block in layers for layer in block))


def played(net: Callable[[], nn.Module], recipe: Training, kind: Any, **options: bool) -> Tensor:
    torch.manual_seed(0)
    model = Model(net(), shape=(4,))
    roster = {}
    for name, size in zip("abc", (20, 9, 14), strict=True):
        x = torch.randn(size, 4, generator=keyed(name))
        roster[name] = Client(name, Split(x, (x.sum(1) > 0).long()), None, 3)
    chosen = method("fedavg", recipe)
    place, names = kind(model, roster, **options), list(roster)
    assert not options or unstackable(chosen, model, roster, always=True) == ""
    state, _ = play(chosen, start(chosen, model, names, 0), place, names, 3)
    return torch.cat([state.inbox["model"], state.inbox["buffers"]])


@pytest.mark.parametrize(
    "net",
    [
        Resting,
        TrainsOtherwise,
        lambda: between(nn.BatchNorm1d(6, track_running_stats=False)),
        lambda: between(nn.BatchNorm1d(6, affine=False)),
        lambda: between(nn.BatchNorm1d(6, bias=False)),
        lambda: between(nn.Dropout(1.0)),
        lambda: between(nn.ReLU(), nn.Dropout(0.3), nn.Dropout(0.5)),
        lambda: Twice(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        same_parts,
        tied,
    ],
)
def test_a_batch_of_models_is_one_by_one(net: Callable[[], nn.Module]) -> None:
    alone, together = played(net, RECIPE, InProcess), played(net, RECIPE, Stacked, always=True)
    assert float((together - alone).abs().max() / alone.abs().max()) < TOLERANCE


def test_a_model_that_has_taken_its_steps_stays_finite() -> None:
    """Each of twenty layers would multiply it by 1 / √ε, were its statistics of zeros."""
    assert played(deep, RECIPE, Stacked, always=True).isfinite().all()


def test_splits_of_less_than_a_batch_would_take_no_step_and_are_refused() -> None:
    recipe = Training(SGD(0.05), batch_size=64, drop_last=True)
    for backend, options in ((InProcess, {}), (Stacked, {"always": True})):
        with pytest.raises(UnseenError, match="would take no step"):
            played(lambda: between(nn.ReLU()), recipe, backend, **options)


def test_jobs_of_networks_that_look_alike_train_apart() -> None:
    """Their tensors that train and their texts are the same."""
    orders = [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]
    nets = [partial(Scaled, *own) for own in ((1.0, orders[0]), (3.0, orders[0]), (1.0, orders[1]))]
    alone = [played(net, RECIPE, InProcess) for net in nets]
    meeting = Meeting(Trainer())
    place = partial(Stacked, trainer=meeting)
    jobs = [partial(played, net, RECIPE, place, always=True) for net in nets]
    for mine, theirs in zip(meeting.hold(jobs), alone, strict=True):
        assert float((mine - theirs).abs().max() / theirs.abs().max()) < TOLERANCE


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Functional, "an output depends on other examples"),
        (Draws, "an output depends on other examples, or draws"),
        (Centres, "an output depends on other examples"),
        (Doubles, "BatchNorm1d meets something else"),
        (Turned, "Dropout meets numbers in another order"),
        (lambda: between(OwnNorm(6)), "OwnNorm keeps statistics"),
        (own_forward, "Dropout has a forward of its own"),
        (same_linear, "a Linear is there under two names"),
    ],
)
def test_what_a_batch_of_models_cannot_do(net: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    model = Model(net(), shape=(4,))
    before = model.vector.clone(), model.buffers.clone(), torch.get_rng_state()
    x = torch.randn(8, 4, generator=keyed("x"))
    roster = {"a": Client("a", Split(x, (x[:, 0] > 0).long()), None, 3)}
    assert reason in unstackable(method("fedavg", RECIPE), model, roster, always=True)
    after = model.vector, model.buffers, torch.get_rng_state()
    assert all(map(torch.equal, before, after))  # trying it leaves nothing behind
