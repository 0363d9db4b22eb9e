"""Columns of a table that give the label away alone, as a column made from the label does."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from unseen.data.tables.check_matrix import Remark
from unseen.data.tables.encoding import Schema

#: A column may do so by chance: this many ways to order the classes make that unlikely.
ORDERS = 1e6
#: Levels of a column up to which it is looked at, as a share of the rows.
SHARE = 0.1
#: Rows that are looked at first: what they do not give away, all rows do not.
SOME = 1000
#: The least squared correlation of a number that gives another one away.
EXACT = 1 - 1e-9


def giveaways(schema: Schema, x: Tensor, y: Tensor, classes: Sequence[str] | None) -> list[Remark]:
    """Return a remark on each column that tells the label without an error.

    Args:
        schema: The columns.
        x: The raw table [N, C].
        y: The labels: codes [N] of classes, numbers [N], or times and events [N, 2].
        classes: The names of the classes; None for numbers and times.

    Example:
        >>> x, y = torch.arange(40.0, dtype=torch.float64)[:, None], torch.arange(40) // 20
        >>> giveaways(Schema(("weeks",)), x, y, ("no", "yes"))[0].partition(":")[0]
        "the column 'weeks' alone gives the label away"
    """
    notes = list[Remark]()
    for j, name in enumerate(schema.columns):
        if classes is None:
            numbers = [y] if y.ndim == 1 else [y[:, 0]]
            tells = name not in schema.categories and any(same(x[:, j], own) for own in numbers)
        elif not _sure(y):
            return []
        elif name in schema.categories:
            tells = by_levels(x[:, j].nan_to_num(-1), y)
        else:
            tells = by_order(x[:, j], y) or by_levels(x[:, j].isnan().double(), y)
        if tells:
            role = "category" if name in schema.categories else "feature"
            text = (
                f"the column {name!r} alone gives the label away: it tells the label of every row "
                f"without an error; if it is not known before the label is, write drop={[name]!r}"
            )
            notes.append(Remark.of(text, "gives the label away", role, drop=[name]))
    return notes


def _sure(y: Tensor) -> bool:
    """Whether the classes have so many rows that no column orders them by chance."""
    counts = y.bincount()
    rarest = int(counts[counts > 0].min())
    several = len(_occurring(y)) > 1
    return several and math.comb(len(y), min(rarest, 20)) >= ORDERS and rarest > 2


def _occurring(y: Tensor) -> list[int]:
    codes: list[int] = y.bincount().nonzero().flatten().tolist()
    return codes


def by_levels(codes: Tensor, y: Tensor) -> bool:
    """Return whether rows of one code are of one class, and codes are few."""
    if len(y) > SOME and not _one_class_each(codes[:SOME], y[:SOME]):
        return False
    levels = len(codes.unique())
    return 1 < levels <= max(2, SHARE * len(y)) and _one_class_each(codes, y)


def _one_class_each(codes: Tensor, y: Tensor) -> bool:
    places = codes.long() + 1  # from 0 on, the code of a missing cell
    counts = torch.bincount(places * (int(y.max()) + 1) + y).nonzero().flatten()
    return len(counts) == int((places.bincount() > 0).sum())


def by_order(x: Tensor, y: Tensor) -> bool:
    """Return whether each class has a range of numbers without another class's, wherever known."""
    if len(y) > SOME and not _apart(x[:SOME], y[:SOME]):
        return False
    labels = y[~x.isnan()]
    enough = len(_occurring(labels)) == len(_occurring(y)) and _sure(labels)
    return enough and _apart(x, y)


def _apart(x: Tensor, y: Tensor) -> bool:
    """Whether the numbers of each class are below or above all of another's."""
    own, labels = x[~x.isnan()], y[~x.isnan()]
    ends = sorted(
        (float(own[labels == c].min()), float(own[labels == c].max())) for c in _occurring(labels)
    )
    return all(high < low for (_, high), (low, _) in pairwise(ends))


def same(x: Tensor, y: Tensor) -> bool:
    """Return whether numbers are the label's, in whatever unit."""
    has_value = ~x.isnan()
    own = torch.stack([x[has_value].double(), y[has_value].double()])
    if own.shape[1] < 20 or len(own[0].unique()) < 3 or len(own[1].unique()) < 3:
        return False
    return float(torch.corrcoef(own)[0, 1].square()) > EXACT
