"""FedGaLA: the authors' global alignment line by line, and local alignment in plain torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import literal
from support.sites import federation

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.core.vector import Layout
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import GlobalAlignment, Mean
from unseen.methods.fedgala import LocalAlignment
from unseen.methods.gradient import Backprop

LAYERS = {"a.weight": 5, "a.bias": 2, "b.weight": 33}
LAYOUT = Layout.of({name: torch.empty(size) for name, size in LAYERS.items()})


def combined(rule, rows, examples=None, dtype=torch.float64):
    counts = np.ones(len(rows)) if examples is None else examples
    table = {"examples": torch.tensor(counts, dtype=torch.float64)}
    state = rule.init(*rows.shape, LAYOUT)
    vector, _, weights = rule(torch.tensor(rows, dtype=dtype), table, state)
    return vector, weights


def aligned(rows, p, iterations):
    """The authors' loop on one layer's updates times p: weights that sum to 1, without p."""
    vectors = torch.tensor(rows * p[:, None])
    mean, weights = vectors.mean(0), torch.full((len(rows),), 1 / len(rows)).double()
    for _ in range(iterations):
        cosines = F.cosine_similarity(vectors, mean[None].expand_as(vectors), dim=1)
        weights = ((cosines + 1) / 2).abs()
        weights = weights / weights.sum()
        mean = (vectors * weights[:, None]).sum(0)
    return weights.numpy()


@pytest.mark.parametrize("iterations", [0, 1, 3, 10])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
def test_global_alignment_run_literally(count, iterations) -> None:
    for seed in range(3):
        rows = literal.gradients(seed, count)
        vector, weights = combined(GlobalAlignment(iterations), rows)
        for layer, (block, w) in enumerate(zip(LAYOUT.blocks("tensor"), weights, strict=True)):
            expected = aligned(rows[:, block], np.full(count, 1 / count), iterations)
            np.testing.assert_allclose(w, expected, rtol=0, atol=1e-7, err_msg=str(layer))
            np.testing.assert_allclose(vector[block], expected @ rows[:, block], atol=1e-6)


def test_the_prior_weighs_directions_as_theirs_and_the_sum_too() -> None:
    """Their directions are those of sum_i a_i p_i u_i; their last sum forgets p, ours keeps it."""
    rows, examples = literal.gradients(3, 4), np.array([10.0, 40.0, 30.0, 20.0])
    p = np.array(literal.shares(examples))
    _, weights = combined(GlobalAlignment(3, "whole", Mean("examples")), rows, examples)
    expected = aligned(rows, p, 3) * p
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=0, atol=1e-7)


def test_one_iteration_by_hand() -> None:
    """(1, 0) twice and (0, 1): the mean is (2, 1)/3, cosines 2/sqrt 5 and 1/sqrt 5."""
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    weights = GlobalAlignment(1, "whole").weights(torch.tensor(rows @ rows.T), {}, {"prior": {}})[0]
    expected = np.array([1 + 2 / 5**0.5, 1 + 2 / 5**0.5, 1 + 1 / 5**0.5])
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-14)


def test_opposed_and_zero_updates() -> None:
    """No mean, no cosines: the weights are the prior's. A zero update weighs as if orthogonal."""
    row = literal.gradients(0, 1)
    _, weights = combined(GlobalAlignment(3, "whole"), np.concatenate([row, -row]))
    np.testing.assert_allclose(weights, 0.5, atol=1e-15)
    _, weights = combined(GlobalAlignment(1, "whole"), np.concatenate([row, row, 0 * row]))
    np.testing.assert_allclose(weights, [0.4, 0.4, 0.2], rtol=1e-14)
    _, weights = combined(GlobalAlignment(1, "whole"), np.concatenate([row, row, -row]))
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=1e-14)


def net() -> torch.nn.Module:
    return build("mlp(widths=[7])", (6,), 3, keyed("fedgala")).double()


def doubled(clients: dict[str, Client]) -> dict[str, Client]:
    """The clients in float64, in whole-split batches so that no order matters."""
    return {
        name: Client(name, Split(c.train.x.double(), c.train.y), None, c.classes)
        for name, c in clients.items()
    }


def by_hand(clients, rounds: int, lr: float, epochs: int, threshold: float, compare: str):
    """FedGaLA's loop on modules: gradients per tensor dropped, then a plain average; also how
    many gradients were dropped."""
    server, before, dropped = net(), None, 0
    for _ in range(rounds):
        trained = []
        for name in sorted(clients):
            model, split = copy.deepcopy(server), clients[name].train
            for _ in range(epochs):
                model.zero_grad()
                F.cross_entropy(model(split.x), split.y).backward()
                with torch.no_grad():
                    for key, p in model.named_parameters():
                        if before is not None:
                            delta = (server.state_dict()[key] - before[key]).flatten()
                            sign = 1 if compare == "released" else -1
                            cosine = F.cosine_similarity(sign * p.grad.flatten(), delta, dim=0)
                            if cosine < threshold:
                                dropped += 1
                                continue
                        p -= lr * p.grad
            trained.append(model.state_dict())
        before = copy.deepcopy(server.state_dict())
        server.load_state_dict({k: sum(t[k] for t in trained) / len(trained) for k in before})
    return torch.cat([p.detach().flatten() for p in server.parameters()]), dropped


@pytest.mark.parametrize(
    ("threshold", "compare"),
    [(-0.1, "descent"), (0.0, "descent"), (0.3, "descent"), (-0.1, "released"), (0.0, "released")],
)
def test_local_alignment_run_literally(threshold, compare) -> None:
    clients = doubled(federation(3))
    expected, dropped = by_hand(clients, 4, 0.3, 3, threshold, compare)
    assert 0 < dropped < 3 * 3 * 3 * 4
    chosen = method(
        f"fedgala(threshold={threshold}, compare='{compare}', iterations=0)",
        Training(SGD(0.3), epochs=3, batch_size=1000),
    )
    model, names = Model(net()), sorted(clients)
    backend = InProcess(model, clients)
    state, _ = play(chosen, start(chosen, model, names, 0), backend, names, 4)
    torch.testing.assert_close(state.inbox["model"], expected, rtol=1e-9, atol=1e-10)


def test_the_first_round_is_the_global_alignment_alone_bit_for_bit() -> None:
    clients = federation(3)
    states = []
    for expression in ("fedgala(threshold=0.9)", 'fedavg(weights="uniform")+fedgala'):
        chosen, model = method(expression), Model(build("mlp", (6,), 3, keyed("net")))
        backend = InProcess(model, clients)
        states.append(
            play(chosen, start(chosen, model, sorted(clients), 0), backend, sorted(clients), 1)[0]
        )
    assert torch.equal(states[0].inbox["model"], states[1].inbox["model"])


def test_the_released_comparison_drops_what_agrees() -> None:
    """A client whose gradient is minus the last global update: the step would repeat it."""
    model = Model(torch.nn.Linear(1, 1, bias=False).double())
    client = Client("a", Split(torch.ones(4, 1).double(), torch.zeros(4).long()), None, None)

    class Falling:
        """A gradient of 2, so that the step goes down."""

        def open(self, model, inbox, client, memory, turn):
            from contextlib import nullcontext

            def step(x, y):
                model.gradient.fill_(2.0)
                return torch.zeros(())

            return nullcontext(step)

    memory = {"fedgala.received": model.vector + 1}  # the global model went down by 1
    inbox = {"model": model.vector.clone()}
    for compare, left in (("descent", 2.0), ("released", 0.0)):
        with LocalAlignment(Falling(), 0.0, compare).open(
            model, inbox, client, memory, None
        ) as step:
            step(None, None)
        assert model.gradient.tolist() == [left]


def test_options_are_checked() -> None:
    for options in ({"threshold": 2}, {"compare": "ascent"}, {"blocks": "layer"}):
        with pytest.raises(UnseenError, match=next(iter(options))):
            LocalAlignment(Backprop(), **options)
    with pytest.raises(UnseenError, match="iterations"):
        GlobalAlignment(-1)
