"""SemanticDivergence against Eqs. 3-4 of CSAC, written out tensor by tensor."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.turn import keyed
from unseen.core.vector import Layout, stack
from unseen.errors import UnseenError
from unseen.methods.combine import DenseRows, GeneralizationAdjustment, Mean, SemanticDivergence

TENSORS = {
    "conv1.weight": (4, 1, 3, 3),
    "conv1.bias": (4,),
    "norm.weight": (4,),
    "head.weight": (3, 8),
    "head.bias": (3,),
}
LAYOUT = Layout.of({name: torch.empty(shape) for name, shape in TENSORS.items()})
#: Column ranges written down by hand: 36, 4, 4, 24 and 3 numbers.
RANGES = {
    "tensor": [(0, 36), (36, 40), (40, 44), (44, 68), (68, 71)],
    "module": [(0, 40), (40, 44), (44, 71)],
    "whole": [(0, 71)],
}
EXAMPLES = torch.tensor([30.0, 10.0, 40.0, 20.0], dtype=torch.float64)


def models(K: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The model sent out [P] and K updates [K, P], in float64."""
    generator = keyed(f"divergence/{seed}")
    x = torch.randn(71, generator=generator, dtype=torch.float64)
    return x, torch.randn(K, 71, generator=generator, dtype=torch.float64) * 0.3


def distance(kind: str, w: Tensor, average: Tensor) -> float:
    if kind == "l2":
        return float(sum((a - b) ** 2 for a, b in zip(w, average, strict=True)) ** 0.5)
    if kind == "l1":
        return float(sum(abs(a - b) for a, b in zip(w, average, strict=True)))
    return float(1 - F.cosine_similarity(w, average, dim=0))


def literal(x: Tensor, updates: Tensor, kind: str, favour: str, blocks: str, prior: list[float]):
    """M_l = Σ_h c_h G_l^h, layer by layer, for the clients' weights G = x + u."""
    G = [x + u for u in updates]
    fused, weights = torch.zeros_like(x), []
    for begin, end in RANGES[blocks]:
        layer = [g[begin:end] for g in G]
        average = sum(layer) / len(layer)
        d = [distance(kind, w, average) for w in layer]
        favoured = {
            "divergent": d,
            "similar": [1 / value for value in d],
            "uniform": [1.0] * len(d),
        }[favour]
        raw = [p * c for p, c in zip(prior, favoured, strict=True)]
        c = [value / sum(raw) for value in raw]
        fused[begin:end] = sum(a * w for a, w in zip(c, layer, strict=True))
        weights.append(c)
    return fused, torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("prior", [Mean("uniform"), Mean("examples")], ids=str)
@pytest.mark.parametrize("blocks", ["tensor", "module", "whole"])
@pytest.mark.parametrize("favour", ["divergent", "similar", "uniform"])
@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
def test_it_is_equation_4_layer_by_layer(kind, favour, blocks, prior):
    x, updates = models()
    rule = SemanticDivergence(kind, favour, blocks, prior)
    p = (EXAMPLES / EXAMPLES.sum()).tolist() if prior == Mean("examples") else [0.25] * 4
    expected, c = literal(x, updates, kind, favour, blocks, p)
    state = rule.init(4, 71, LAYOUT)
    vector, _, weights = rule(DenseRows(updates, x), {"examples": EXAMPLES}, state)
    torch.testing.assert_close(x + vector, expected, rtol=1e-9, atol=1e-12)
    assert weights is not None
    torch.testing.assert_close(weights.reshape(len(c), 4), c, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("common", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("favour", ["divergent", "similar"])
@pytest.mark.parametrize("blocks", ["tensor", "module", "whole"])
def test_float32_updates_that_nearly_agree_are_weighed_by_how_they_differ(blocks, favour, common):
    x, updates = models()
    rows = (updates + common * torch.randn(71, generator=keyed("common"))).float()
    _, c = literal(x, rows.double(), "l2", favour, blocks, [0.25] * 4)
    rule = SemanticDivergence("l2", favour, blocks)
    _, _, weights = rule(rows, {}, rule.init(4, 71, LAYOUT))
    assert weights is not None
    torch.testing.assert_close(weights.reshape(len(c), 4), c, rtol=2e-5, atol=0)


@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("blocks", ["tensor", "module", "whole"])
def test_two_clients_are_as_far_from_their_mean(kind, blocks):
    x, updates = models(2)
    rule = SemanticDivergence(kind, blocks=blocks)
    vector, _, weights = rule(DenseRows(updates, x), {}, rule.init(2, 71, LAYOUT))
    if kind == "cosine":  # of weights of different lengths, the angles to the mean differ
        assert not torch.allclose(weights, torch.tensor(0.5, dtype=torch.float64))
    else:
        torch.testing.assert_close(vector, updates.mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("favour", ["divergent", "similar", "uniform"])
@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
def test_no_distance_at_all_is_the_prior(kind, favour):
    x = torch.ones(71)
    still = torch.zeros(3, 71)
    for prior, p in [(Mean("uniform"), [1 / 3] * 3), (Mean("examples"), [0.25, 0.25, 0.5])]:
        rule = SemanticDivergence(kind, favour, prior=prior)
        table = {"examples": torch.tensor([1.0, 1.0, 2.0])}
        _, _, weights = rule(DenseRows(still, x), table, rule.init(3, 71, LAYOUT))
        expected = torch.tensor([p] * 5, dtype=torch.float64)
        torch.testing.assert_close(weights, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["l2", "l1"])
def test_one_layer_that_stands_still_does_not_touch_the_others(kind):
    x, updates = models()
    updates[:, 36:40] = 0
    rule = SemanticDivergence(kind)
    _, _, weights = rule(DenseRows(updates, x), {}, rule.init(4, 71, LAYOUT))
    assert torch.equal(weights[1], torch.full((4,), 0.25, dtype=torch.float64))
    assert not torch.allclose(weights[0], weights[1])


def test_similar_gives_those_at_the_average_everything():
    u = torch.tensor([[-3.0, 0.0], [0.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    rule = SemanticDivergence(favour="similar", blocks="whole")
    weights = rule(u, {}, rule.init(4, 2))[2]
    assert weights.tolist() == [0.0, 0.5, 0.5, 0.0]


def test_a_uniform_prior_is_equation_4_bit_for_bit_and_ga_multiplies_it():
    _, updates = models()
    table = {
        "gap": torch.tensor([0.4, 0.1, 0.2, 0.3]),
        "gap_known": torch.ones(4),
        "progress": torch.zeros(4),
    }
    plain = SemanticDivergence()
    c = plain(updates, {}, plain.init(4, 71, LAYOUT))[2]
    still = SemanticDivergence(prior=GeneralizationAdjustment(step=0))
    assert torch.equal(c, still(updates, table, still.init(4, 71, LAYOUT))[2])
    ga = GeneralizationAdjustment(step=0.2)
    p, _ = ga.weights(table, ga.init(4, 71))
    rule = SemanticDivergence(prior=ga)
    weights = rule(updates, table, rule.init(4, 71, LAYOUT))[2]
    torch.testing.assert_close(weights, c * p / (c * p).sum(1, keepdim=True))


def test_inner_products_are_enough_for_l2_and_for_no_other():
    _, updates = models()
    rule = SemanticDivergence(prior=Mean("examples"))
    state = rule.init(4, 71, LAYOUT)
    _, _, weights = rule(updates, {"examples": EXAMPLES}, state)
    grams = torch.stack([updates[:, a:b] @ updates[:, a:b].T for a, b in RANGES["tensor"]])
    found, _ = rule.weights(grams, {"examples": EXAMPLES}, state)
    torch.testing.assert_close(found, weights, rtol=1e-9, atol=0)
    one, _ = rule.weights(grams[3], {"examples": EXAMPLES}, state)
    torch.testing.assert_close(one, weights[3], rtol=1e-9, atol=0)
    for kind in ("l1", "cosine"):
        other = SemanticDivergence(kind)
        with pytest.raises(UnseenError, match=f"{kind}.*enough for l2 only"):
            other.weights(grams, {}, other.init(4, 71, LAYOUT))


def test_cosine_asks_for_what_the_clients_received():
    rule = SemanticDivergence("cosine", blocks="whole")
    with pytest.raises(UnseenError, match="needs the vector that the clients received"):
        rule(torch.ones(2, 3), {}, rule.init(2, 3))


def test_a_zero_vector_is_as_far_from_everything_as_torchs_cosine_has_it():
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    rule = SemanticDivergence("cosine", blocks="whole")
    weights = rule(DenseRows(u, torch.zeros(2)), {}, rule.init(3, 2))[2]
    torch.testing.assert_close(weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    u = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])  # 1, 1 − 1/√2, 1 − 1/√2
    weights = rule(DenseRows(u, torch.zeros(2)), {}, rule.init(3, 2))[2]
    near = 1 - 0.5**0.5
    expected = torch.tensor([1, near, near], dtype=torch.float64) / (1 + 2 * near)
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-5])
def test_float32_weights_are_those_of_float64_however_small_the_updates(kind, size):
    generator = keyed("small")
    x = torch.randn(60_000, generator=generator) * 0.02
    u = torch.randn(5, 60_000, generator=generator) * torch.linspace(1, 2, 5)[:, None] * 0.02 * size
    rule = SemanticDivergence(kind, blocks="whole")
    state = rule.init(5, 60_000)
    weights = rule(DenseRows(u, x), {}, state)[2]
    exact = u.double(), x.double()
    if kind == "cosine":
        w = exact[0] + exact[1]
        v = w - w.mean(0)
        # sin² / (1 + cos): the exact 1 − cos where cos is 1 − 1e-11
        dot, norms = w @ w.mean(0), w.norm(dim=1) * w.mean(0).norm()
        sine = v.square().sum(1) * w.mean(0).square().sum() - (v @ w.mean(0)).square()
        d = sine / (norms * (norms + dot))
    else:
        d = (exact[0] - exact[0].mean(0)).norm(p=int(kind[1]), dim=1)
    torch.testing.assert_close(weights, d / d.sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
def test_where_rows_lie_in_memory_changes_no_bit(kind):
    x, updates = models()
    updates, x = updates.float(), x.float()
    rule = SemanticDivergence(kind)
    state = rule.init(4, 71, LAYOUT)
    padded = stack(4, updates[0]).copy_(updates)
    assert padded.stride() != updates.stride()
    a, b = (rule(DenseRows(m, x), {}, state) for m in (updates, padded))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[2], b[2])


@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
def test_cosine_and_the_others_feel_no_order_of_clients(kind):
    x, updates = models()
    rule = SemanticDivergence(kind)
    state = rule.init(4, 71, LAYOUT)
    expected, _, weights = rule(DenseRows(updates, x), {}, state)
    for order in itertools.permutations(range(4)):
        index = torch.tensor(order)
        found, _, moved = rule(DenseRows(updates[index], x), {"client": index.double()}, state)
        assert torch.equal(found, expected)
        assert torch.equal(moved, weights[:, index])


def test_layers_need_a_layout_and_options_their_names():
    with pytest.raises(UnseenError, match="needs the layout"):
        SemanticDivergence().init(2, 3)
    for options, message in [
        ({"distance": "l3"}, "distance"),
        ({"favour": "divergence"}, "did you mean 'divergent'"),
        ({"blocks": "layer"}, "blocks"),
    ]:
        with pytest.raises(UnseenError, match=message):
            SemanticDivergence(**options)
