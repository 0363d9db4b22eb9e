"""StableFDG's styles written out example by example, its choices by their distributions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.alone import played
from support.sites import images
from torch import nn

from unseen import Client, Model, Split
from unseen.core.turn import Turn, keyed
from unseen.gradient import Backprop
from unseen.gradient.mixup import beta
from unseen.gradient.style_exploration import (
    STYLES,
    StyleExplored,
    StyleStatistics,
    partner,
    rarest,
    shifted,
    spread_out,
)

TURN = Turn(0, 1, 3, "train", "site-b", roster=("site-a", "site-b", "site-c"))


def maps(n: int, name: str = "maps") -> torch.Tensor:
    return torch.randn(n, 3, 4, 4, generator=keyed(name), dtype=torch.float64) + torch.randn(
        n, 3, 1, 1, generator=keyed(f"{name}/means"), dtype=torch.float64
    )


def style_of(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one example's maps [C, H, W]: mean and deviation of each channel [C]."""
    flat = z.flatten(1)
    return flat.mean(1), (flat.var(1) + 1e-6).sqrt()


@pytest.mark.parametrize("n", [7, 8])
def test_half_of_a_batch_takes_styles_of_the_other_clients_distribution(n: int) -> None:
    z = maps(n)
    style = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.6, 0.7, 0.1, 0.2, 0.3, 0.01, 0.02, 0.03])
    new = shifted(z, style, n, keyed("shift"))
    moved = [i for i in range(n) if not torch.equal(new[i], z[i])]
    assert len(moved) == n // 2
    draws = keyed("shift")
    own = torch.stack([torch.cat(style_of(one)) for one in z])
    assert set(moved) == set(range(n)) - set(spread_out(own, n - n // 2, draws).tolist())
    noise = torch.randn(n // 2, 6, generator=draws)
    for i, e in zip(moved, noise.double(), strict=True):
        mean, deviation = style_of(z[i])
        m, s = (style[:6] + e * style[6:]).double().split(3)
        for c in range(3):
            expected = (z[i, c] - mean[c]) / deviation[c] * s[c] + m[c]
            torch.testing.assert_close(new[i, c], expected)


def test_a_deviation_below_zero_becomes_zero() -> None:
    style = torch.cat([torch.zeros(3), torch.full((3,), -1.0), torch.zeros(6)])
    new = shifted(maps(4), style, 4, keyed("shift"))
    flat = new.flatten(1)
    assert int((flat == 0).all(1).sum()) == 2


def test_styles_that_stay_are_chosen_by_kmeans_plus_plus() -> None:
    """Of 0, 1 and 3 on a line, after 0 come 1 and 3 with chances 1 : 9."""
    points, draws = torch.tensor([[0.0], [1.0], [3.0]]), keyed("plus plus")
    pairs = [tuple(spread_out(points, 2, draws).tolist()) for _ in range(6000)]
    after = [b for a, b in pairs if a == 0]
    share = sum(b == 2 for b in after) / len(after)
    assert abs(share - 0.9) < 5 * (0.9 * 0.1 / len(after)) ** 0.5
    assert abs(len(after) / 6000 - 1 / 3) < 5 * (2 / 9 / 6000) ** 0.5
    assert sorted(spread_out(torch.zeros(5, 2), 5, draws).tolist()) == list(range(5))


def test_rare_classes_are_filled_up_one_after_the_other() -> None:
    y = torch.tensor([0] * 5 + [1] * 2 + [4])
    for count, expected in ((0, [5, 2, 1]), (1, [5, 2, 2]), (3, [5, 3, 3]), (8, [6, 5, 5])):
        for seed in range(5):
            added = rarest(y, count, keyed(f"rare/{seed}"))
            whole = torch.cat([y, y[added]])
            found = sorted(((whole == k).sum().item() for k in (0, 1, 4)), reverse=True)
            assert found == expected
    assert set(rarest(y, 60, keyed("all")).tolist()) == set(range(8))


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_added_examples_have_styles_further_out_and_all_are_mixed(level: float) -> None:
    z, first = maps(8), torch.tensor([4, 0])  # the batch has six examples, two more are to come
    gradient = StyleExplored(Backprop(), level=level, alpha=0.4)
    found = gradient.explored(z, first, 6, keyed("explore"))
    draws = keyed("explore")
    whole = [*z[:6], z[4], z[0]]
    own = [style_of(one) for one in whole]
    centre = [sum(own[i][k] for i in range(6)) / 6 for k in (0, 1)]
    new = own[:6] + [
        tuple(own[i][k] + level * (own[i][k] - centre[k]) for k in (0, 1)) for i in (6, 7)
    ]
    lam = [beta(0.4, draws) for _ in range(8)]
    order = torch.randperm(8, generator=draws).tolist()
    for i, one in enumerate(whole):
        m, s = (
            torch.tensor(lam[i]) * new[i][k] + (1 - torch.tensor(lam[i])) * new[order[i]][k]
            for k in (0, 1)
        )
        mean, deviation = own[i]
        expected = (one - mean[:, None, None]) / deviation[:, None, None] * s[:, None, None]
        torch.testing.assert_close(found[i], expected + m[:, None, None], rtol=1e-6, atol=1e-6)


def test_clients_send_the_mean_and_spread_of_their_styles() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(),
                        nn.Linear(2 * 16, 3))  # fmt: skip
    client = next(iter(images(1).values()))
    model = Model(net, shape=(1, 8, 8))
    reply, _ = StyleStatistics()(model, {}, client, {}, TURN)
    z = net[0](client.train.x).detach()
    own = torch.stack([torch.cat(style_of(one)) for one in z])
    expected = torch.cat([own.mean(0), own.std(0)])
    torch.testing.assert_close(reply.rows[STYLES], expected, rtol=1e-4, atol=1e-4)


def test_every_client_has_another_ones_style() -> None:
    rows = torch.arange(1.0, 6.0)[:, None].expand(5, 4)
    names = tuple("abcde")
    seen = set()
    for round in range(30):
        turns = [Turn(0, round, 30, "train", n, roster=names) for n in names]
        got = [int(partner(rows, turn)[0]) - 1 for turn in turns]
        assert sorted(got) == list(range(5))
        assert all(i != k for i, k in enumerate(got))
        seen.add(tuple(got))
    assert len(seen) > 10  # another circle each round
    absent = rows.clone()
    absent[[1, 3]] = 0
    assert {int(partner(absent, turn)[0]) - 1 for turn in turns} <= {0, 2, 4}
    assert partner(absent[:1] * 0, turns[0]) is None
    assert partner(rows[:1], turns[0]) is None  # nobody but itself


def test_a_step_is_the_loss_of_batch_and_added_examples() -> None:
    """Where styles neither move nor mix, the step is plain training on the enlarged batch."""
    client = next(iter(images(1).values()))
    x, y = client.train.x[:9], client.train.y[:9]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(),
                        nn.Linear(2 * 16, 3))  # fmt: skip
    model = Model(net, shape=(1, 8, 8))
    inbox = {"model": model.vector.clone(), STYLES: torch.zeros(3, 12)}
    gradient = StyleExplored(Backprop(), p=1.0, level=0.0, oversample=2 / 3, alpha=1e-12)
    with gradient.open(model, inbox, Client("site-b", Split(x, y), None, 3), {}, TURN) as step:
        value = step(x, y)
    draws = TURN.generator("stablefdg")
    torch.rand(1, generator=draws)
    added = rarest(y, 6, draws)
    whole = torch.cat([x, x[added]])
    assert len(whole) == 15
    own = [
        torch.tensor([beta(1e-12, draws) for _ in range(15)]),
        torch.randperm(15, generator=draws),
    ]
    z = net[0](whole)
    mean, deviation = z.mean((2, 3), keepdim=True), (z.var((2, 3), keepdim=True) + 1e-6).sqrt()
    m, s = mean.detach(), deviation.detach()
    share = own[0].float().view(-1, 1, 1, 1)
    mixed = (z - m) / s * (share * s + (1 - share) * s[own[1]])
    mixed = mixed + share * m + (1 - share) * m[own[1]]
    loss = F.cross_entropy(net[1:](mixed), torch.cat([y, y[added]]))
    torch.testing.assert_close(value, loss.detach(), rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    views = model.layout.views(model.gradient)
    for (name, _), g in zip(net.named_parameters(), grads, strict=True):
        torch.testing.assert_close(views[name], g, rtol=1e-3, atol=1e-5)


def test_without_sharing_and_exploring_it_is_fedavg() -> None:
    clients = images(3)
    off = played("stablefdg-style(share=0, p=0)", clients, 3, net="bn-cnn").state.inbox["model"]
    plain = played("fedavg(weights='uniform')", clients, 3, net="bn-cnn").state.inbox["model"]
    assert torch.equal(off, plain)
    shared = played("stablefdg-style(share=1, p=0)", clients, 3, net="bn-cnn").state.inbox["model"]
    assert not torch.equal(shared, plain)
