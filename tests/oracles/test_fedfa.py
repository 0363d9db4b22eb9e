"""FedFA against loops over examples and channels in numpy."""

from __future__ import annotations

import numpy as np
import torch
from support.alone import played
from support.sites import images

from unseen import method
from unseen.gradient.fedfa import STATISTICS, augmented, boosts, feature_layers
from unseen.methods.base import trained


def literal(z, weight, noise):
    """Each example's map standardised and given the statistics that were drawn for it."""
    N, C = z.shape[:2]
    mean = np.array([[z[n, c].mean() for c in range(C)] for n in range(N)])
    deviation = np.array(
        [[np.sqrt(z[n, c].var(ddof=1) + 1e-6) for c in range(C)] for n in range(N)]
    )
    out = np.empty_like(z)
    for n in range(N):
        for c in range(C):
            wide = weight[0, c] * (mean[:, c].var(ddof=1) + 1e-6)
            high = weight[1, c] * (deviation[:, c].var(ddof=1) + 1e-6)
            new_mean = mean[n, c] + noise[0, n, c] * np.sqrt(wide)
            new_deviation = deviation[n, c] + noise[1, n, c] * np.sqrt(high)
            out[n, c] = (z[n, c] - mean[n, c]) / deviation[n, c] * new_deviation + new_mean
    return out


def test_maps_get_the_statistics_that_were_drawn() -> None:
    rng = np.random.default_rng(0)
    z, noise = rng.normal(size=(5, 3, 4, 4)), rng.normal(size=(2, 5, 3))
    weight = 1 + rng.exponential(size=(2, 3))
    found = augmented(*(torch.tensor(a) for a in (z, weight, noise)))
    np.testing.assert_allclose(found, literal(z, weight, noise), rtol=1e-10, atol=1e-12)


def test_channels_that_differ_between_clients_are_widened_more() -> None:
    rng = np.random.default_rng(1)
    s = rng.normal(size=(4, 2 * (3 + 2)))  # four clients; layers of three and of two channels
    entry = torch.tensor(np.concatenate([s.mean(0), (s**2).mean(0)]))
    first, second = boosts(entry, [3, 2])
    for found, part in ((first, s[:, :6]), (second, s[:, 6:])):
        for kind in range(2):
            v = part[:, kind * found.shape[1] : (kind + 1) * found.shape[1]].var(0)
            w = 1 / (1 + 1 / v)
            np.testing.assert_allclose(found[kind], 1 + len(v) * w / w.sum(), rtol=1e-9)
    alike = torch.cat([torch.ones(10), torch.ones(10)]).double()
    assert all(bool((weight == 1).all()) for weight in boosts(alike, [3, 2]))


def test_clients_send_the_mean_statistics_of_the_received_model() -> None:
    clients = images(3)
    start = played("fedfa", clients, 0, net="bn-cnn")
    names = feature_layers(start.model.module, None)
    layers = dict(start.model.module.named_modules())
    rows, seen = [], list[torch.Tensor]()
    for name in names:
        layers[name].register_forward_hook(lambda *a: seen.append(a[2]))
    for client in clients.values():
        parts, x = [], client.train.x
        seen.clear()
        with torch.no_grad():
            start.model.module(x)
        for maps in seen:
            flat = maps.double().flatten(2)
            parts += [flat.mean(2).mean(0), (flat.var(2) + 1e-6).sqrt().mean(0)]
        rows.append(torch.cat(parts))
    s = torch.stack(rows)
    found = played("fedfa", clients, 1, net="bn-cnn").state.inbox[STATISTICS]
    expected = torch.cat([s.mean(0), s.square().mean(0)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_without_it_training_is_fedavgs() -> None:
    clients = images(3)
    plain = played("fedavg(weights='uniform')", clients, 2, net="bn-cnn").state.inbox["model"]
    assert torch.equal(plain, played("fedfa(p=0)", clients, 2, net="bn-cnn").state.inbox["model"])
    other = played("fedfa(p=1)", clients, 2, net="bn-cnn").state.inbox["model"]
    assert float((other - plain).norm()) > 1e-3
    assert "convolutions" in method("fedfa").asks
    assert STATISTICS in trained(method("fedfa")).slots


def test_maps_of_one_pixel_have_no_spread_and_stay_finite() -> None:
    z = torch.tensor([[[[2.0]], [[4.0]]], [[[6.0]], [[0.0]]]])
    out = augmented(z, torch.ones(2, 2), torch.zeros(2, 2, 2))
    torch.testing.assert_close(out, z)
    alone = augmented(z[:1], torch.ones(2, 2), torch.ones(2, 1, 2))
    assert bool(torch.isfinite(alone).all())
