"""The baseline hazard of Cox's model, against lifelines and a loop over events."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.serving.baseline_hazard import Baseline, sums_of

pd = pytest.importorskip("pandas", reason="pandas is in the dev extra")
lifelines = pytest.importorskip("lifelines", reason="lifelines is in the dev extra")
BETA = torch.tensor([[0.8], [-0.5]]).double()


def rows(n: int, name: str) -> tuple[Tensor, Tensor]:
    """Inputs [N, 2] and labels [N, 2] of whole days, with ties, about a third censored."""
    g = keyed(f"baseline/{name}")
    x = torch.randn(n, 2, generator=g).double()
    t = (-30 * torch.rand(n, generator=g).log() / (x @ BETA).exp()[:, 0]).ceil()
    c = (80 * torch.rand(n, generator=g)).ceil()
    return x, torch.stack([torch.minimum(t, c), t <= c], 1).double()


def literal(f: Tensor, y: Tensor, at: float) -> float:
    """Breslow's formula: of each time with events, their number over the risk at risk."""
    total = 0.0
    for time in sorted({float(t) for t, e in y if e and t <= at}):
        events = sum(float(t) == time and bool(e) for t, e in y)
        total += events / sum(math.exp(float(f[i])) for i in range(len(y)) if y[i, 0] >= time)
    return total


def test_at_the_times_of_events_it_is_breslows_and_lifelines() -> None:
    x, y = rows(150, "pooled")
    days = tuple(float(t) for t in range(1, int(y[:, 0].max()) + 1))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "t": y[:, 0], "e": y[:, 1]})
    fit = lifelines.CoxPHFitter().fit(frame, "t", "e")
    f = x @ torch.from_numpy(fit.params_.to_numpy())[:, None]
    found = Baseline.of_sums(days, sums_of(f, y, days))
    for day, hazard in list(zip(days, found.hazard, strict=True))[::7]:
        assert hazard == pytest.approx(literal(f[:, 0], y, day), abs=1e-6)
    some = [3.0, 20.0, 55.0]
    theirs = fit.predict_survival_function(frame[:30], times=some).to_numpy().T
    np.testing.assert_allclose(found.survival(f[:30], some).numpy(), theirs, atol=1e-3)
    # lifelines' baseline is that of mean covariates.
    mean = f.mean().view(1, 1)
    theirs = fit.baseline_survival_.loc[some, "baseline survival"].to_numpy()
    np.testing.assert_allclose(found.survival(mean, some)[0].numpy(), theirs, atol=1e-3)


def test_sums_over_sites_are_those_of_all_rows() -> None:
    x, y = rows(90, "sites")
    f, cuts = x @ BETA, (10.0, 30.0, 60.0)
    parts = [sums_of(f[k::3], y[k::3], cuts) for k in range(3)]
    torch.testing.assert_close(sum(parts), sums_of(f, y, cuts))
    assert parts[0].shape == (2, 3)


def test_between_stated_times_the_hazard_is_constant() -> None:
    """Wide intervals: the maximum likelihood of lifelines' piecewise exponential law."""
    _, y = rows(200, "wide")
    cuts = (10.0, 30.0)
    frame = pd.DataFrame({"t": y[:, 0].clamp(max=30), "e": y[:, 1] * (y[:, 0] <= 30)})
    # An event at an end belongs to the interval that it ends: lifelines puts it into the next.
    frame["t"] -= 1e-9
    fit = lifelines.PiecewiseExponentialFitter([10.0]).fit(frame["t"], frame["e"])
    found = Baseline.of_sums(cuts, sums_of(torch.zeros(200, 1), y, cuts))
    some = [4.0, 10.0, 21.0, 30.0]
    theirs = fit.survival_function_at_times(some).to_numpy()
    np.testing.assert_allclose(found.survival(torch.zeros(1, 1), some)[0], theirs, atol=1e-3)
    assert found.survival(torch.zeros(1, 1), [0.0, 31.0])[0].tolist() == [
        1.0,
        pytest.approx(math.nan, nan_ok=True),
    ]


def test_intervals_without_events_or_rows_add_no_hazard() -> None:
    y = torch.tensor([[0.0, 1.0], [5.0, 0.0]])
    sums = sums_of(torch.zeros(2, 1), y, (10.0, 20.0))
    assert sums.tolist() == [[1.0, 0.0], [0.5, 0.0]]
    assert Baseline.of_sums((10.0, 20.0), sums).hazard == (2.0, 2.0)
