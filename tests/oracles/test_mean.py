"""The weighted mean against Eq. 1 of PPDG: p_k = n_k / n, or 1/K."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import literal
from support.bounds import gamma

from unseen.errors import UnseenError
from unseen.methods.combine import Mean


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 26])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_mean_is_the_loop(count: int, weights: str) -> None:
    rows = literal.gradients(0, count)
    examples = np.random.default_rng(count).integers(1, 9000, count).astype(float)
    p = literal.shares(examples) if weights == "examples" else [1 / count] * count
    rule = Mean(weights)
    table = {"examples": torch.tensor(examples)}
    vector, _, used = rule(torch.tensor(rows), table, rule.init(count, rows.shape[1]))
    np.testing.assert_allclose(vector.numpy(), literal.average(rows, p), rtol=0, atol=1e-13)
    np.testing.assert_allclose(used.numpy(), p, rtol=1e-15)
    assert used.dtype == torch.float64 and used.shape == (count,)


def test_mean_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0, -4.0], [5.0, 8.0, 4.0]])
    table = {"examples": torch.tensor([300.0, 100.0], dtype=torch.float64)}
    for weights, expected, p in [
        ("examples", [2.0, 2.0, -2.0], [0.75, 0.25]),
        ("uniform", [3.0, 4.0, 0.0], [0.5, 0.5]),
    ]:
        rule = Mean(weights)
        vector, _, used = rule(rows, table, rule.init(2, 3))
        assert vector.tolist() == expected
        assert used.tolist() == p


def test_the_default_weighs_by_examples() -> None:
    table = {"examples": torch.tensor([3.0, 1.0], dtype=torch.float64)}
    rule = Mean()
    vector, _, _ = rule(torch.tensor([[4.0], [8.0]]), table, rule.init(2, 1))
    assert vector.tolist() == [5.0]


def test_float32_rows_of_many_columns() -> None:
    """Longer than any block of columns that a rule may work in."""
    rows = literal.gradients(3, 5, size=20_011).astype(np.float32)
    rule = Mean("uniform")
    examples = torch.ones(5, dtype=torch.float64)
    vector, _, _ = rule(torch.tensor(rows), {"examples": examples}, rule.init(5, 20_011))
    expected = literal.average(rows.astype(np.float64))
    # Five products, of weights that are rounded first, and their sum.
    bound = gamma(7, torch.float32) * np.abs(rows).mean(0)
    assert (np.abs(vector.numpy() - expected) <= bound).all()


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(UnseenError, match="uniform"):
        Mean("unifrom")
