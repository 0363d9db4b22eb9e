"""Whether sums over the columns of a table can be those of any rows at all."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unseen.data.tables.encoding import Schema

#: Rounding of sums of squares, as a share of them.
ROUNDING = 1e-9
#: How many times as large as at most others the values of a site may be: two units of one quantity,
#: such as mg/dl and mmol/l, differ by less.
FAR = 100.0


def impossible(schema: Schema, sums: Tensor, most: int | None = None) -> str | None:
    """Return why no rows have these sums, or None.

    Args:
        schema: The columns.
        sums: See `Schema.sums`.
        most: How many rows there can be; None where that is not known.

    Example:
        >>> schema = Schema(("age",))
        >>> impossible(schema, torch.tensor([2.0, 0.0, 100.0, 5000.0]))
        >>> impossible(schema, torch.tensor([2.0, 0.0, 100.0, 4000.0]))
        "sums of 'age' that no rows have: a sum of squares below the square of the sum by the count"
    """
    if sums.shape != (sum(schema.parts),):
        return f"sums of shape {list(sums.shape)}, where {[sum(schema.parts)]} were expected"
    if not bool(sums.isfinite().all()):
        return "sums that are not finite numbers"
    numeric, *codes = sums.double().split(schema.parts)
    counts, missing, totals, squares = numeric.view(4, len(schema.numeric))
    whole = torch.cat([counts, missing, *codes])
    if bool((whole < 0).any() | (whole % 1 != 0).any()):
        return "counts that are not whole numbers from 0 on"
    rows = torch.cat([counts + missing, *(count.sum().view(1) for count in codes)])
    if not len(rows):
        return None
    if bool((rows != rows[0]).any()):
        return "counts that add up to other numbers of rows from column to column"
    if most is not None and float(rows[0]) > most:
        return f"sums over {float(rows[0]):g} rows, and it said that it has {most}"
    low = counts * squares * (1 + ROUNDING) < totals.square()
    zero = (counts == 0) & ((totals != 0) | (squares != 0))
    if bool((wrong := low | zero | (squares < 0)).any()):
        name = schema.columns[schema.numeric[int(wrong.int().argmax())]]
        why = "a sum of squares below the square of the sum by the count"
        return f"sums of {name!r} that no rows have: {why}"
    return None


def far(schema: Schema, sums: Mapping[str, Tensor], columns: Sequence[str]) -> dict[str, str]:
    """Return whose values are out of all proportion to those of the others, and in which column.

    Args:
        schema: The columns.
        sums: Site -> its sums, of which each is possible.
        columns: What the numeric columns are called.

    Note:
        Of one number each site says the root of its mean square. One that is more than `FAR` times
        the median of the other sites' is not taken, whatever it is; so three sites are needed.
    """
    if len(sums) < 3 or not columns:
        return {}
    parts = [s.double()[: 4 * len(columns)].view(4, -1) for s in sums.values()]
    size = torch.stack([(part[3] / part[0]).sqrt() for part in parts])  # [K, M], NaN: no value
    faults: dict[str, str] = {}
    for k, site in enumerate(sums):
        others = torch.cat([size[:k], size[k + 1 :]]).nanmedian(dim=0).values
        beyond = (others > 0) & (size[k] > FAR * others)
        if bool(beyond.any()):
            j = int(beyond.int().argmax())
            times = float(size[k, j] / others[j])
            faults[site] = (
                f"values of {columns[j]!r} that are {times:.3g} times those of the others"
            )
    return faults
