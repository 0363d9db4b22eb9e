"""FedILC's weighted geometric mean: signs, zeros and the agreement threshold.

The numbers for exact zeros are worked by hand: the paper puts a zero into both sets, the released
code into the negative one with |g| + 1e-10 under the logarithm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import literal
from support.bounds import gamma
from support.playing import play_elementwise as play

from unseen.errors import UnseenError
from unseen.methods.combine import Mean, WeightedGeometricMean, geometric
from unseen.methods.combine.geometric import LogSums, unrolled

ZEROS = ("skip", "paper", "released")


def one(values, zeros="skip", examples=None, **options):
    """The mean of a single coordinate."""
    prior = Mean("uniform") if examples is None else Mean("examples")
    rule = WeightedGeometricMean(zeros=zeros, prior=prior, **options)
    return play(rule, [[v] for v in values], examples=examples).item()


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 9.0], 6.0),
        ([-4.0, -9.0], -6.0),
        ([1.0, 2.0, 4.0], 2.0),
        ([4.0, 9.0, -3.0], 2 / 3 * 6 - 1 / 3 * 3),
        ([-1.0, -4.0, 5.0, -2.0], 1 / 4 * 5 - 3 / 4 * 2),
        ([2.0, -2.0], 0.0),
        ([7.0], 7.0),
        ([-7.0], -7.0),
        ([3.0, 3.0, 3.0], 3.0),
    ],
)
def test_signs_by_hand(zeros, values, expected) -> None:
    """(E+ / E) (prod of the positive)^(1 / E+) - (E- / E) (prod of the negative)^(1 / E-)."""
    assert one(values, zeros) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "zeros", "expected"),
    [
        ([1.0, 2.0, 0.0, -3.0, 4.0], "paper", 0.0),
        ([1.0, 2.0, 0.0, -3.0, 4.0], "skip", 3 / 5 * 2 - 1 / 5 * 3),
        ([1.0, 2.0, 0.0, -3.0, 4.0], "released", 1.19999),
        ([1e-3, 2e-3, 0.0], "paper", 0.0),
        ([1e-3, 2e-3, 0.0], "skip", 2 / 3 * 2e-6**0.5),
        ([1e-3, 2e-3, 0.0], "released", 9.428e-4),
        ([-1e-3, -2e-3, 0.0], "paper", 0.0),
        ([-1e-3, -2e-3, 0.0], "skip", -2 / 3 * 2e-6**0.5),
        ([-1e-3, -2e-3, 0.0], "released", -5.848e-6),
        ([1e-3, -1e-3, 0.0], "paper", 0.0),
        ([1e-3, -1e-3, 0.0], "skip", 0.0),
        ([1e-3, -1e-3, 0.0], "released", 3.3312e-4),
        ([0.0, 0.0, 0.0], "paper", 0.0),
        ([0.0, 0.0, 0.0], "skip", 0.0),
        ([0.0, 0.0, 0.0], "released", -1e-10),
    ],
)
def test_zeros_by_hand(values, zeros, expected) -> None:
    assert one(values, zeros) == pytest.approx(expected, rel=1e-4, abs=1e-15)


def test_the_released_floor_lifts_small_gradients() -> None:
    """Five gradients of 1e-12 come out a hundred times too large; without the floor they stay."""
    assert one([1e-12] * 5, "released") == pytest.approx(1.01e-10, rel=1e-9)
    assert one([1e-12] * 5, "skip") == pytest.approx(1e-12, rel=1e-9)


def rounding(rows) -> float:
    """Of a mean in float32, relative: what the exponent is off by, a sum of K logarithms, and six
    more roundings: a logarithm's and an exponential's of two each, a division and a product."""
    return gamma(len(rows) + 6, torch.float32) * (1 + np.abs(np.log(np.abs(rows))).max())


@pytest.mark.parametrize("magnitude", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("zeros", ["skip", "paper"])
def test_products_neither_underflow_nor_overflow_in_float32(magnitude, zeros) -> None:
    rows = np.array([[1.0, -2.0], [2.0, -1.0], [4.0, -4.0], [1.0, -8.0], [2.0, -0.5]]) * magnitude
    expected = np.array([16**0.2, -(32**0.2)]) * magnitude
    found = play(WeightedGeometricMean(zeros=zeros), rows, dtype=torch.float32)
    np.testing.assert_allclose(found, expected, rtol=rounding(rows))


def test_weights_of_the_prior_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), g = (4, 1, -2): P+ = 3/4, exponents 2/3 and 1/3; P- = 1/4."""
    expected = 0.75 * 4 ** (2 / 3) - 0.25 * 2
    assert one([4.0, 1.0, -2.0], examples=[20.0, 10.0, 10.0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("zeros", ZEROS)
def test_a_client_without_weight_does_not_count(zeros) -> None:
    """GA clips weights to zero: a set of weight zero adds nothing, and 0 / 0 must not arise."""
    assert one([5.0, -2.0], zeros, examples=[0.0, 10.0]) == pytest.approx(-2.0, rel=1e-9)
    assert one([5.0, 2.0], zeros, examples=[0.0, 10.0]) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 26])
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_formula_run_literally(count, zeros, dtype) -> None:
    rng = np.random.default_rng(count)
    rows = literal.gradients(0, count, size=300) * 10 ** rng.uniform(-4, 2, 300)
    rows[rng.random(rows.shape) < 0.5 / count] = 0
    rows = rows.astype(np.float32).astype(np.float64)
    examples = rng.integers(1, 50, count).astype(float)
    p = literal.shares(examples)
    expected = np.array([literal.geometric(column, p, zeros) for column in rows.T])
    rule = WeightedGeometricMean(zeros=zeros, prior=Mean("examples"))
    error = np.abs(play(rule, rows, examples=examples, dtype=dtype) - expected)
    limit = 1e-12 if dtype == torch.float64 else 5e-6
    assert (error <= limit * (np.abs(rows).max(0) + 1e-10)).all()


def test_many_columns() -> None:
    """Longer than any block of columns that the rule may work in, and no multiple of one."""
    rows = literal.gradients(1, 3, size=70_001)
    found = play(WeightedGeometricMean(), rows)
    for k in [0, 1, 8191, 8192, 16_384, 32_768, 65_535, 65_536, 70_000]:
        expected = literal.geometric(rows[:, k], [1 / 3] * 3)
        assert found[k] == pytest.approx(expected, rel=1e-10, abs=1e-13)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("values", "agreement", "kept"),
    [
        ([1.0, 1.0, 1.0, 1.0], 1.0, True),
        ([1.0, 1.0, 1.0, -1e-9], 1.0, False),
        ([1.0, 1.0, 1.0, -1.0], 0.5, True),  # |3/4 - 1/4| = 1/2 is not below 1/2
        ([-1.0, -1.0, -1.0, 1.0], 0.5, True),
        ([1.0, 1.0, 1.0, -1.0], 0.51, False),
        ([1.0, 1.0, -4.0, -4.0], 0.01, False),
        ([1.0, 1.0, -4.0, -4.0], 0.0, True),  # 0 < 0 is false: no threshold, no mask
        ([1.0, 1.0, 1.0, 0.0], 0.75, True),
        ([1.0, 1.0, 1.0, 0.0], 0.76, False),
    ],
)
def test_agreement_masks_coordinates(values, agreement, kept) -> None:
    free = one(values)
    assert free != 0
    assert one(values, agreement=agreement) == (free if kept else 0.0)


def test_agreement_uses_the_weights_of_the_prior() -> None:
    """p = (3/4, 1/4): the signs +, - agree to 1/2; uniformly to 0."""
    assert one([2.0, -1.0], agreement=0.5, examples=[30.0, 10.0]) == pytest.approx(1.25)
    assert one([2.0, -1.0], agreement=0.5) == 0.0


@pytest.mark.parametrize("zeros", ZEROS)
def test_agreement_is_applied_last(zeros) -> None:
    rows = literal.gradients(4, 5, size=200)
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = 0
    found = play(WeightedGeometricMean(zeros=zeros, agreement=0.5), rows)
    expected = [literal.geometric(column, [0.2] * 5, zeros, 0.5) for column in rows.T]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    assert 20 < np.count_nonzero(found) < 180


@given(
    st.lists(
        st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(0.0) | st.just(-0.0),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(ZEROS),
)
@settings(derandomize=True, max_examples=150)
def test_between_the_extremes_and_odd(values, zeros) -> None:
    """Finite, within the largest magnitude, and odd in g (except where zeros count as negative)."""
    found = one(values, zeros)
    assert abs(found) <= max(map(abs, values)) * (1 + 1e-9) + 1.1e-10
    if zeros != "released":
        assert one([-v for v in values], zeros) == -found
    if min(values) > 0:
        assert found <= np.mean(values) * (1 + 1e-9) + 1.1e-10


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UnseenError, match="released"):
        WeightedGeometricMean(zeros="release")


def test_one_pass_is_the_mean_up_to_rounding() -> None:
    """What is compiled; the compiler itself is left to a slower test."""
    rows = torch.tensor(literal.gradients(3, 5, size=400))
    rows[torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.1] = 0
    p = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    sums = LogSums.of(rows, p, zeros=False)
    expected = WeightedGeometricMean().mean(sums)
    torch.testing.assert_close(unrolled(rows.unbind(), p.unbind()), expected, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_compiled_it_is_the_same_up_to_rounding() -> None:
    rows = literal.gradients(3, 4, size=300)
    found = play(WeightedGeometricMean(compiled=True), rows, dtype=torch.float32)
    expected = play(WeightedGeometricMean(), rows, dtype=torch.float32)
    bound = 2 * rounding(rows) * np.abs(rows).max(0)  # of a difference: both terms' size counts
    assert (np.abs(found - expected) <= bound).all()


COMPILED = """
import torch
from unseen.methods.combine import WeightedGeometricMean
rows = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
plain, compiled = (WeightedGeometricMean(compiled=c)(rows, {}, {"prior": {}})[0] for c in (0, 1))
print(float((plain - compiled).abs().max()))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_what_another_processor_compiled_is_not_taken_from_the_cache(tmp_path) -> None:
    """As where home folders are shared: first the best vector unit, then AVX2, then none."""
    for unit in (None, "avx2", "default"):
        chosen = {} if unit is None else {"ATEN_CPU_CAPABILITY": unit}
        environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"} | chosen
        done = subprocess.run(
            [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False,
            env=environment | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) <= 2 * gamma(10, torch.float32) * 50, (
            unit
        )  # |log| and rows below 10 and 5


def test_compiled_is_for_the_plain_mean() -> None:
    with pytest.raises(UnseenError, match="compiled=True is for zeros='skip'"):
        WeightedGeometricMean("paper", compiled=True)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(geometric, "_compiled", lambda: lacking)
    with pytest.raises(UnseenError, match=r"No working C\+\+ compiler found\. Leave it out"):
        play(WeightedGeometricMean(compiled=True), [[1.0], [2.0]])
