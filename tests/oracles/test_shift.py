"""Site-shift augmentation: its two exchanges in numpy, its draws, and data on which it must win."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from support.alone import RECIPE, played
from support.sites import federation, images

from unseen import Client, Model, Split, Training, UnseenError, method
from unseen.core.losses import SquaredError
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.shift import SPREAD, Shifted


def raw(client):
    """Columns and classes; of images the mean of each channel, of numbers one class."""
    x = client.train.x.double().numpy()
    x = x.reshape(*x.shape[:2], -1).mean(2) if x.ndim > 2 else x
    if client.train.x.dtype == torch.uint8:
        x = x / 255
    y = client.train.y.numpy()
    return x, np.zeros(len(x), int) if y.dtype.kind == "f" else y


def spreads(clients):
    """(σ_b, σ_s) column by column, of all the data at hand.

    A site's distance from the pooled class means, squared and less the square of its own means'
    standard errors, is a mean over classes, by rows, of those with two rows or more. A site's
    scale is the root of its variance within classes; the pooled one is within classes and sites.
    What is subtracted is the mean square of the log scale of a normal sample.
    """
    data = [raw(c) for c in clients.values()]
    d, classes = data[0][0].shape[1], sorted({int(c) for _, y in data for c in y})
    center = {c: np.concatenate([x[y == c] for x, y in data]).mean(0) for c in classes}
    location, scale = [[] for _ in range(d)], [[] for _ in range(d)]
    ss = np.zeros(d)
    nu = 0
    for x, y in data:
        for c in np.unique(y):
            ss += ((x[y == c] - x[y == c].mean(0)) ** 2).sum(0)
            nu += (y == c).sum() - 1
    for x, y in data:
        own_ss, own_nu, rows, total = np.zeros(d), 0, 0, np.zeros(d)
        for c in np.unique(y):
            part = x[y == c]
            own_ss += ((part - part.mean(0)) ** 2).sum(0)
            own_nu += len(part) - 1
            if len(part) > 1:
                error = part.var(0, ddof=1) / len(part)
                total += len(part) * ((part.mean(0) - center[c]) ** 2 - error)
                rows += len(part)
        for j in range(d):
            if rows:
                location[j].append(total[j] / rows)
            if own_nu and own_ss[j] / own_nu > 1e-6:
                ratio = np.log((own_ss[j] / own_nu) / (ss[j] / nu)) / 2
                law = stats.loggamma(own_nu / 2)  # log χ²_ν = loggamma(ν/2) + log 2
                off = law.mean() + np.log(2) - np.log(own_nu)
                scale[j].append(ratio**2 - (law.var() + off**2) / 4)
    roots = [[math.sqrt(max(0.0, float(np.mean(v)))) if v else 0.0 for v in kind]
             for kind in (location, scale)]  # fmt: skip
    return np.array(roots)


def sent(clients, expression="fedavg+shift", net="mlp(widths=[8])", training=RECIPE):
    run = played(expression, clients, rounds=1, net=net, training=training)
    return run.state.inbox[SPREAD].view(2, -1).double().numpy()


def sites(location=0.0, scale=0.0, count=40, n=60, classes=3, d=4, seed=0, dtype=None):
    """x = 2 y + scale_k (σ = exp N(0, scale²)) noise + N(0, location²) for each column."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(count):
        y = rng.integers(classes, size=n + k % 7)
        own = np.exp(scale * rng.normal(size=d)) * rng.normal(size=(len(y), d))
        x = 2 * y[:, None] + own + location * rng.normal(size=d)
        split = Split(torch.tensor(x).float(), torch.tensor(y))
        clients[f"site-{k:02d}"] = Client(f"site-{k:02d}", split, None, classes)
    return clients


# --- the two exchanges ------------------------------------------------------------------------


@pytest.mark.parametrize(("location", "scale"), [(0.0, 0.0), (1.5, 0.0), (0.0, 0.7), (3.0, 0.4)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_exchanges_written_out(location, scale, count) -> None:
    clients = sites(location, scale, count)
    np.testing.assert_allclose(sent(clients), spreads(clients), rtol=1e-4, atol=2e-4)


def test_the_spread_is_that_of_the_sites_not_of_those_they_were_drawn_from() -> None:
    """Means at −3, 0 and 3, rows at the mean ± 1: σ_b² = 18/3 − 1/(n − 1), and not 18/2 − ..."""
    n, clients = 20, {}
    for name, mean in zip("abc", (-3.0, 0.0, 3.0), strict=True):
        x = mean + torch.tensor([-1.0, 1.0]).repeat(n // 2)[:, None]
        y = torch.zeros(n, dtype=torch.int64)
        clients[name] = Client(name, Split(x, y), None, 2)
    location, _ = sent(clients)
    np.testing.assert_allclose(location**2, 18 / 3 - 1 / (n - 1), rtol=1e-5)


def test_the_exchanges_on_the_tests_own_federation() -> None:
    clients = federation(5)
    np.testing.assert_allclose(sent(clients), spreads(clients), rtol=1e-4, atol=2e-4)


def test_columns_far_from_0_lose_no_digits() -> None:
    """Years: the squares of 2000 would leave nothing of a variance of 1 in float32."""
    clients = {
        name: Client(name, Split(c.train.x + 2000.0, c.train.y), None, 3)
        for name, c in sites(1.0, 0.5, 4).items()
    }
    np.testing.assert_allclose(sent(clients), spreads(clients), rtol=2e-3, atol=2e-3)


def test_images_have_one_spread_for_each_channel() -> None:
    clients = {}
    for k, (name, client) in enumerate(images(4).items()):
        x = torch.cat([client.train.x, 0.5 * client.train.x + 0.3 * k], dim=1)
        clients[name] = Client(name, Split(x, client.train.y), None, 3)
    found = sent(clients, net="bn-cnn")
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found, spreads(clients), rtol=1e-3, atol=2e-4)
    assert found[0, 1] > 5 * found[0, 0]


def test_images_of_bytes_are_read_as_they_are_trained_on() -> None:
    clients = {
        name: Client(name, Split((c.train.x * 150).byte(), c.train.y), None, 3)
        for name, c in images(3).items()
    }
    found = sent(clients, net="bn-cnn")
    np.testing.assert_allclose(found, spreads(clients), rtol=1e-3, atol=2e-4)
    assert found[0].max() < 1


def test_numbers_to_predict_are_one_class() -> None:
    clients = {
        name: Client(name, Split(c.train.x, c.train.y.float()), None, None)
        for name, c in sites(1.0, 0.3, 5).items()
    }
    training = Training(SGD(0.01), batch_size=8, loss=SquaredError())
    found = sent(clients, training=training)
    np.testing.assert_allclose(found, spreads(clients), rtol=1e-4, atol=2e-4)


# --- what the numbers mean --------------------------------------------------------------------


def test_draws_from_one_population_have_almost_no_spread() -> None:
    for seed in range(3):
        location, scale = sent(sites(seed=seed))
        assert location.max() < 0.1  # a class mean of 20 rows is wrong by 0.22
        assert scale.max() < 0.05  # and a scale of 60 rows by 0.09


@pytest.mark.parametrize("location", [0.5, 2.0, 10.0])
def test_sites_that_are_moved_have_no_spread_of_scales(location) -> None:
    """Their columns vary more over all sites together, but no site's varies more than another's."""
    found = sent(sites(location=location))
    np.testing.assert_allclose(found[0], location, rtol=0.4)
    assert found[1].max() < 0.06


@pytest.mark.parametrize("scale", [0.3, 0.8])
def test_sites_that_are_stretched(scale) -> None:
    """The pooled variance of e^(2 s z) is e^(2 s²), so that the mean log scale is −s² from it."""
    found = sent(sites(scale=scale, n=120))
    assert np.sqrt(np.mean(found[1] ** 2)) == pytest.approx(math.sqrt(scale**2 + scale**4), rel=0.2)
    assert found[0].max() < 0.25


@pytest.mark.parametrize("rows", [3, 4, 6])
def test_small_sites_of_one_population_have_little_spread(rows) -> None:
    """Of three rows in two classes a scale has one degree of freedom, which is no spread."""
    found = sent(sites(count=200, n=rows, classes=2, d=2))
    assert found[0].max() < 0.5
    assert found[1].max() < 0.5


# --- the draws --------------------------------------------------------------------------------


def seen_by(inner_x: list, spread, alpha, x, turn):
    """What a step hands on."""

    class Spy:
        clips_per_example = stackable = False

        def open(self, *_):
            def step(x, y):
                inner_x.append(x)
                return torch.zeros(())

            return nullcontext(step)

    model = Model(build("mlp(widths=[3])", tuple(x.shape[1:]), 2, keyed("shift")))
    client = Client("site-a", Split(x, torch.zeros(len(x), dtype=torch.long)), None, 2)
    with Shifted(Spy(), alpha).open(model, {SPREAD: spread}, client, {}, turn) as step:
        for _ in range(3):
            step(x, client.train.y)


@pytest.mark.parametrize("shape", [(4,), (2, 5, 5), (3, 7)])
def test_one_draw_moves_the_whole_batch(shape) -> None:
    """x exp(α σ_s z₂) + α σ_b z₁, with z₁ and then z₂ for each column or channel."""
    turn = Turn(seed=1, round=2, rounds=3, exchange="train", client="site-a")
    x, spread = torch.randn(6, *shape, generator=keyed("x")), torch.rand(2 * shape[0])
    found: list = []
    seen_by(found, spread, 0.7, x, turn)
    draws = turn.generator("shift")
    for moved in found:
        z = torch.randn(2, shape[0], generator=draws).numpy()
        for c in range(shape[0]):
            b, s = float(spread[c]), float(spread[shape[0] + c])
            expected = x[:, c].numpy() * np.exp(0.7 * s * z[1, c]) + 0.7 * b * z[0, c]
            np.testing.assert_allclose(moved[:, c].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "fedsgd", "ppdg"])
def test_an_alpha_of_0_is_the_method_bit_for_bit(base) -> None:
    clients = federation(3)
    plain, zero, moved = (
        played(f"{base}{more}", clients, rounds=2).state.inbox["model"]
        for more in ("", "+shift(alpha=0)", "+shift")
    )
    assert torch.equal(plain, zero)
    assert not torch.equal(plain, moved)


def test_a_site_that_stays_away_is_counted_all_the_same() -> None:
    """The two exchanges go to the whole roster, once."""
    clients = sites(2.0, 0.4, 6)
    run = played("fedavg+shift", clients, rounds=3)
    names = [o.turn.exchange for o in run.outcomes]
    assert names == ["class sums", SPREAD, "train", "train", "train"]
    assert all(len(o.names) == 6 for o in run.outcomes)


# --- data on which it must win ----------------------------------------------------------------


def tied_sites(seed, count, n, tie, which=0):
    """Two columns that tell the class everywhere, and six that tell the site alone.

    The first of these goes with the class's frequency at the sources (tie = 1), and with nothing
    at new sites (tie = 0).
    """
    rng, clients = np.random.default_rng((which, seed)), {}
    for k in range(count):
        offset = 4 * rng.normal(size=6)
        side = 2 * (k % 2) - 1
        offset[0] = 4 * side * rng.uniform(0.75, 1.25) if tie else offset[0]
        y = (rng.uniform(size=n) < 0.5 + 0.4 * side * tie).astype(int)
        steady = 2.0 * y[:, None] - 1 + rng.normal(size=(n, 2))
        x = torch.tensor(np.concatenate([steady, offset + 0.5 * rng.normal(size=(n, 6))], 1))
        name = f"site-{k:02d}"
        clients[name] = Client(name, Split(x.float(), torch.tensor(y)), None, 2)
    return clients


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("net", ["logistic", "mlp(widths=[16])"])
def test_where_sites_are_moved_it_wins_at_new_sites(seed, net) -> None:
    clients, new = tied_sites(seed, 6, 120, tie=1), tied_sites(seed, 25, 80, tie=0, which=1)
    training, losses = Training(SGD(0.1), batch_size=40), {}
    for expression in ("fedavg", "fedavg+shift"):
        model = played(expression, clients, rounds=40, net=net, training=training).model
        with torch.no_grad():
            each = [F.cross_entropy(model(c.train.x), c.train.y) for c in new.values()]
        losses[expression] = float(torch.stack(each).mean())
    assert losses["fedavg+shift"] < 0.85 * losses["fedavg"]


# --- bad input --------------------------------------------------------------------------------


def awkward() -> dict[str, Client]:
    """A site of one class, one without a class, one row of each class, one row in all."""
    whole = sites(1.0, 0.3, 4)
    x, y = whole["site-00"].train.x, whole["site-00"].train.y
    rows = [int((y == c).nonzero()[0]) for c in range(3)]
    splits = {
        "one-class": Split(x[y == 1], y[y == 1]),
        "two-classes": Split(x[y != 0], y[y != 0]),
        "one-each": Split(x[rows], y[rows]),
        "one-row": Split(x[:1], y[:1]),
        **{name: c.train for name, c in list(whole.items())[1:]},
    }
    return {name: Client(name, split, None, 3) for name, split in splits.items()}


def test_awkward_sites_are_defined() -> None:
    clients = awkward()
    found = sent(clients)
    np.testing.assert_allclose(found, spreads(clients), rtol=1e-4, atol=2e-4)
    assert found[1].max() < 1


@pytest.mark.parametrize("names", [["one-row"], ["one-each"], ["one-row", "one-each"]])
def test_sites_of_single_rows_have_no_spread(names) -> None:
    clients = {n: c for n, c in awkward().items() if n in names}
    run = played("fedavg+shift", clients, rounds=2)
    assert not run.state.inbox[SPREAD].any()
    assert bool(torch.isfinite(run.state.inbox["model"]).all())


def test_a_column_that_is_constant_at_a_site_does_not_stretch_the_others() -> None:
    """Nobody at one site has the disease: that is no scale of 0, from which all others are far."""
    clients = {}
    for k, (name, client) in enumerate(sites(count=6).items()):
        x = client.train.x.clone()
        draws = keyed(f"rare/{k}")
        x[:, 1] = 4.0
        x[:, 2] = (torch.rand(len(x), generator=draws) < 0.5).float() if k else 0.0
        clients[name] = Client(name, Split(x, client.train.y), None, 3)
    found = sent(clients)
    np.testing.assert_allclose(found, spreads(clients), rtol=1e-4, atol=2e-4)
    assert found[:, 1].tolist() == [0, 0]
    assert found[1, 2] < 0.2


def test_a_class_that_no_site_has_changes_nothing() -> None:
    clients = sites(1.0, 0.3, 4)
    wider = {n: Client(n, c.train, None, 5) for n, c in clients.items()}
    np.testing.assert_allclose(sent(wider), sent(clients), rtol=1e-6)


# --- putting it together ----------------------------------------------------------------------


def test_twice_is_refused_and_so_is_a_negative_alpha() -> None:
    with pytest.raises(UnseenError, match="shifts its inputs already"):
        method("fedavg+shift+shift")
    with pytest.raises(UnseenError, match=r"shift\(alpha\)"):
        method("fedavg+shift(alpha=-1)")


@pytest.mark.parametrize(
    "expression",
    ["csac(acquisition=1)+shift", "fedavg+shift+ensemble(members=2)", "scaffold+shift"],
)
def test_with_methods_that_have_more_exchanges(expression) -> None:
    run = played(expression, images(3), rounds=2, net="bn-cnn", backend=InProcess)
    assert bool(torch.isfinite(run.state.inbox["model"]).all())
