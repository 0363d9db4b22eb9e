"""JiGen: permutations and puzzles tile by tile, the objective in a net written out."""

from __future__ import annotations

from itertools import permutations as every_order

import pytest
import torch
import torch.nn.functional as F
from support.alone import only, played
from support.sites import images
from torch import nn

from unseen import Client, Model, Split, UnseenError, method
from unseen.core.turn import Turn, keyed
from unseen.data.networks.two_heads import TwoHeads, with_order
from unseen.methods.gradient import Backprop
from unseen.methods.jigen import Jigsaw, orders, puzzled


def greedy(grid: int, count: int) -> list[tuple[int, ...]]:
    """Noroozi and Favaro's Algorithm 1, in its words, beginning with the order as it is."""
    pool = list(every_order(range(grid**2)))
    chosen = [pool.pop(0)]
    while len(chosen) <= count:
        far = [sum(a != b for p in chosen for a, b in zip(p, q, strict=True)) for q in pool]
        chosen.append(pool.pop(far.index(max(far))))
    return chosen


@pytest.mark.parametrize("count", [1, 5, 23])
def test_orders_are_those_of_the_greedy_algorithm(count: int) -> None:
    assert [tuple(order) for order in orders(2, count).tolist()] == greedy(2, count)


def test_orders_of_nine_tiles_all_differ_and_the_first_is_as_it_is() -> None:
    thirty = orders(3, 30)
    assert thirty.shape == (31, 9)
    assert thirty[0].tolist() == list(range(9))
    assert len({tuple(order) for order in thirty.tolist()}) == 31
    assert torch.equal(thirty.sort(1).values, torch.arange(9).expand(31, 9))
    # Nine derangements of one another at most, a Latin square: all nine places differ.
    square = thirty[:9]
    assert all((a != b).all() for i, a in enumerate(square) for b in square[:i])


@pytest.mark.parametrize(("grid", "H", "W"), [(2, 4, 6), (3, 8, 8), (3, 9, 10)])
def test_a_puzzle_is_put_together_tile_by_tile(grid: int, H: int, W: int) -> None:
    x = torch.rand(3, 2, H, W, generator=keyed("puzzle"))
    order = torch.stack([torch.randperm(grid**2, generator=keyed(f"{n}")) for n in range(3)])
    expected, h, w = x.clone(), H // grid, W // grid
    for n in range(3):
        for k in range(grid**2):
            (a, b), (c, d) = divmod(k, grid), divmod(int(order[n, k]), grid)
            tile = x[n, :, c * h : (c + 1) * h, d * w : (d + 1) * w]
            expected[n, :, a * h : (a + 1) * h, b * w : (b + 1) * w] = tile
    assert torch.equal(puzzled(x, order, grid), expected)
    straight = torch.arange(grid**2).expand(3, -1)
    assert torch.equal(puzzled(x, straight, grid), x)


def net() -> nn.Module:
    torch.manual_seed(1)
    body = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)]
    whole = with_order(nn.Sequential(*body), 6)
    with torch.no_grad():
        for p in whole.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return whole


def test_a_step_is_the_gradient_of_the_papers_objective() -> None:
    draws = keyed("jigen-step")
    x, y = torch.rand(20, 1, 8, 8, generator=draws), torch.randint(3, (20,), generator=draws)
    model, other = Model(net(), shape=(1, 8, 8)), net()
    client = Client("site-a", Split(x, y), None, 3)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers.clone()}
    gradient = Jigsaw(Backprop(), alpha=0.4, ordered=0.5, permutations=5, grid=2)
    turn = Turn(seed=0, round=0, rounds=1, exchange="train", client="site-a")
    with gradient.open(model, inbox, client, {}, turn) as step:
        value = step(x, y)

    which = gradient.draw_orders(20, turn.generator("jigen"))
    assert {0} < set(which.tolist()) <= set(range(6))
    z = torch.stack([puzzled(x[n : n + 1], orders(2, 5)[p][None], 2)[0] for n, p in
                     enumerate(which.tolist())])  # fmt: skip
    body, layer = other[:3], other[3]
    total = F.cross_entropy(layer.head(body(x)), y)
    total = total + 0.4 * F.cross_entropy(layer.order(body(z)), which)
    total.backward()
    views = model.layout.views(model.gradient)
    for name, p in other.named_parameters():
        torch.testing.assert_close(views[name], p.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value, total.detach())


def test_the_share_of_puzzles_is_what_is_asked_for_and_all_orders_come() -> None:
    which = Jigsaw(Backprop(), ordered=0.6, permutations=4, grid=2).draw_orders(
        20000, keyed("shares")
    )
    shares = torch.bincount(which, minlength=5) / 20000
    expected = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1])
    # Five standard deviations of a binomial share.
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / 20000).sqrt()).all()


def test_alpha_of_zero_is_fedavg_in_what_both_nets_have() -> None:
    clients = images(3)
    zero = played("jigen(alpha=0)", clients, 2, net="bn-cnn").model
    plain = played("fedavg", clients, 2, net="bn-cnn").model
    named = {n.replace("head.head.", "head."): p for n, p in zero.module.named_parameters()}
    for name, p in plain.module.named_parameters():
        assert torch.equal(named[name], p)
    order = next(m for m in zero.module.modules() if isinstance(m, TwoHeads)).order
    assert not order.weight.any()


def test_the_second_head_learns_to_solve_puzzles() -> None:
    ramp = torch.linspace(-1, 1, 8)[:, None] + 2 * torch.linspace(-1, 1, 8)
    clients = {}
    for name in ("site-a", "site-b"):
        y = torch.randint(3, (60,), generator=keyed(f"{name}/y"))
        x = ramp + 0.3 * torch.randn(60, 1, 8, 8, generator=keyed(name))
        clients[name] = Client(name, Split(x, y), None, 3)
    run = played("jigen(permutations=3, grid=2, ordered=0.25)", clients, 10, net="bn-cnn")
    layer = next(m for m in run.model.module.modules() if isinstance(m, TwoHeads))
    which = torch.arange(400) % 4
    x = ramp + 0.3 * torch.randn(400, 1, 8, 8, generator=keyed("more"))
    seen: list[torch.Tensor] = []
    with layer.register_forward_pre_hook(lambda _, z: seen.append(z[0])):
        run.model(puzzled(x, orders(2, 3)[which], 2))
    assert (layer.order(seen[0]).argmax(1) == which).float().mean() > 0.9  # chance is a quarter


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(UnseenError, match="second head at the last linear layer"):
        method("jigen").adapt(only(nn.Conv2d(1, 1, 1)))
    with pytest.raises(UnseenError, match="23 orders besides"):
        orders(2, 24)
    with pytest.raises(UnseenError, match="smaller grid"):
        puzzled(torch.zeros(1, 1, 2, 2), torch.arange(9)[None], 3)
    with pytest.raises(UnseenError, match="solves puzzles already"):
        method("jigen+jigen")
