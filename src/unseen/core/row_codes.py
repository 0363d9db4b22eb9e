"""How a row travels: in fewer bytes where numbers are 0 or short, and no value changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from unseen.core.schedule import ceil_share
from unseen.errors import UnseenError
from unseen.ranges import Checked, Range, log

Digits = Literal["float32", "bfloat16"]
#: Rows of fewer numbers travel as they are.
FEWEST = 256
#: The most numbers of rows that are looked at together, where calls cost more than arithmetic.
TOGETHER = 2**14
#: Bytes of a number's place in a sparse row.
PLACE = 4
#: The forms in which a float32 row can travel, each with the bytes of one number.
SPARSE, SPARSE_SHORT, SHORT = "sparse", "sparse-bfloat16", "bfloat16"
FORMS = {SPARSE: PLACE + 4, SPARSE_SHORT: PLACE + 2, SHORT: 2}


@dataclass(frozen=True)
class Code(Checked, named="compress"):
    """Which numbers of a vector [P] stay, C(u): the k = ⌈share · P⌉ largest by absolute value.

    Attributes:
        share: the share of the numbers that is sent; the others are 0.
        digits: how many digits these have: `float32`, or `bfloat16` with two bytes each.
    """

    share: Annotated[float, Range(0, 1, open_low=True), log(0.001, 1)] = 0.01
    digits: Digits = "bfloat16"

    def count_of(self, numbers: int) -> int:
        """Return k, of P numbers."""
        return min(numbers, max(1, ceil_share(self.share, numbers)))

    def __call__(self, vector: Tensor) -> Tensor:
        """Return C(u) [P], of u [P]."""
        coded = vector
        if (k := self.count_of(len(vector))) < len(vector):
            places = vector.abs().topk(k, sorted=False).indices
            coded = torch.zeros_like(vector).index_copy_(0, places, vector[places])
        return coded.bfloat16().to(vector.dtype) if self.digits == "bfloat16" else coded.clone()

    def bytes(self, numbers: int) -> int:
        """Return the bytes of C(u), where none of the numbers that stay is 0, of P numbers."""
        short, k = self.digits == "bfloat16", self.count_of(numbers)
        form = form_of(numbers, k, short)
        return 4 * numbers if form is None else FORMS[form] * (numbers if form == SHORT else k)


def form_of(numbers: int, set_: int, short: bool) -> str | None:
    """Return the form that takes the fewest bytes; None: as it is.

    Args:
        numbers: P.
        set_: How many of them are not 0.
        short: Whether all have the digits of bfloat16.
    """
    if numbers < FEWEST:
        return None
    dense, sparse = (SHORT, SPARSE_SHORT) if short else (None, SPARSE)
    of_dense = FORMS[dense] if dense is not None else 4
    return sparse if FORMS[sparse] * set_ < of_dense * numbers else dense


def form(row: Tensor) -> tuple[str | None, int]:
    """Return the form in which a row travels, and how many of its numbers are not 0."""
    if row.dtype != torch.float32 or row.ndim != 1 or len(row) < FEWEST:
        return None, row.numel()
    count = int(row.count_nonzero())
    # Most rows have all their digits, which their first numbers tell.
    short = all(torch.equal(part.bfloat16().float(), part) for part in (row[:FEWEST], row))
    return form_of(len(row), count, short), count


def width(row: Tensor) -> int:
    """Return the bytes that a row takes on a wire."""
    kind, count = form(row)
    if kind is None:
        return row.numel() * row.element_size()
    return FORMS[kind] * (len(row) if kind == SHORT else count)


def widths(rows: Sequence[Tensor]) -> list[int]:
    """Return the bytes that each row takes on a wire; short rows of one form are seen together."""
    P = rows[0].numel() if rows else 0
    if not FEWEST <= P <= TOGETHER or not all(alike(row, rows[0]) for row in rows):
        return list(map(width, rows))
    matrix = torch.stack(list(rows))
    counts = matrix.count_nonzero(1).tolist()
    head = matrix[:, :FEWEST]
    shorts = (head.bfloat16().float() == head).all(1).tolist()
    of_digits = (4 * P if form_of(P, n, False) is None else FORMS[SPARSE] * n for n in counts)
    every = zip(rows, of_digits, shorts, strict=True)
    return [width(row) if short else size for row, size, short in every]


def alike(row: Tensor, other: Tensor) -> bool:
    """Return whether both are float32 vectors of one length on one device."""
    return (
        row.dtype == torch.float32
        and row.ndim == 1
        and row.shape == other.shape
        and row.device == other.device
    )


def encode(row: Tensor) -> tuple[str, bytes] | None:
    """Return a row's form and bytes, places before numbers; None if it goes as it is."""
    row = row.detach().cpu()
    kind, _ = form(row)
    if kind is None:
        return None
    places = row.nonzero()[:, 0] if kind != SHORT else None
    values = row if places is None else row[places]
    head = b"" if places is None else places.numpy().astype("<u4").tobytes()
    if kind == SPARSE:
        return kind, head + values.numpy().astype("<f4").tobytes()
    # The upper half of a float32 that has no lower one.
    return kind, head + (values.contiguous().numpy().view("<u4") >> 16).astype("<u2").tobytes()


def decode(kind: str, data: bytes, numbers: int) -> Tensor:
    """Return the row [P] that `encode` was given.

    Args:
        kind: Its form.
        data: Its bytes.
        numbers: P.

    Raises:
        UnseenError: The bytes are not those of such a row.
    """
    count, rest = divmod(len(data), FORMS.get(kind, len(data) + 1))
    if rest or kind not in FORMS or (kind == SHORT and count != numbers):
        forms = ", ".join(FORMS)
        fault = f"{len(data)} bytes are not a row of {numbers} numbers in the form {kind!r}"
        raise UnseenError(f"{fault}; the forms are {forms}.")
    head = 0 if kind == SHORT else PLACE * count
    body = data[head:]
    if kind == SPARSE:
        values = np.frombuffer(body, "<f4").astype(np.float32)
    else:
        values = (np.frombuffer(body, "<u2").astype(np.uint32) << 16).view(np.float32)
    if kind == SHORT:
        return torch.from_numpy(values.copy())
    places = np.frombuffer(data[:head], "<u4").astype(np.int64)
    if count and (places[-1] >= numbers or (np.diff(places) <= 0).any()):
        raise UnseenError(f"the places of a sparse row of {numbers} numbers do not rise below it.")
    row = np.zeros(numbers, dtype=np.float32)
    row[places] = values
    return torch.from_numpy(row)
