"""The bound on lengths against cases worked by hand, and a federation with a wrong client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen.core import RuleState
from unseen.methods.combine import Mean, NormBound


def rows(*lengths: float) -> Tensor:
    """Orthogonal updates of these lengths."""
    return torch.diag(torch.tensor(lengths, dtype=torch.float64))


def played(rule: NormBound, *rounds: tuple[float, ...]) -> list[Tensor]:
    """The weights of each round."""
    state: RuleState = rule.init(len(rounds[0]), len(rounds[0]))
    weights = []
    for lengths in rounds:
        _, state, w = rule(rows(*lengths), {}, state)
        assert w is not None
        weights.append(w)
    return weights


def test_a_long_update_is_shortened_to_the_bound() -> None:
    (w,) = played(NormBound(factor=2.0), (1.0, 2.0, 3.0, 40.0, 2.0))
    # The median is 2, the bound 4: the fourth counts for a tenth.
    np.testing.assert_allclose(w, [0.2, 0.2, 0.2, 0.02, 0.2], rtol=1e-15)


def test_a_long_update_is_refused_and_the_others_have_its_weight() -> None:
    rule = NormBound(factor=2.0, longer="refuse", prior=Mean("examples"))
    table = {"examples": torch.tensor([10.0, 30.0, 1e6])}
    w = rule(rows(1.0, 1.0, 3.0), table, rule.init(3, 3))[2]
    assert w is not None
    np.testing.assert_allclose(w, [0.25, 0.75, 0.0], rtol=1e-12)


def test_recent_rounds_decide_not_this_one_alone() -> None:
    """Two of three go wrong in the last round; before it the lengths were 1."""
    honest = (1.0, 1.0, 1.0)
    w = played(NormBound(factor=2.0, window=5), honest, honest, honest, (1.0, 100.0, 50.0))[-1]
    np.testing.assert_allclose(w * 3, [1.0, 0.02, 0.04], rtol=1e-12)
    # Over one round alone their own median is what is usual.
    w = played(NormBound(factor=2.0, window=1), honest, honest, honest, (1.0, 100.0, 50.0))[-1]
    np.testing.assert_allclose(w * 3, [1.0, 1.0, 1.0], rtol=1e-12)


def test_half_of_the_clients_cannot_raise_the_median() -> None:
    (w,) = played(NormBound(factor=3.0), (1.0, 1e6))
    np.testing.assert_allclose(w * 2, [1.0, 3e-6], rtol=1e-12)


@pytest.mark.parametrize("longer", ["clip", "refuse"])
def test_updates_of_nothing_stay(longer: str) -> None:
    (w,) = played(NormBound(longer=longer), (0.0, 0.0, 0.0))  # type: ignore[arg-type]
    np.testing.assert_allclose(w * 3, [1.0, 1.0, 1.0])
