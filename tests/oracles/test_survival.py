"""Times until an event, against lifelines, scikit-survival and the formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.apply import Descend
from unseen.core.metrics.survival_metrics import (
    concordance,
    concordance_ipcw,
    integrated_brier,
    loss,
)
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.optimiser import SGD
from unseen.core.survival import (
    Cox,
    Hazards,
    Intervals,
    hazard_losses,
    partial_likelihood,
    risk,
)
from unseen.core.turn import keyed

pd = pytest.importorskip("pandas", reason="pandas is in the dev extra")
lifelines = pytest.importorskip("lifelines", reason="lifelines is in the dev extra")


def rows(n: int, name: str, ties: bool = True) -> tuple[Tensor, Tensor]:
    """Inputs [N, 3] and labels [N, 2] of an exponential law, about a third censored."""
    g = keyed(f"survival/{name}")
    x = torch.randn(n, 3, generator=g).double()
    scale = (x @ torch.tensor([0.8, -0.5, 0.0]).double()).exp()
    t = -torch.rand(n, generator=g).double().log() / scale
    c = -torch.rand(n, generator=g).double().log() * 2
    time = torch.minimum(t, c)
    time = (time * 10).ceil() / 10 if ties else time
    return x, torch.stack([time, (t <= c).double()], 1)


# --- Cox's likelihood ---------------------------------------------------------------------------


def literal(f: Tensor, y: Tensor, ties: str) -> Tensor:
    """Breslow's and Efron's formula, by loops over times and tied events."""
    total = f.new_zeros(())
    for t in sorted({float(t) for t, e in y if e}):
        dead = [i for i in range(len(y)) if float(y[i, 0]) == t and y[i, 1]]
        at_risk = torch.stack([f[i, 0] for i in range(len(y)) if float(y[i, 0]) >= t]).exp().sum()
        tied = torch.stack([f[i, 0] for i in dead]).exp().sum()
        for k, i in enumerate(dead):
            out = k / len(dead) if ties == "efron" else 0.0
            total = total + f[i, 0] - torch.log(at_risk - out * tied)
    return -total / len(y)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_is_the_formula_with_its_gradient_and_curvature(ties: str, tied: bool) -> None:
    x, y = rows(30, "formula", tied)
    f = x[:, :1].clone().requires_grad_()
    ours, theirs = partial_likelihood(f, y, ties), literal(f, y, ties)  # type: ignore[arg-type]
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    slopes = [torch.autograd.grad(v, f, create_graph=True)[0] for v in (ours, theirs)]
    torch.testing.assert_close(*slopes)
    v = x[:, 1:2]
    curves = [torch.autograd.grad((s * v).sum(), f)[0] for s in slopes]
    torch.testing.assert_close(*curves)


def test_rows_in_any_order_and_risks_of_any_size() -> None:
    x, y = rows(40, "order")
    f, order = x[:, :1], torch.randperm(40, generator=keyed("order"))
    assert float(partial_likelihood(f[order], y[order])) == pytest.approx(
        float(partial_likelihood(f, y))
    )
    # A constant in all risks changes nothing, also where e^f would overflow.
    assert float(partial_likelihood(f + 2000, y)) == pytest.approx(float(partial_likelihood(f, y)))


def test_without_an_event_there_is_nothing_to_learn() -> None:
    f = torch.randn(5, 1, requires_grad=True)
    y = torch.stack([torch.arange(5.0), torch.zeros(5)], 1)
    value = partial_likelihood(f, y)
    value.backward()
    assert float(value) == 0 and bool((f.grad == 0).all())


def test_efron_is_lifelines_likelihood_at_its_own_fit() -> None:
    x, y = rows(200, "lifelines")
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "t": y[:, 0], "e": y[:, 1]})
    fit = lifelines.CoxPHFitter().fit(frame, "t", "e")
    f = x @ torch.tensor(fit.params_.to_numpy())[:, None]
    assert -200 * float(partial_likelihood(f, y)) == pytest.approx(fit.log_likelihood_, rel=1e-9)
    f = f.requires_grad_()
    (slope,) = torch.autograd.grad(partial_likelihood(f, y), f)
    assert float((x.T @ slope).abs().max()) < 1e-4  # it is the maximum


def test_many_rounds_over_sites_are_the_stratified_fit() -> None:
    """The sites' likelihoods, each of its own risk sets, add up to lifelines' `strata`."""
    sites = {"a": rows(80, "a"), "b": rows(50, "b"), "c": rows(120, "c")}
    sites["b"][1][:, 0] *= 7  # another baseline hazard
    clients = {
        name: Client(name, Split(x.float(), y.float()), None, None)
        for name, (x, y) in sites.items()
    }
    frames = [
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "t": y[:, 0], "e": y[:, 1], "s": n})
        for n, (x, y) in sites.items()
    ]
    theirs = lifelines.CoxPHFitter().fit(pd.concat(frames), "t", "e", strata=["s"]).params_
    module = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    model = Model(module)
    chosen = method("fedsgd", Training(server=Descend(SGD(1.0)), weights="examples", loss=Cox()))
    state = start(chosen, model, sorted(clients), seed=0)
    state, _ = play(chosen, state, InProcess(model, clients), sorted(clients), rounds=200)
    assert state.inbox["model"].tolist() == pytest.approx(theirs.tolist(), abs=1e-3)
    pooled = lifelines.CoxPHFitter().fit(pd.concat(frames).drop(columns="s"), "t", "e").params_
    assert (theirs - pooled).abs().max() > 0.02  # strata matter here


# --- hazards of intervals -----------------------------------------------------------------------


def test_hazards_are_the_likelihood_written_out() -> None:
    g = keyed("hazards")
    cuts = (2.0, 3.0, 5.0, 9.0)
    t = torch.cat([10 * torch.rand(60, generator=g), torch.tensor([0.0, 2.0, 3.0, 9.0, 4.0, 4.0])])
    e = (torch.rand(66, generator=g) < 0.6).float()
    z = torch.randn(66, 4, generator=g).double()
    found = hazard_losses(z, Intervals(cuts).standardised(torch.stack([t, e], 1)).double())
    for i in range(66):
        h, low, expected = 1 / (1 + np.exp(-z[i].numpy())), 0.0, 0.0
        for j, high in enumerate(cuts):
            if e[i] and low <= t[i] < high:
                expected -= math.log(h[j])
                break
            # Who was censored later than the middle of an interval survived it.
            if t[i] >= high or (not e[i] and t[i] >= (low + high) / 2):
                expected -= math.log(1 - h[j])
            low = high
        assert float(found[i]) == pytest.approx(expected, rel=1e-9)


def test_survival_is_the_product_of_hazards_with_a_constant_hazard_inside() -> None:
    z = torch.randn(5, 3, generator=keyed("curves"))
    h = z.sigmoid().double()
    intervals = Intervals((1.0, 3.0, 4.0))
    found = intervals.survival(z, [0.0, 1.0, 2.0, 3.0, 4.0, 4.5])
    torch.testing.assert_close(found[:, 0], torch.ones(5).double())
    torch.testing.assert_close(found[:, 1], 1 - h[:, 0], rtol=1e-6, atol=0)
    halfway = (1 - h[:, 0]) * (1 - h[:, 1]) ** 0.5
    torch.testing.assert_close(found[:, 2], halfway, rtol=1e-6, atol=0)
    torch.testing.assert_close(found[:, 4], (1 - h).prod(1), rtol=1e-6, atol=0)
    assert bool(found[:, 5].isnan().all())


def test_without_covariates_the_hazards_are_the_life_tables() -> None:
    """The maximum for one group is events over time at risk, to the nearest interval: d / (n')."""
    _, y = rows(300, "life")
    y = torch.stack([y[:, 0], torch.ones(300).double()], 1)  # without censoring, by hand
    cuts = (0.5, 1.0, 2.0)
    units = Intervals(cuts).standardised(y)
    z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([z], lr=1, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = hazard_losses(z.expand(300, 3), units.double()).mean()
        value.backward()
        return value

    optimiser.step(closure)
    t, low = y[:, 0].float(), 0.0
    for j, high in enumerate(cuts):
        at_risk = int((t >= low).sum())
        died = int(((t >= low) & (t < high)).sum())
        assert float(z[0, j].sigmoid()) == pytest.approx(died / at_risk, abs=1e-4)
        low = high


def test_cuts_of_sums_are_quantiles_of_the_law() -> None:
    from scipy.stats import weibull_min

    law = weibull_min(1.7, scale=300.0)
    mean = law.expect(np.log)
    deviation = math.sqrt(law.expect(lambda t: (np.log(t) - mean) ** 2))
    shares = [0.95 * j / 4 for j in (1, 2, 3, 4)]
    found = Intervals.of_moments(mean, deviation, 4).cuts
    assert found == pytest.approx(law.ppf(shares).tolist(), rel=1e-6)


# --- metrics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 7, 60, 400])
def test_concordance_is_lifelines_with_ties_and_censoring(n: int) -> None:
    g = keyed(f"concordance/{n}")
    t = torch.randint(1, n // 2 + 2, (n,), generator=g).float()
    e = (torch.rand(n, generator=g) < 0.7).float()
    e[0] = 1
    f = torch.randint(0, n, (n, 1), generator=g).float()
    y = torch.stack([t, e], 1)
    expected = lifelines.utils.concordance_index(t, -f[:, 0], e)
    assert concordance(f, y) == pytest.approx(expected, abs=1e-12)
    ours = WEIGHTED["concordance"](f, y)(torch.ones(1, n, dtype=torch.float64))
    assert float(ours) == pytest.approx(expected, abs=1e-12)


def test_concordance_and_brier_are_scikit_survivals() -> None:
    metrics = pytest.importorskip("sksurv.metrics", reason="scikit-survival is in no extra")
    g = keyed("sksurv")
    t = torch.randint(1, 60, (150,), generator=g).float()
    e = (torch.rand(150, generator=g) < 0.6).float()
    y, z = torch.stack([t, e], 1), torch.randn(150, 4, generator=g)
    cuts = (10.0, 20.0, 33.0, 50.0)
    units = Intervals(cuts).standardised(y)
    order = metrics.concordance_index_censored(e.numpy() > 0, t.numpy(), risk(z).numpy())[0]
    assert concordance(z, units) == pytest.approx(order)
    truth = np.array([*zip(e.numpy() > 0, t.numpy(), strict=True)], dtype=[("e", "?"), ("t", "f8")])
    seen = torch.where(t == t.max(), 1.0, e)  # a last row that is censored would have G = 0
    own = np.array([*zip(seen.numpy() > 0, t.numpy(), strict=True)], dtype=truth.dtype)
    order = metrics.concordance_index_ipcw(own, own, risk(z).numpy())[0]
    assert concordance_ipcw(z, torch.stack([t, seen], 1)) == pytest.approx(order)
    S = Intervals(cuts).survival(z, cuts).numpy()
    _, scores = metrics.brier_score(truth, truth, S, cuts)
    assert integrated_brier(z, units) == pytest.approx(scores.mean())


def brier_by_hand(S: np.ndarray, t: np.ndarray, e: np.ndarray, ends: list[float]) -> float:
    """BS(c) of the docstring, G being a product over the censored times until then."""

    def free(at: float) -> float:
        value = 1.0
        for time in sorted(set(t[(e == 0) & (t <= at)])):
            at_risk = ((t > time) | ((t == time) & (e == 0))).sum()
            value *= 1 - ((t == time) & (e == 0)).sum() / at_risk
        return value

    def score(i: int, c: float, survival: float) -> float:
        if t[i] <= c:
            return float(e[i]) * survival**2 / free(t[i])
        return (1 - survival) ** 2 / free(c)

    each = [np.mean([score(i, c, S[i, j]) for i in range(len(t))]) for j, c in enumerate(ends)]
    return float(np.mean(each))


@pytest.mark.parametrize(
    ("t", "e"),
    [
        ([2.5, 3.0, 3.5, 3.8], [0, 1, 1, 1]),  # the first end lies before the first time
        ([2.5, 2.5, 2.5], [0, 0, 0]),
        ([2.5], [0]),
        ([1.2, 2.5, 2.5, 3.1, 3.3], [0, 1, 0, 1, 0]),
    ],
)
def test_nobody_is_censored_before_the_first_time(t: list[float], e: list[int]) -> None:
    z = torch.zeros(len(t), 4)  # half survive each interval
    y = torch.tensor([t, e], dtype=torch.float64).T
    ends = [c for c in (1.0, 2.0, 3.0, 4.0) if c < max(t)]
    S = np.tile(0.5 ** np.arange(1, len(ends) + 1), (len(t), 1))
    assert integrated_brier(z, y) == pytest.approx(
        brier_by_hand(S, y[:, 0].numpy(), y[:, 1].numpy(), ends)
    )


@pytest.mark.parametrize("seed", range(4))
def test_unos_concordance_is_the_formula_written_out(seed: int) -> None:
    g = keyed(f"uno/{seed}")
    t = torch.randint(1, 15, (40,), generator=g).double()
    e = (torch.rand(40, generator=g) < 0.5).double()
    f = torch.randn(40, 1, generator=g).round(decimals=1).double()
    G = lifelines.KaplanMeierFitter().fit(t + 0.5 * (1 - e), 1 - e)  # events leave first
    right = count = 0.0
    for i in range(40):
        free = float(G.predict(float(t[i]) + 0.5))
        for j in range(40):
            if e[i] and free > 0 and (t[i] < t[j] or (t[i] == t[j] and not e[j])):
                count += free**-2
                right += free**-2 * float((f[i] > f[j]) + 0.5 * (f[i] == f[j]))
    y = torch.stack([t, e], 1)
    assert concordance_ipcw(f, y) == pytest.approx(right / count)
    ours = WEIGHTED["concordance-ipcw"](f, y)(torch.ones(1, 40, dtype=torch.float64))
    assert float(ours) == pytest.approx(right / count)


def test_unos_concordance_does_without_events_and_censoring() -> None:
    y = torch.tensor([[3.0, 0.0], [5.0, 0.0]])
    assert concordance_ipcw(torch.zeros(2, 1), y) is None
    x, y = rows(60, "all seen")
    y[:, 1] = 1
    assert concordance_ipcw(x[:, :1], y) == pytest.approx(concordance(x[:, :1], y))


def test_weights_stand_for_repeated_rows() -> None:
    x, y = rows(40, "weights")
    y[0, 1] = 1
    times = torch.randint(0, 4, (40,), generator=keyed("times"))
    index = torch.arange(40).repeat_interleave(times)
    f = x[:, :1]
    for name, whole in (("loss", loss), ("concordance", concordance)):
        found = WEIGHTED[name](f, y)(times[None].double())
        assert float(found) == pytest.approx(whole(f[index], y[index])), name
    z, units = x.repeat(1, 2), Intervals((0.2, 0.4, 0.6, 0.9, 1.3, 3.0)).standardised(y)
    found = WEIGHTED["loss"](z, units)(times[None].double())
    assert float(found) == pytest.approx(loss(z[index], units[index]))
    one = WEIGHTED["integrated-brier"](z, units)(torch.ones(1, 40, dtype=torch.float64))
    assert float(one) == pytest.approx(integrated_brier(z, units))


def test_labels_inside_an_interval_stay_there() -> None:
    cuts = (0.1, 0.2, 0.30000001, 7.0)
    t = torch.tensor([0.0999999940395, 0.1, 0.19999999, 0.2, 6.9999995, 7.0, 700.0])
    units = Intervals(cuts).standardised(torch.stack([t, torch.ones(7)], 1))[:, 0]
    ends = torch.tensor((0.0, *cuts), dtype=torch.float64)
    place = [int((ends <= float(v)).sum()) - 1 for v in t]
    assert units[:5].floor().long().tolist() == place[:5]
    assert bool((units[5:] >= 4).all()) and units[6] > units[5]
    assert Hazards(cuts=cuts).outputs == 4 and Hazards().outputs == 10


def test_an_end_at_the_last_time_is_left_out() -> None:
    """Hazards of 1/2, all dead at the second end: S(1)^2 = (1 - S(1))^2 = 1/4 alone counts."""
    y = torch.tensor([[0.5, 1.0], [2.0, 1.0]])
    assert integrated_brier(torch.zeros(2, 3), y) == pytest.approx(0.25)
