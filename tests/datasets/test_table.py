"""Sums of clients and the features made of them, against scikit-learn on the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from support.pooled import by_scikit_learn
from torch import Tensor, nn

from unseen.core.client import Client, Split
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Model
from unseen.data.dataset import Totals
from unseen.data.tables.encoding import Schema, encode, feature_names, of_ranges
from unseen.errors import UnseenError

NAN = float("nan")
SCHEMA = Schema(("age", "ward", "dose", "sex"), {"ward": ("a", "b", "c"), "sex": ("f", "m")})


def table(n: int, key: str, missing: float = 0.2) -> Tensor:
    """Random raw rows of SCHEMA; `sex` is never missing, nor `c` ever the ward."""
    generator = keyed(f"table/{key}")
    x = torch.stack(
        [
            50 + 12 * torch.randn(n, generator=generator, dtype=torch.float64),
            torch.randint(2, (n,), generator=generator).double(),
            torch.rand(n, generator=generator, dtype=torch.float64),
            torch.randint(2, (n,), generator=generator).double(),
        ],
        dim=1,
    )
    gaps = torch.rand(n, 4, generator=generator) < missing
    gaps[:, 3] = False
    return x.masked_fill(gaps, NAN)


def client(name: str, x: Tensor) -> Client:
    y = torch.zeros(len(x), dtype=torch.int64)
    return Client(name, Split(x, y), Split(x * NAN, y), 2)


def test_features_are_those_of_scikit_learn_on_the_pooled_rows() -> None:
    sites = [table(n, f"site {n}") for n in (40, 7, 23)]
    statistics = torch.stack([SCHEMA.sums(x) for x in sites]).sum(0)
    for x in (torch.cat(sites), table(30, "target", missing=0.5)):
        expected = by_scikit_learn(SCHEMA, torch.cat(sites), x)
        found = encode(SCHEMA, statistics, x)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert feature_names(SCHEMA, statistics) == (
        "age", "dose", "age missing", "dose missing", "ward=a", "ward=b", "ward missing",
        "sex=f", "sex=m",
    )  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.floats(0, 0.9),
    st.integers(0, 10**6),
)
def test_sums_over_sites_are_the_sums_over_the_pool(
    sizes: list[int], missing: float, seed: int
) -> None:
    sites = [table(n, f"{seed}/{k}", missing) for k, n in enumerate(sizes)]
    together = torch.stack([SCHEMA.sums(x) for x in sites]).sum(0)
    pooled = torch.cat(sites)
    torch.testing.assert_close(together, SCHEMA.sums(pooled), rtol=1e-12, atol=1e-12)
    features = encode(SCHEMA, together, pooled)
    assert features.shape == (sum(sizes), len(feature_names(SCHEMA, together)))
    assert bool(features.isfinite().all())


def test_the_statistics_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0, 2.0, 1.0], [NAN, NAN, 3.0, 1.0]], dtype=torch.float64)
    known, missing, total, squares = [1, 2], [1, 0], [1, 5], [1, 4 + 9]
    ward, sex = [1, 0, 0, 1], [0, 2, 0]
    expected = [*known, *missing, *total, *squares, *ward, *sex]
    assert SCHEMA.sums(x).tolist() == expected
    assert sum(SCHEMA.parts) == len(expected)


def test_a_client_tells_the_sums_of_its_training_rows_and_nothing_else() -> None:
    x = table(20, "client")
    model = Model(nn.Linear(2, 2))
    before = model.vector.clone()
    turn = Turn(0, 0, 1)
    reply, memory = Totals(SCHEMA, None)(model, {}, client("a", x), {"kept": torch.ones(1)}, turn)
    assert set(reply.rows) == {"statistics"} and not reply.scalars
    assert reply.rows["statistics"].dtype == torch.float64
    assert torch.equal(reply.rows["statistics"], SCHEMA.sums(x))
    assert set(memory) == {"kept"} and torch.equal(model.vector, before)


def test_nothing_is_learnt_from_the_target() -> None:
    """The features of training rows depend on no target row, nor a target row's on another."""
    train, target = table(50, "train"), table(20, "target")
    statistics = SCHEMA.sums(train)
    features = encode(SCHEMA, statistics, train)
    wild = target.clone()
    wild[1:, 0] *= 1e6
    wild[1:, 1] = 2.0
    together = encode(SCHEMA, statistics, torch.cat([train, wild]))
    assert torch.equal(together[: len(train)], features)
    assert torch.equal(together[len(train)], encode(SCHEMA, statistics, target[:1])[0])


def test_a_category_unseen_in_training_is_all_zeros() -> None:
    train = table(50, "train")
    statistics = SCHEMA.sums(train)
    row = torch.tensor([[50.0, 2.0, 0.5, 0.0]], dtype=torch.float64)
    names, features = feature_names(SCHEMA, statistics), encode(SCHEMA, statistics, row)
    found = dict(zip(names, features[0].tolist(), strict=True))
    assert "ward=c" not in found
    assert [found[name] for name in ("ward=a", "ward=b", "ward missing")] == [0, 0, 0]
    assert (found["sex=f"], found["sex=m"]) == (1, 0)


def test_a_column_missing_at_every_training_client_is_zero_with_its_indicator() -> None:
    schema = Schema(("u", "v"))
    train = torch.tensor([[1.0, NAN], [3.0, NAN]], dtype=torch.float64)
    target = torch.tensor([[2.0, 700.0], [NAN, NAN]], dtype=torch.float64)
    statistics = schema.sums(train)
    assert feature_names(schema, statistics) == ("u", "v", "v missing")
    assert encode(schema, statistics, train).tolist() == [[-1, 0, 1], [1, 0, 1]]
    assert encode(schema, statistics, target).tolist() == [[0, 0, 0], [0, 0, 1]]


def test_a_constant_column_keeps_its_scale() -> None:
    schema = Schema(("u",))
    for constant in (0.0, 0.1, 7.3, 1e9 + 0.1, -123456.789):
        train = torch.full((1000, 1), constant, dtype=torch.float64)
        statistics = schema.sums(train)
        x = torch.tensor([[constant], [constant + 2]], dtype=torch.float64)
        assert encode(schema, statistics, x).flatten().tolist() == pytest.approx([0, 2], abs=1e-5)


@pytest.mark.parametrize("offset", [0.0, 2e3, 1.7e9])
def test_large_offsets_are_as_exact_as_the_docstring_says(offset: float) -> None:
    """Years, and seconds since 1970: a spread of 1e-3 to 1e-6 of the offset is told apart."""
    schema = Schema(("u",))
    spread = max(1.0, offset * 1e-5)
    x = torch.randn(5000, 1, generator=keyed("offset"), dtype=torch.float64) * spread + offset
    expected = StandardScaler().fit_transform(x.numpy())  # two passes over the data
    found = encode(schema, schema.sums(x), x)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_errors_of_a_secure_sum_do_not_make_categories() -> None:
    train = table(50, "train")
    statistics = SCHEMA.sums(train)
    noisy = statistics + 1e-6 * torch.randn(len(statistics), generator=keyed("noise"))
    assert feature_names(SCHEMA, noisy) == feature_names(SCHEMA, statistics)
    exact, found = encode(SCHEMA, statistics, train), encode(SCHEMA, noisy, train)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "fault"),
    [
        (torch.zeros(2, 3), "shape"),
        (torch.zeros(2, 4, dtype=torch.int64), "floating-point"),
        (torch.tensor([[float("inf"), 0.0, 0.0, 0.0]]), "column 'age' holds inf"),
        (torch.tensor([[0.0, 3.0, 0.0, 0.0]]), "column 'ward' holds 3"),
        (torch.tensor([[0.0, 0.5, 0.0, 0.0]]), "column 'ward' holds 0.5"),
        (torch.tensor([[0.0, 0.0, 0.0, -1.0]]), "column 'sex' holds -1"),
    ],
)
def test_tables_that_do_not_fit_the_schema_are_refused(x: Tensor, fault: str) -> None:
    with pytest.raises(UnseenError, match=fault):
        SCHEMA.sums(x)
    with pytest.raises(UnseenError, match=fault):
        encode(SCHEMA, torch.zeros(sum(SCHEMA.parts)), x)


FLAGGED = Schema(("age", "ward", "dose", "sex"), {"ward": ("a", "b", "c")}, flags=("sex",))


def test_a_flag_is_one_feature_by_scikit_learn() -> None:
    sites = [table(n, f"flag {n}") for n in (40, 7, 23)]
    sites[1][0, 3] = NAN  # one cell of the flag is missing at one site
    statistics = torch.stack([FLAGGED.sums(x) for x in sites]).sum(0)
    assert torch.equal(statistics, torch.stack([SCHEMA.sums(x) for x in sites]).sum(0))
    for x in (torch.cat(sites), table(30, "target", missing=0.5)):
        found = encode(FLAGGED, statistics, x)
        np.testing.assert_allclose(
            found.numpy(), by_scikit_learn(FLAGGED, torch.cat(sites), x), atol=1e-6
        )
    assert feature_names(FLAGGED, statistics)[-2:] == ("sex=yes", "sex missing")


def test_a_flag_is_the_pair_of_categories_without_its_no() -> None:
    x = table(50, "train")
    statistics = SCHEMA.sums(x)
    pair, names = encode(SCHEMA, statistics, x), feature_names(SCHEMA, statistics)
    kept = [j for j, name in enumerate(names) if name != "sex=f"]
    assert torch.equal(encode(FLAGGED, statistics, x), pair[:, kept])
    assert torch.equal(encode(FLAGGED, statistics, x)[:, -1], x[:, 3].float())


def test_a_flag_that_no_training_row_raises_is_no_feature() -> None:
    only = Schema(("sex",), flags=("sex",))
    down, up = torch.zeros(3, 1), torch.ones(3, 1)
    assert feature_names(only, only.sums(down)) == ()
    assert encode(only, only.sums(down), up).shape == (3, 0)
    assert encode(only, only.sums(up), down).tolist() == [[0], [0], [0]]


def test_a_schema_without_flags_keeps_the_text_that_digests_are_made_of() -> None:
    assert repr(Schema(("u",))) == "Schema(columns=('u',), categories={})"
    assert "flags=('u',)" in repr(Schema(("u",), flags=("u",)))


def test_flags_that_are_none_are_refused() -> None:
    with pytest.raises(UnseenError, match="column 'sex' holds 2, which is not 0 or 1"):
        FLAGGED.sums(torch.tensor([[0.0, 0.0, 0.0, 2.0]]))
    with pytest.raises(UnseenError, match="did you mean 'sex'"):
        Schema(("age", "sex"), flags=("sx",))
    with pytest.raises(UnseenError, match="sex cannot be a flag and a categorical column"):
        Schema(("sex",), {"sex": ("f", "m")}, ("sex",))


def test_statistics_of_another_table_and_unknown_columns_are_refused() -> None:
    with pytest.raises(UnseenError, match="Use the sums of this table"):
        encode(SCHEMA, torch.zeros(5), table(3, "x"))
    with pytest.raises(UnseenError, match="did you mean 'ward'"):
        Schema(("age", "ward"), {"wrad": ("a",)})


def test_a_table_of_one_kind_of_column_works() -> None:
    only = Schema(("sex",), {"sex": ("f", "m")})
    x = torch.tensor([[1.0], [NAN]], dtype=torch.float64)
    assert encode(only, only.sums(x), x).tolist() == [[1, 0], [0, 1]]
    assert feature_names(only, only.sums(x)) == ("sex=m", "sex missing")


def test_public_ranges_scale_as_scikit_learn_does() -> None:
    schema = Schema(("a", "kind", "b"), {"kind": ("u", "v")})
    x = torch.tensor([[3.0, 1.0, -2.5], [150.0, 0.0, 4e4], [NAN, NAN, 0.0]]).double()
    found = encode(schema, of_ranges(schema, {"b": (-5, 5e4), "a": (0, 120)}), x)
    scaler = MinMaxScaler((-1, 1)).fit([[0, -5], [120, 5e4]])
    expected = torch.from_numpy(scaler.transform(x[:2, [0, 2]].numpy())).float()
    torch.testing.assert_close(found[:2, :2], expected)  # 150 is beyond the range, and is not cut
    # Every indicator stands, whatever occurs: two of missing numbers, u, v, missing.
    assert found[:, 2:].tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]]
    names = feature_names(schema, of_ranges(schema, {"a": (0, 120), "b": (-5, 5e4)}))
    assert names == ("a", "b", "a missing", "b missing", "kind=u", "kind=v", "kind missing")


def test_public_ranges_are_the_sums_of_a_made_up_table() -> None:
    schema = Schema(("a", "kind", "raised"), {"kind": ("u", "v")}, ("raised",))
    made_up = torch.tensor([[-3.0, 0.0, 0.0], [8.0, 1.0, 1.0], [NAN] * 3])
    assert torch.equal(of_ranges(schema, {"a": (-3, 8)}), schema.sums(made_up))
    nothing = Schema(("kind",), {"kind": ("u", "v")})
    assert of_ranges(nothing, {}).tolist() == [1, 1, 1]
