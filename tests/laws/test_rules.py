"""Laws that every server rule obeys. A new rule enters RULES and is held to all of them."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bounds import SOLVED_TO, gamma, product, sensitivity
from torch import Tensor

from unseen.core.turn import keyed
from unseen.core.vector import Layout
from unseen.errors import UnseenError
from unseen.methods import combine
from unseen.methods.combine import (
    PPDG,
    AbsoluteGeometricMean,
    Agnostic,
    AgrRand,
    AgrSum,
    AndMask,
    Apart,
    AutoWeighted,
    ClassShares,
    Combine,
    FedExP,
    FedOMG,
    GeneralizationAdjustment,
    GlobalAlignment,
    GradDrop,
    GradientMasked,
    Gram,
    GroupDRO,
    JacobianDescent,
    Krum,
    Mean,
    Median,
    NormalizedAveraging,
    NormBound,
    PCGrad,
    QFair,
    QuantileOfRisks,
    RandomEffects,
    SandMask,
    SemanticDivergence,
    TrimmedMean,
    VarianceOfRisks,
    WeightedGeometricMean,
)

GA = GeneralizationAdjustment
RULES: dict[str, Combine] = {
    "mean-examples": Mean("examples"),
    "mean-uniform": Mean("uniform"),
    "ppdg-raw": PPDG(),
    "ppdg-running": PPDG(base="running", lam=0.2),
    "ppdg-equation": PPDG(base="equation", others="raw"),
    "ppdg-always": PPDG(when="always", order="fixed"),
    "ppdg-examples": PPDG(prior=Mean("examples")),
    "ppdg-ga": PPDG(prior=GA()),
    "ppdg-tensor": PPDG(blocks="tensor"),
    "pcgrad": PCGrad(),
    "pcgrad-fixed": PCGrad(order="fixed", prior=Mean("examples")),
    "agrsum": AgrSum(),
    "agrrand": AgrRand(),
    "agrsum-ga": AgrSum(prior=GA()),
    "ga": GA(),
    "ga-paper": GA(variant="paper"),
    "ga-reference": GA(variant="reference"),
    "ga-examples": GA(prior=Mean("examples")),
    "divergence": SemanticDivergence(),
    "divergence-whole": SemanticDivergence(blocks="whole"),
    "divergence-similar": SemanticDivergence(favour="similar", blocks="module"),
    "divergence-uniform": SemanticDivergence(favour="uniform"),
    "divergence-l1": SemanticDivergence("l1", prior=Mean("examples")),
    "divergence-ga": SemanticDivergence(prior=GA()),
    "geometric-skip": WeightedGeometricMean(),
    "geometric-paper": WeightedGeometricMean("paper"),
    "geometric-released": WeightedGeometricMean("released"),
    "geometric-updates": WeightedGeometricMean("released", of="updates"),
    "geometric-agreement": WeightedGeometricMean(agreement=0.5, prior=Mean("examples")),
    "andmask": AndMask(),
    "andmask-rescaled": AndMask(0.6, rescale=True, prior=Mean("examples"), blocks="tensor"),
    "geometric-abs": AbsoluteGeometricMean(),
    "geometric-abs-agreement": AbsoluteGeometricMean(0.5, prior=Mean("examples")),
    "geometric-abs-released": AbsoluteGeometricMean(zeros="released"),
    "fedomg": FedOMG(eta=5 / 6),  # equal updates are multiplied by eta (1 + c) / (1 + c^2)
    "fedomg-examples": FedOMG(c=1.0, prior=Mean("examples")),
    "fedgala": GlobalAlignment(),
    "fedgala-whole": GlobalAlignment(blocks="whole", prior=Mean("examples")),
    "torchjd-upgrad": JacobianDescent("upgrad"),
    "torchjd-upgrad-examples": JacobianDescent("upgrad", prior=Mean("examples")),
    "torchjd-mgda": JacobianDescent("mgda"),
    "torchjd-cagrad": JacobianDescent("cagrad"),
    "torchjd-nash-mtl": JacobianDescent("nash-mtl"),
    "graddrop": GradDrop(),
    "graddrop-examples": GradDrop(prior=Mean("examples")),
    "trimmed-mean": TrimmedMean(),
    "median": Median(),
    "krum": Krum(),
    "krum-multi": Krum(m=3),
    "fednova": NormalizedAveraging(),
    "fednova-steps-ga": NormalizedAveraging("steps", prior=GA()),
    "arfl": AutoWeighted(),
    "arfl-keen": AutoWeighted(reg_weight=0.1),
    "fedcsa": ClassShares(),
    "fedcsa-ga": ClassShares(prior=GA()),
    "bounded": NormBound(),
    "bounded-refuse": NormBound(1.5, 2, "refuse", prior=Mean("examples")),
    "exp": FedExP(),
    "exp-examples": FedExP(prior=Mean("examples")),
    "random-effects": RandomEffects(),
    "random-effects-moments": RandomEffects("moments"),
    "afl": Agnostic(),
    "groupdro": GroupDRO(adjustment=1.0),
    "vrex": VarianceOfRisks(),
    "eqrm": QuantileOfRisks(),
    "vrex-ga": VarianceOfRisks(beta=0.1, prior=GA()),
    "qffl": QFair(q=1.0, step=1e30),  # so that updates are short for it, and equal ones are taken
    "fedgma": GradientMasked(),
    "fedgma-uniform": GradientMasked(0.7, Mean("uniform")),
    "sand-mask": SandMask(),
    "sand-mask-rescaled": SandMask(0.3, 1.0, rescale=True, blocks="tensor"),
    "exp-apart": Apart(FedExP(), (2, 4)),
    "random-effects-apart": Apart(RandomEffects(), (0, 3)),
}
#: These add a fixed number to every magnitude or square, or divide one by it: that does not scale.
FLOORED = (
    "geometric-released", "geometric-updates", "geometric-abs-released", "exp", "exp-examples",
    "exp-apart", "sand-mask", "sand-mask-rescaled",
)  # fmt: skip
SCALED = {name: rule for name, rule in RULES.items() if name not in FLOORED}
#: How near to their answer weights are that a solver iterates to. FedOMG's root is right to 1e-13,
#: of a length that is no shorter than a tenth of the updates'.
ITERATED = {f"torchjd-{name}": near for name, near in SOLVED_TO.items()} | {
    "fedomg": 1e-12, "fedomg-examples": 1e-12,
}  # fmt: skip
#: Rows of the head.
CLASSES = 3
SIZES = [(2, 7), (3, 50), (5, 300), (13, 40)]


def table(K: int, seed: int = 0) -> dict[str, Tensor]:
    generator = keyed(f"table/{seed}")
    return {
        "examples": torch.randint(1, 100, (K,), generator=generator).double(),
        "gap": torch.randn(K, generator=generator, dtype=torch.float64),
        "gap_known": torch.ones(K, dtype=torch.float64),
        "progress": torch.full((K,), 0.25, dtype=torch.float64),
        "rounds": torch.full((K,), 8.0, dtype=torch.float64),
        "client": torch.arange(K, dtype=torch.float64),
        "steps": torch.full((K,), 7.0, dtype=torch.float64),
        "accumulated": torch.full((K,), 7.0, dtype=torch.float64),
        "received_loss": torch.rand(K, generator=generator, dtype=torch.float64),
        "counts": torch.randint(20, (K, CLASSES), generator=generator).double(),
    }


def rows(K: int, P: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(K, P, generator=keyed(f"rows/{seed}"), dtype=dtype)


def layout(P: int) -> Layout:
    """A vector and a head of one input."""
    return Layout.of({"a.weight": torch.empty(P - CLASSES), "b.weight": torch.empty(CLASSES, 1)})


def start(rule: Combine, K: int, P: int):
    return rule.init(K, P, layout(P))


def run(rule: Combine, u: Tensor, scalars=None, state=None, seed: int = 1):
    K, P = u.shape
    scalars = scalars if scalars is not None else table(K)
    return rule(u, scalars, state or start(rule, K, P), keyed(f"rule/{seed}"))


@pytest.fixture(params=RULES, ids=str)
def rule(request) -> Combine:
    return RULES[request.param]


def test_every_public_rule_is_under_these_laws():
    public = {getattr(combine, name) for name in combine.__all__}
    kinds = (combine.Weighted, combine.Gram, combine.Elementwise, combine.Combine)
    concrete = {c for c in public if isinstance(c, type) and issubclass(c, Combine)} - {*kinds}
    others = {combine.Sum, combine.RosterMean, combine.Collect}  # these give no mean
    assert concrete - {type(rule) for rule in RULES.values()} == others


@pytest.mark.parametrize("K", [1, 2, 3, 5, 13])
def test_identical_rows_give_that_row(rule: Combine, K: int):
    row = rows(1, 60)[0]
    vector, _, _ = run(rule, row.expand(K, -1).clone())
    torch.testing.assert_close(vector, row, rtol=1e-5, atol=1e-6)


def test_one_client_gives_its_row(rule: Combine):
    row = rows(1, 33)
    torch.testing.assert_close(run(rule, row)[0], row[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("K", "P"), SIZES)
def test_the_order_in_which_replies_come_changes_no_bit(rule: Combine, K: int, P: int):
    u, scalars = rows(K, P), table(K)
    vector, state, weights = run(rule, u, scalars)
    order = torch.randperm(K, generator=keyed("order"))
    other, moved, shuffled = run(rule, u[order], {n: v[order] for n, v in scalars.items()})
    assert torch.equal(vector, other)
    if weights is not None:
        assert torch.equal(weights[..., order], shuffled)
    assert _equal(state, moved)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("scale", [0.125, 64.0, 1e-6, 1e6])
def test_scaled_updates_give_the_scaled_vector(name: str, scale: float):
    u = rows(5, 300)
    vector = run(RULES[name], u)[0] * scale
    torch.testing.assert_close(run(RULES[name], u * scale)[0], vector, rtol=2e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("scale", [0.0, 1e-10, 1e10])
def test_extreme_updates_stay_finite(rule: Combine, scale: float):
    for K, P in SIZES:
        vector, _, weights = run(rule, rows(K, P) * scale)
        assert torch.isfinite(vector).all()
        assert weights is None or torch.isfinite(weights).all()
        if scale == 0.0 and rule not in [RULES[name] for name in FLOORED]:
            assert not vector.any()


def test_a_zero_row_among_others_stays_finite(rule: Combine):
    u = rows(4, 50)
    u[1] = 0
    assert torch.isfinite(run(rule, u)[0]).all()


def test_the_result_is_no_view_of_the_input_and_the_input_is_untouched(rule: Combine):
    for K in (1, 3):
        u, scalars = rows(K, 40), table(K)
        kept, kept_scalars = u.clone(), {n: v.clone() for n, v in scalars.items()}
        state = start(rule, K, 40)
        before = _bytes(state)
        vector, after, _ = run(rule, u, scalars, state)
        vector.fill_(torch.nan)
        assert torch.equal(u, kept)
        assert all(torch.equal(scalars[n], kept_scalars[n]) for n in scalars)
        assert _bytes(state) == before
        assert after is not None


def test_state_survives_the_disk(rule: Combine):
    u = rows(5, 60)
    _, state, _ = run(rule, u)
    stored = torch.load(io.BytesIO(_bytes(state)), weights_only=True)
    vector, onward, _ = run(rule, u, table(5, seed=2), state)
    again, same, _ = run(rule, u, table(5, seed=2), stored)
    assert torch.equal(vector, again)
    assert _equal(onward, same)


def test_the_same_call_twice_gives_the_same_bits(rule: Combine):
    u = rows(5, 500)
    first, second = run(rule, u), run(rule, u)
    assert torch.equal(first[0], second[0])
    assert _equal(first[1], second[1])


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if isinstance(r, Gram)])
@pytest.mark.parametrize(("K", "P"), SIZES)
def test_the_gram_form_is_the_row_form(name: str, K: int, P: int):
    rule, u, scalars = RULES[name], rows(K, P, dtype=torch.float64), table(K)
    state = start(rule, K, P)
    vector, _, weights = rule(u, scalars, state, keyed("rule/1"))
    whole = "blocks" not in state
    blocks = [slice(*ends) for ends in state.get("blocks", [(0, P)])]
    grams = torch.stack([u[:, b] @ u[:, b].T for b in blocks])

    def of(grams: Tensor) -> Tensor:
        w, _ = rule.weights(grams[0] if whole else grams, scalars, state, keyed("rule/1"))
        return w.reshape(len(grams), K)

    w = of(grams)
    # Both ways' inner products have errors of γ_P, and so does what is computed of them.
    off = 2 * gamma(P + K * K, u.dtype) * (sensitivity(of, grams) + w.abs())
    off = off + ITERATED.get(name, 0.0) * w.abs().max()
    assert weights is not None
    assert ((weights.reshape(w.shape) - w).abs() <= off).all()
    for i, b in enumerate(blocks):
        near = off[i] @ u[:, b].abs() + 2 * product(w[i], u[:, b])
        assert ((w[i] @ u[:, b] - vector[b]).abs() <= near).all()


def test_absent_clients_keep_their_state_and_weights_are_those_present():
    for name, rule in RULES.items():
        u, scalars = rows(3, 30), table(3) | {"client": torch.tensor([0.0, 2.0, 4.0])}
        state = start(rule, 5, 30)
        _, after, weights = rule(u, scalars, state, keyed("rule"))
        if isinstance(rule, combine.Weighted):
            assert weights.shape == (3,)
            torch.testing.assert_close(weights.sum(), torch.tensor(1.0, dtype=torch.float64))
        if name == "ga":
            assert torch.equal(after["mass"][[1, 3]], state["mass"][[1, 3]])
            assert not torch.equal(after["mass"][[0, 2, 4]], state["mass"][[0, 2, 4]])


def test_a_prior_of_one_client_is_that_client_alone():
    only = {"examples": torch.tensor([0.0, 0.0, 7.0])}
    u = rows(3, 20)
    for rule in (Mean("examples"), WeightedGeometricMean(prior=Mean("examples"))):
        torch.testing.assert_close(rule(u, only, rule.init(3, 20))[0], u[2])


def test_a_missing_scalar_is_named():
    with pytest.raises(UnseenError, match="GeneralizationAdjustment.*'gap'"):
        GA()(rows(2, 3), {}, GA().init(2, 3))
    with pytest.raises(UnseenError, match="PPDG reads the scalar 'examples'"):
        rule = PPDG(prior=Mean("examples"))
        rule(rows(2, 3), {}, rule.init(2, 3))


def test_a_single_number_is_no_column_of_the_table() -> None:
    rule, table = combine.Mean("examples"), {"examples": torch.tensor(3.0)}
    with pytest.raises(UnseenError, match="'examples' must have one entry.*number 3"):
        rule(torch.zeros(3, 2), table, rule.init(3, 2))
    with pytest.raises(UnseenError, match="'examples' must have one entry.*number 3"):
        rule.weights(table, rule.init(3, 2))


def test_a_table_of_the_wrong_length_is_named():
    with pytest.raises(UnseenError, match=r"'examples' .* per row, \[3, ...\]; found \[2\]"):
        Mean()(rows(3, 4), {"examples": torch.ones(2)}, {})


def test_no_rows_are_refused():
    with pytest.raises(UnseenError, match=r"\[K, P\] with K > 0"):
        Mean("uniform")(torch.zeros(0, 4), {}, {})


@settings(max_examples=60)
@given(st.data())
def test_no_finite_input_ever_gives_nan(data):
    rule = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    K = data.draw(st.integers(1, 6))
    value = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
    u = torch.tensor(
        data.draw(st.lists(st.lists(value, min_size=4, max_size=4), min_size=K, max_size=K))
    )
    gaps = data.draw(st.lists(st.floats(-1e300, 1e300), min_size=K, max_size=K))
    known = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=K, max_size=K))
    scalars = table(K) | {
        "gap": torch.tensor(gaps, dtype=torch.float64),
        "gap_known": torch.tensor(known, dtype=torch.float64),
    }
    state = start(rule, K, 4)
    for _ in range(3):
        vector, state, weights = rule(u, scalars, state, keyed("rule"))
        assert torch.isfinite(vector).all()
        assert weights is None or torch.isfinite(weights).all()


def test_gram_of_a_long_vector_is_right_where_one_product_is_not():
    generator = keyed("long")
    u = torch.randn(3, 3_000_000, generator=generator) + 3
    exact = u.double() @ u.double().T
    torch.testing.assert_close(combine.gram(u), exact, rtol=3e-7, atol=0)


def _bytes(state) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _equal(a, b) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return a == b
