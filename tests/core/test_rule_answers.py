"""A rule of one's own that breaks its contract is named, with what was expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from unseen.core import Elementwise, Exchange, Gram, Method, Model, Reference, Slot, Weighted
from unseen.core.round import start
from unseen.errors import Diverged, UnseenError
from unseen.methods.combine import Mean

ROWS = torch.tensor([[1.0, 0.0, 2.0], [-1.0, 1.0, 0.0]])
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
Answer = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Shares(Weighted):
    answer: Answer

    def share(self, table, state, generator):  # type: ignore[no-untyped-def]
        return self.answer(state)


@dataclass(frozen=True)
class Free(Shares):
    averages: ClassVar[bool] = False


@dataclass(frozen=True)
class Mixes(Gram):
    answer: Answer

    def mix(self, gram, table, state, generator):  # type: ignore[no-untyped-def]
        return self.answer(state)


@dataclass(frozen=True)
class Reduces(Elementwise):
    answer: Answer

    def reduce(self, rows, table, state, generator):  # type: ignore[no-untyped-def]
        return self.answer(state)


def combined(rule: Any, **scalars: torch.Tensor) -> torch.Tensor:
    vector: torch.Tensor = rule(ROWS, scalars, rule.init(*ROWS.shape))[0]
    return vector


@pytest.mark.parametrize("kind", [Shares, Mixes])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda state: HALF, r"must return two things, \(weights \[2\], state\).*found Tensor"),
        (lambda state: (HALF, state, 1), r"found \(Tensor, dict, int\)"),
        (lambda state: ([0.5, 0.5], state), r"found \(list, dict\)"),
        (lambda state: (HALF[:1], state), r"for each of the 2 clients.*found the shape \[1\]"),
        (lambda state: (HALF[:, None], state), r"found the shape \[2, 1\]"),
    ],
)
def test_weights_of_another_form_are_refused(kind: type, answer: Answer, words: str) -> None:
    with pytest.raises(UnseenError, match=rf"{kind.__name__}\.(share|mix).*{words}"):
        combined(kind(answer))


def test_weights_of_a_mean_sum_to_one() -> None:
    """Those of a rule that is not a mean need not; rounding in float32 is not a fault."""
    with pytest.raises(
        UnseenError, match=r"Shares\.share.*sum to 1.*sum to 1\.2.*averages = False"
    ):
        combined(Shares(lambda state: (1.2 * HALF, state)))
    torch.testing.assert_close(combined(Free(lambda state: (1.2 * HALF, state))), 0.6 * ROWS.sum(0))
    third = torch.full((2,), 0.5 + 1e-7)
    torch.testing.assert_close(combined(Shares(lambda state: (third, state))), ROWS.mean(0))


@pytest.mark.parametrize("kind", [Shares, Mixes])
def test_weights_that_are_no_numbers_are_the_rules_fault_only_of_sound_scalars(kind: type) -> None:
    rule = kind(lambda state: (HALF * torch.nan, state))
    with pytest.raises(Diverged, match=rf"{kind.__name__}\..*not finite, \[nan, nan\]"):
        combined(rule, loss=torch.tensor([1.0, 2.0]))
    assert bool(combined(rule, loss=torch.tensor([1.0, torch.inf])).isnan().all())


def test_a_reduced_vector_is_as_long_as_the_rows() -> None:
    with pytest.raises(UnseenError, match=r"Reduces\.reduce.*length of the rows, \[3\].*\[2\]"):
        combined(Reduces(lambda state: (torch.zeros(2), state)))
    with pytest.raises(UnseenError, match=r"\(vector \[3\], state\).*found Tensor"):
        combined(Reduces(lambda state: torch.zeros(3)))


def test_a_new_slot_without_a_start_is_named() -> None:
    model = Model(torch.nn.Linear(2, 1))
    slots = {"model": Slot(Mean()), "moments": Slot(Mean())}
    method = Method("m", (Exchange("train", lambda *_: None, slots),), (Reference("", ""),), None)
    with pytest.raises(UnseenError, match=r"slot 'moments'.*entry 'moments'.*start=lambda model"):
        start(method, model, ["a"], 0)
