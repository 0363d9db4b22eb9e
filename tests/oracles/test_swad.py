"""SWAD: start, end and mean of the valley, by the paper's rule over whole lists of losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.alone import played
from support.sites import federation, images

from unseen import method
from unseen.methods.swad import HELD, Valley


def valley(losses, window: int, patience: int, tolerance: float) -> range | None:
    """t_s ≤ t < t_e of the models with these losses; None where t_s is not known yet."""
    T = len(losses)
    starts = [t for t in range(T - window + 1) if losses[t] == min(losses[t : t + window])]
    if not starts:
        return None
    bar = (1 + tolerance) * np.mean(losses[starts[0] : starts[0] + window])
    ends = [t for t in range(starts[0] + 1, T) if min(losses[t : t + patience]) > bar]
    return range(starts[0], ends[0] if ends else T)


@pytest.mark.parametrize(("window", "patience"), [(3, 6), (2, 2), (1, 1), (4, 2)])
@pytest.mark.parametrize("seed", range(8))
def test_every_round_predicts_as_if_it_were_the_last(window, patience, seed) -> None:
    """Models are their number in one coordinate and noise in another."""
    rng = np.random.default_rng(seed)
    curve = np.abs(np.linspace(-1, 1.2, 24)) + rng.normal(size=24) * [0.0, 0.05, 0.4][seed % 3] + 2
    models = np.stack([np.arange(25.0), rng.normal(size=25)], 1)
    step, state, old = Valley(window, patience, 0.2), {}, torch.zeros(2, dtype=torch.float64)
    for r in range(25):
        # Round r makes model r, and tells the loss of model r − 1, or of the first weights.
        table = {HELD: torch.tensor([curve[r - 1] if r else 99.0], dtype=torch.float64)}
        old, state = step(old, torch.tensor(models[r]), state, table)
        found = valley(curve[:r].tolist(), window, patience, 0.2)
        expected = models[r] if found is None else models[list(found)].mean(0)
        np.testing.assert_allclose(old, expected, rtol=1e-12)
    assert found is not None
    if seed % 3 == 0 and window > 1:
        assert 2 < len(found) < 20


def algorithm_1(losses: list[float], window: int, patience: int, tolerance: float) -> range | None:
    """The paper's loop, i from 1 as printed; its t_e is inside."""
    start, bar, T = 0, None, len(losses)
    for i in range(1, T + 1):
        E = [0.0, *losses]
        if bar is None:
            recent = E[i - window + 1 : i + 1] if i >= window else []
            if recent and recent[0] == min(recent):
                start, bar = i - window + 1, (1 + tolerance) * sum(recent) / window
        elif i >= patience and bar < min(E[i - patience + 1 : i + 1]) and i - patience >= start:
            return range(start - 1, i - patience)
    return None if bar is None else range(start - 1, T)


@pytest.mark.parametrize(("window", "patience"), [(3, 6), (2, 2), (1, 1), (4, 2), (5, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_the_papers_end_is_algorithm_1(window, patience, seed) -> None:
    rng = np.random.default_rng(seed)
    curve = np.abs(np.linspace(-1, 1.2, 24)) + rng.normal(size=24) * [0.0, 0.1, 0.4][seed % 3] + 2
    models = np.stack([np.arange(25.0), rng.normal(size=25)], 1)
    step, state, old = Valley(window, patience, 0.1, "paper"), {}, torch.zeros(2).double()
    for r in range(25):
        table = {HELD: torch.tensor([curve[r - 1] if r else 99.0], dtype=torch.float64)}
        old, state = step(old, torch.tensor(models[r]), state, table)
        span = algorithm_1(curve[:r].tolist(), window, patience, 0.1)
        expected = models[r] if span is None else models[list(span)].mean(0)
        np.testing.assert_allclose(old, expected, rtol=1e-12)


def test_the_mean_is_over_the_clients_held_out_losses() -> None:
    clients = federation(3)
    run = played("fedavg+swad", clients, 6)
    scalars = [name for name in run.outcomes[0].table if name.startswith(HELD)]
    assert len(scalars) == 1
    plain = played("fedavg", clients, 6)
    model = played("fedavg", clients, 0).model
    losses = []
    for r in range(6):
        state = played("fedavg", clients, r).state
        model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
        per_site = [
            torch.nn.functional.cross_entropy(model(c.validation.x), c.validation.y)
            for c in clients.values()
        ]
        losses.append(float(torch.stack(per_site).mean().detach()))
        found = float(run.outcomes[r].table[scalars[0]].mean())
        assert found == pytest.approx(losses[-1], rel=1e-5)
    span = valley(losses[1:], 3, 6, 0.3)
    size = plain.state.inbox["model"].numel()
    averaged = run.state.inbox["model"][size:]
    if span is None:
        expected = plain.state.inbox["model"]
    else:
        rounds = [played("fedavg", clients, t + 1).state.inbox["model"] for t in span]
        expected = torch.stack(rounds).mean(0)
    torch.testing.assert_close(averaged, expected, rtol=1e-5, atol=1e-6)


def test_sites_say_what_they_share() -> None:
    assert any("validation data" in share for share in method("fedavg+swad").shares)


@pytest.mark.parametrize("base", ["fedbn", "fedavg+intercepts"])
def test_what_is_measured_is_the_servers_model_and_no_clients_own(base: str) -> None:
    clients = images(3)
    run = played(f"{base}+swad", clients, 4, net="bn-cnn")
    (scalar,) = (name for name in run.outcomes[0].table if name.startswith(HELD))
    for r in range(4):
        model = played(base, clients, r, net="bn-cnn").model
        per_site = [
            float(torch.nn.functional.cross_entropy(model(c.validation.x), c.validation.y))
            for c in clients.values()
        ]
        assert run.outcomes[r].table[scalar].tolist() == pytest.approx(per_site, rel=1e-5)
