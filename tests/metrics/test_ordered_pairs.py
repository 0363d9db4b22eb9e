"""Concordances against the quadratic definition, with ties and censoring."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from unseen.core.metrics.evaluation import METRICS
from unseen.core.metrics.survival_metrics import uncensored_weights
from unseen.core.metrics.weighted_metrics import WEIGHTED

NAMES = ("concordance", "concordance-ipcw")
ROWS = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(1, 6), st.booleans(), st.integers(0, 5)),
    min_size=1,
    max_size=40,
)


def by_definition(risks, times, events, own, other) -> Fraction | None:
    """Σ over comparable pairs, i having the event first, of v_i w_j (1, 1/2 or 0) / Σ v_i w_j."""
    right = count = Fraction(0)
    for i, first in enumerate(times):
        for j, last in enumerate(times):
            outlives = first < last or (first == last and not events[j])
            if events[i] and outlives and i != j:
                weight = Fraction(own[i]) * Fraction(other[j])
                count += weight
                right += weight * Fraction(1 + (risks[i] > risks[j]) - (risks[i] < risks[j]), 2)
    return right / count if count else None


def tensors(rows) -> tuple[torch.Tensor, torch.Tensor]:
    risks, times, events, _ = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)
    )
    return risks[:, None], torch.stack([times, events], 1)


@settings(deadline=None)
@given(rows=ROWS)
def test_harrells_and_unos_concordance_are_their_definitions(rows) -> None:
    outputs, y = tensors(rows)
    risks, times, events, counts = zip(*rows, strict=True)
    ones, inverse = [1] * len(rows), uncensored_weights(y).tolist()
    plain = by_definition(risks, times, events, ones, ones)
    assert METRICS["concordance"](outputs, y) == (None if plain is None else float(plain))
    uno = by_definition(risks, times, events, inverse, ones)
    assert METRICS["concordance-ipcw"](outputs, y) == (
        None if uno is None else pytest.approx(float(uno), rel=1e-12)
    )
    for name, first in (("concordance", ones), ("concordance-ipcw", inverse)):
        own = [a * b for a, b in zip(first, counts, strict=True)]
        expected = by_definition(risks, times, events, own, counts)
        found = float(WEIGHTED[name](outputs, y)(torch.tensor([counts]).double())[0])
        assert found != found if expected is None else found == pytest.approx(float(expected))


@settings(deadline=None)
@given(rows=ROWS)
def test_the_weighted_concordance_of_numbers_is_its_definition(rows) -> None:
    scores, numbers, _, counts = zip(*rows, strict=True)
    expected = by_definition([-s for s in scores], numbers, [1] * len(rows), counts, counts)
    # By its definition a pair of equal numbers counts where j "was censored": here nobody was.
    metric = WEIGHTED["concordance"](
        torch.tensor(scores).double()[:, None], torch.tensor(numbers).double()
    )
    found = float(metric(torch.tensor([counts]).double())[0])
    assert found != found if expected is None else found == pytest.approx(float(expected))


class Numbers(TorchDispatchMode):
    """Counts the numbers in all tensors that operations return."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        several = result if isinstance(result, tuple | list) else [result]
        self.count += sum(part.numel() for part in several if isinstance(part, torch.Tensor))
        return result


@pytest.mark.parametrize("name", NAMES)
def test_four_times_the_rows_are_less_than_eight_times_the_work(name) -> None:
    def work(n: int) -> int:
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(n, 1, generator=generator)
        times = torch.rand(n, generator=generator)
        y = torch.stack([times, (torch.rand(n, generator=generator) < 0.5).float()], 1)
        with Numbers() as numbers:
            METRICS[name](outputs, y)
            WEIGHTED[name](outputs, y)(torch.ones(2, n).double())
        return numbers.count

    assert work(4096) < 8 * work(1024)


def test_an_interval_of_many_rows_has_a_concordance() -> None:
    outputs = torch.arange(5000.0)[:, None]
    y = torch.stack([5000 - torch.arange(5000.0), torch.ones(5000)], 1)
    assert WEIGHTED["concordance"](outputs, y)(torch.ones(1, 5000).double()).tolist() == [1.0]
