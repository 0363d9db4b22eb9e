"""The Inconsistency Score against closed forms of quadratics, and a grid in two dimensions."""

from __future__ import annotations

import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from support.sites import federation
from torch import nn

import unseen
from unseen import Client, Model, Split, UnseenError
from unseen.core.turn import keyed
from unseen.metrics.inconsistency import Landscape
from unseen.models import build

EPSILON = 0.3


def client(name: str, hessian: torch.Tensor, minimum: torch.Tensor) -> Client:
    """Squared error ½ (w − w*)ᵀ H (w − w*), without a rest: XᵀX · 2/N = H, y = X w*."""
    P = len(hessian)
    x = torch.linalg.cholesky(hessian).T * (P / 2) ** 0.5
    return Client(name, Split(x, x @ minimum), None, None)


def at(minimum: torch.Tensor) -> Model:
    layer = nn.Linear(len(minimum), 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(minimum[None])
    return Model(layer)


def score(hessians: list[torch.Tensor]) -> unseen.metrics.inconsistency.Inconsistency:
    minimum = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)[: len(hessians[0])]
    clients = {f"site-{k}": client(f"site-{k}", H, minimum) for k, H in enumerate(hessians)}
    return unseen.inconsistency(at(minimum), clients, EPSILON, radius=1e3)


def test_commuting_quadratics_have_the_papers_closed_form() -> None:
    """ε max_i max {λ_i^A/λ_i^B, λ_i^B/λ_i^A}, FedILC §4."""
    a, b = torch.tensor([[1.0, 10.0, 3.0], [5.0, 11.0, 1.0]], dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=keyed("turn"), dtype=torch.float64))
    found = score([turn @ torch.diag(e) @ turn.T for e in (a, b)])
    assert found.score == pytest.approx(EPSILON * 5, rel=1e-5)
    assert found.pairs["site-0", "site-1"] == pytest.approx(EPSILON * 5, rel=1e-5)
    assert found.pairs["site-1", "site-0"] == pytest.approx(EPSILON * 3, rel=1e-5)


def test_other_quadratics_have_the_largest_generalised_eigenvalue() -> None:
    draws = keyed("hessians")
    roots = [torch.randn(4, 6, generator=draws, dtype=torch.float64) for _ in range(3)]
    hessians = [root @ root.T / 6 + 0.2 * torch.eye(4, dtype=torch.float64) for root in roots]
    found = score(hessians)
    for (a, b), value in found.pairs.items():
        A, B = (hessians[int(name[-1])].numpy() for name in (a, b))
        expected = EPSILON * scipy.linalg.eigh(B, A, eigvals_only=True)[-1]
        assert value <= expected * (1 + 1e-9)  # a bound from below
        assert value == pytest.approx(expected, rel=1e-3)
    assert found.score == max(found.pairs.values())


def test_equal_clients_are_off_by_epsilon() -> None:
    H = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    assert score([H, H]).score == pytest.approx(EPSILON, rel=1e-6)


@pytest.mark.parametrize(("far", "epsilon", "radius"), [(0.0, 0.1, 8.0), (0.8, 0.02, 2.0)])
def test_logistic_losses_are_bounded_from_below_and_nearly_reached(
    far: float, epsilon: float, radius: float
) -> None:
    """Against all θ on a grid from which a path within ε leads to θ*, in two dimensions.

    Every x has both labels, so that all minima are at 0. Away from there the neighbourhood is a
    curved valley, half a turn long, that no straight ray follows.
    """
    clients, model = {}, Model(nn.Linear(2, 1, bias=False).double())
    for k in range(2):
        x = torch.randn(60, 2, generator=keyed(f"logistic/{k}"), dtype=torch.float64)
        x = (x * torch.tensor([[1.0, 0.4], [0.5, 1.2]])[k]).repeat(2, 1)
        clients[f"site-{k}"] = Client(f"site-{k}", Split(x, torch.arange(120) // 60), None, 2)
    with torch.no_grad():
        model.vector.copy_(torch.tensor([far, -far]))
    found = unseen.inconsistency(model, clients, epsilon, radius=radius)
    side = torch.linspace(-radius, radius, 401, dtype=torch.float64)
    offsets = torch.cartesian_prod(side, side)
    points = model.vector.detach() + offsets
    losses = {}
    for name, one in clients.items():
        z = points @ one.train.x.T
        target = one.train.y.double().expand_as(z)
        losses[name] = F.binary_cross_entropy_with_logits(z, target, reduction="none").mean(1)
    middle = len(points) // 2
    for (a, b), value in found.pairs.items():
        near = ((losses[a] - losses[a][middle]).abs() <= epsilon) & (offsets.norm(dim=1) <= radius)
        expected = float((losses[b] - losses[a][middle]).abs()[connected(near, middle)].max())
        assert 0.9 * expected < value < 1.1 * expected  # the grid itself is coarse


def connected(near: torch.Tensor, start: int) -> torch.Tensor:
    """Points of a square grid that neighbours inside lead to."""
    grid = near.view(401, 401)
    reached = torch.zeros_like(grid)
    reached.view(-1)[start] = True
    while True:
        wider = F.max_pool2d(reached[None].double(), 3, 1, 1)[0].bool() & grid
        if torch.equal(wider, reached):
            return reached.view(-1)
        reached = wider


def test_the_curvature_is_gauss_and_newtons() -> None:
    one = next(iter(federation(2, n=15).values()))
    model = Model(build("mlp(widths=[4])", (6,), 3, keyed("net")).double())
    one = Client("a", Split(one.train.x.double(), one.train.y), None, 3)
    vector, v = model.vector.detach().clone(), torch.randn(len(model.vector)).double()
    J = torch.autograd.functional.jacobian(lambda w: model.at(w, one.train.x), vector)
    p = model.at(vector, one.train.x).detach().softmax(1)
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    G = torch.einsum("nip,nij,njq->pq", J, H, J) / len(p)
    land = Landscape(model, one.train)
    torch.testing.assert_close(land.bend(vector, v), G @ v)
    w = vector.clone().requires_grad_()
    loss = F.cross_entropy(model.at(w, one.train.x), one.train.y)
    torch.testing.assert_close(land.slope(vector), torch.autograd.grad(loss, w)[0])


def test_a_network_has_a_score_and_is_left_as_it_was() -> None:
    clients = federation(2, n=20)
    model = Model(build("mlp(widths=[4], dropout=0.5)", (6,), 3, keyed("net")))
    before = model.vector.detach().clone()
    model.module.train()
    found = unseen.inconsistency(model, clients, 0.05, iterations=2)
    assert found.score > 0.05
    assert found == unseen.inconsistency(model, clients, 0.05, iterations=2)
    assert torch.equal(model.vector, before)
    assert model.module.training


def test_refusals_say_what_is_expected() -> None:
    model, clients = Model(nn.Linear(6, 3)), federation(1)
    with pytest.raises(UnseenError, match="compares clients"):
        unseen.inconsistency(model, clients)
    with pytest.raises(UnseenError, match="epsilon"):
        unseen.inconsistency(model, federation(2), epsilon=0)
