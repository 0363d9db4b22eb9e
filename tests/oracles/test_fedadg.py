"""FedADG against three networks and three optimisers, one after the other as released."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.alone import RECIPE, blueprint, completed, only, played
from support.sites import federation
from torch import nn

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.parts import innermost
from unseen.core.turn import Turn, keyed
from unseen.data.networks.generator import Referred, with_generator
from unseen.engine.inprocess import InProcess
from unseen.methods.fedadg import (
    OWN,
    Adversarial,
    first_discriminator,
    random_rows,
    steps_of,
)
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.feddyn import Dynamic
from unseen.methods.gradient.proximal import Proximal

LR, RATE, ALPHA = 0.05, 0.2, 0.8
TURN = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")


class Judge(nn.Module):
    """The released discriminator: projection, a hidden layer, a sigmoid."""

    def __init__(self, own: torch.Tensor, inputs: int, hidden: int, projection: torch.Tensor):
        super().__init__()
        self.body, self.out = nn.Linear(inputs, hidden), nn.Linear(hidden, 1)
        self.projection = projection
        nn.utils.vector_to_parameters(own.clone(), self.parameters())

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        h = F.one_hot(y, 3).float()
        return torch.sigmoid(
            self.out(F.leaky_relu(self.body(torch.cat([z @ self.projection, h], 1))))
        )


@pytest.mark.parametrize("projection", [1024, 3])
def test_steps_are_those_of_three_networks_that_train_in_turn(projection: int) -> None:
    torch.manual_seed(1)
    body, head = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)
    net = with_generator(nn.Sequential(*body, head), 4, 7)
    made = net[2].generator
    model = Model(net, shape=(6,))
    training = Training(SGD(LR), epochs=None, steps=5, batch_size=8)
    gradient = Adversarial(
        Backprop(), training, ALPHA, alone=0.4, rate=RATE, hidden=6, projection=projection
    )
    own = first_discriminator(5, 3, 6, projection)
    size = min(5, projection)
    matrix = torch.eye(5) if size == 5 else random_rows(5, 3)

    # The other side: copies of their own.
    judge = Judge(own, size + 3, 6, matrix)
    theirs = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)
    theirs[0].load_state_dict(body.state_dict())
    theirs[1].load_state_dict(head.state_dict())
    maker = nn.Sequential(nn.Linear(7, 7), nn.LeakyReLU(), nn.Linear(7, 5), nn.ReLU())
    maker[0].load_state_dict(made.first.state_dict())
    maker[2].load_state_dict(made.second.state_dict())
    task = torch.optim.SGD([*theirs[0].parameters(), *theirs[1].parameters()], LR)
    gen, dis = (torch.optim.SGD(m.parameters(), r) for m, r in ((maker, LR), (judge, RATE)))

    draws, noise = keyed("fedadg test"), TURN.generator("fedadg")
    batches = [
        (torch.randn(8, 6, generator=draws), torch.randint(3, (8,), generator=draws))
        for _ in range(5)
    ]
    client = Client("site-a", Split(*batches[0]), None, 3)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    values = []
    with gradient.open(model, inbox, client, {OWN: own}, TURN) as step:
        for x, y in batches:
            values.append(step(x, y))
            with torch.no_grad():
                model.vector.sub_(LR * model.gradient)

    for i, (x, y) in enumerate(batches):
        if i < 2:  # the first two of five are the share that trains alone
            task.zero_grad()
            loss = F.cross_entropy(theirs[1](theirs[0](x)), y)
            loss.backward()
            task.step()
            torch.testing.assert_close(values[i], loss.detach())
            continue
        random = torch.cat([torch.rand(8, 4, generator=noise), F.one_hot(y, 3).float()], 1)
        dis.zero_grad()
        fake, real = theirs[0](x).detach(), maker(random).detach()
        ((1 - judge(y, real)) ** 2 + judge(y, fake) ** 2).mean().backward()
        dis.step()
        task.zero_grad()
        z = theirs[0](x)
        loss = ALPHA * F.cross_entropy(theirs[1](z), y)
        loss = loss + (1 - ALPHA) * ((1 - judge(y, z)) ** 2).mean()
        loss.backward()
        task.step()
        gen.zero_grad()
        (judge(y, maker(random)) ** 2).mean().backward()
        gen.step()
        torch.testing.assert_close(values[i], loss.detach())
    expected = nn.utils.parameters_to_vector([*theirs[0].parameters(), *theirs[1].parameters()])
    found = nn.utils.parameters_to_vector([*body.parameters(), *head.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(made.first.weight, maker[0].weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(made.second.bias, maker[2].bias, rtol=1e-4, atol=1e-6)
    judged = nn.utils.parameters_to_vector(judge.parameters())
    torch.testing.assert_close(own, judged, rtol=1e-4, atol=1e-6)
    assert not torch.equal(own, first_discriminator(5, 3, 6, projection))


def test_alpha_of_one_is_fedavg_in_what_both_nets_have() -> None:
    clients = federation(3)
    one = played("fedadg(alpha=1)", clients, 2).model
    plain = played("fedavg(weights='uniform')", clients, 2).model
    named = {n.replace(".head.", "."): p for n, p in one.module.named_parameters()}
    for name, p in plain.module.named_parameters():
        assert torch.equal(named[name], p)


def test_discriminators_stay_and_differ_and_the_generator_is_one() -> None:

    clients = federation(3)
    chosen, model = completed(method("fedadg", RECIPE), blueprint(clients, "mlp(widths=[8])"))
    backend, names = InProcess(model, clients), sorted(clients)
    begun = start(chosen, model, names, 0)
    state, _ = play(chosen, begun, backend, names, 2)
    kept = [backend.memories.by_client[n][-1][1][OWN] for n in names]
    assert not torch.equal(kept[0], kept[1])
    assert set(state.inbox) == {"model", "buffers"}
    first = begun.inbox["model"]
    part = model.layout.views(first - state.inbox["model"])
    moved = {n for n, p in part.items() if p.any()}
    assert any("generator" in n for n in moved)


@pytest.mark.parametrize(
    ("training", "examples", "expected"),
    [
        (Training(SGD(0.1), epochs=2, batch_size=8), 20, 6),
        (Training(SGD(0.1), epochs=2, batch_size=8, drop_last=True), 20, 4),
        (Training(SGD(0.1), epochs=None, steps=7, batch_size=8), 20, 7),
    ],
)
def test_steps_of_a_round(training: Training, examples: int, expected: int) -> None:
    assert steps_of(training, examples) == expected


def test_a_net_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(UnseenError, match="generates what enters the last linear layer"):
        method("fedadg").adapt(only(nn.Conv2d(1, 1, 1)))
    assert isinstance(method("fedadg").adapt(only(nn.Linear(2, 2))), Referred)


@pytest.mark.parametrize("base", ["fedprox(mu=1.0)", "feddyn(alpha=0.3)"])
def test_terms_of_the_parameters_are_not_weighed_by_alpha(base: str) -> None:
    """α ℓ + ... + (μ/2) ‖w − x‖², the same whichever is named first."""
    clients, added = federation(3), "fedadg(alone=0, noise=2, width=4, hidden=3, projection=4)"
    recipe = replace(RECIPE, weights="uniform")
    found = played(f"{base}+{added}", clients, 2, training=recipe).state.inbox["model"]
    layers = method(f"{base}+{added}").exchanges[0].local
    assert isinstance(innermost(layers).gradient, Proximal | Dynamic)
    if base.startswith("fedprox"):
        other = played(f"{added}+fedprox(mu=1.0)", clients, 2, training=recipe).state.inbox["model"]
        assert torch.equal(found, other)
