"""Rows on a wire: the bytes that they take, and the same values at the other end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen import UnseenError
from unseen.core.row_codes import (
    FEWEST,
    SHORT,
    SPARSE,
    SPARSE_SHORT,
    Code,
    decode,
    encode,
    width,
    widths,
)  # fmt: skip
from unseen.engine.messages import pack, unpack, weight

P = 1000


def normal(numbers: int = P) -> torch.Tensor:
    return torch.randn(numbers, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("share", "digits", "form", "bytes"),
    [
        (0.05, "float32", SPARSE, 50 * 8),
        (0.05, "bfloat16", SPARSE_SHORT, 50 * 6),
        (1.0, "bfloat16", SHORT, P * 2),
        (0.9, "bfloat16", SHORT, P * 2),  # places would cost more than zeros
        (0.49, "float32", SPARSE, 490 * 8),
        (0.51, "float32", None, P * 4),
    ],
)
def test_the_shortest_form_is_taken_and_no_value_changes(
    share: float, digits: str, form: str | None, bytes: int
) -> None:
    code = Code(share, digits)  # type: ignore[arg-type]
    row = code(normal())
    coded = encode(row)
    assert width(row) == code.bytes(P) == bytes
    assert (coded[0] if coded else None) == form
    if coded is not None:
        assert len(coded[1]) == bytes
        assert torch.equal(decode(*coded, P), row)


@pytest.mark.parametrize(
    "row",
    [
        torch.zeros(P),
        normal(FEWEST - 1),
        torch.full((P,), torch.nan),
        torch.cat([torch.tensor([torch.inf, -0.0, 1e-45]), torch.zeros(P)]),
        normal().double(),
        normal().view(10, 100),
        torch.arange(P),
    ],
    ids=["zeros", "short", "nan", "extremes", "float64", "matrix", "integers"],
)
def test_every_tensor_comes_back_from_a_message(row: torch.Tensor) -> None:
    pytest.importorskip("flwr", reason="needs the extra flower")
    parcel = unpack(pack({"row/model": row}))
    returned = parcel["row/model"]
    assert isinstance(returned, torch.Tensor)
    assert returned.dtype == row.dtype
    np.testing.assert_array_equal(returned.numpy(), row.numpy())


def test_a_sparse_row_counts_as_long_as_it_says_it_is() -> None:
    pytest.importorskip("flwr", reason="needs the extra flower")
    row = torch.zeros(10**6)
    row[7] = 1.0
    assert weight(pack({"row/model": row})) == 4 * 10**6


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (SPARSE, np.array([3, 2], "<u4").tobytes() + bytes(8)),
        (SPARSE, np.array([P], "<u4").tobytes() + bytes(4)),
        (SPARSE, bytes(7)),
        (SHORT, bytes(2 * P - 2)),
        ("pickle", b""),
    ],
)
def test_bytes_that_are_not_a_row_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(UnseenError, match="sparse row|not a row"):
        decode(kind, data, P)


@pytest.mark.parametrize("numbers", [100, 400, 2**14 + 1])
def test_rows_together_are_as_wide_as_alone(numbers: int) -> None:
    row = normal(numbers)
    tail = torch.cat([row[:300].bfloat16().float(), row[300:]])
    sparse = torch.where(torch.arange(numbers) % 9 == 0, row, 0)
    rows = [row, row.bfloat16().float(), tail, sparse, sparse.bfloat16().float(), 0 * row]
    assert widths(rows) == list(map(width, rows))
    others = [row, row[1:], row.double(), row.unsqueeze(0)]
    assert widths(others) == list(map(width, others)) and widths([]) == []
