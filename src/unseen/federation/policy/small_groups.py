"""Metrics by group leave a site of large groups alone."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unseen.core import Reply


def without_few(reply: Reply, least: int) -> Reply:
    """Return a reply in which groups of too few rows are as empty ones.

    Args:
        reply: An evaluation's; others name no groups.
        least: Rows of a group whose metrics leave.
    """
    arrays = {name: value for name, value in reply.scalars.items() if isinstance(value, Tensor)}
    scalars = dict(reply.scalars)
    for name, counts in arrays.items():
        if not name.startswith("examples@"):
            continue
        column, hidden = name.removeprefix("examples"), few(counts.tolist(), least)
        for other in (other for other in arrays if other.endswith(column)):
            values = arrays[other].clone()
            values[hidden] = float(other.endswith(f".undefined{column}"))
            scalars[other] = values
    return replace(reply, scalars=scalars)


def merged(counts: Tensor, least: int) -> Tensor:
    """Return counts along ordered bins [C, B] in which none but 0 is below the least.

    Neighbouring bins of a class join until they hold enough rows, which then count where the middle
    one of them lies. Rows left over join the last such group, and a class of too few is empty.

    Args:
        counts: Rows by class and bin.
        least: Rows of a count that leaves.

    Example:
        >>> merged(torch.tensor([[2, 0, 1, 3, 0, 4, 1], [0, 2, 0, 0, 0, 0, 0]]), 3).tolist()
        [[3, 0, 0, 3, 0, 5, 0], [0, 0, 0, 0, 0, 0, 0]]
    """
    result = torch.zeros_like(counts)
    for own, row in zip(result, counts.tolist(), strict=True):
        places = [place for place, rows in enumerate(row) for _ in range(int(rows))]
        if len(places) < least:
            continue
        ends = range(least, len(places) - least + 1, least)
        for first, last in zip([0, *ends], [*ends, len(places)], strict=True):
            own[places[(first + last - 1) // 2]] += last - first
    return result


def few(counts: Sequence[float], least: int) -> list[int]:
    """Return the groups whose metrics stay here.

    What the metrics of all rows say beyond those of the groups that leave is of the hidden groups
    together. So the next smallest join them until they have enough rows, too.

    Args:
        counts: Rows by group.
        least: Rows of a group whose metrics leave.

    Example:
        >>> few([15, 1, 40, 0], 10), few([15, 6, 5, 40], 10), few([15, 40], 10)
        ([1, 0], [2, 1], [])
    """
    hidden: list[int] = []
    rows = 0.0
    for group in sorted(range(len(counts)), key=counts.__getitem__):
        if counts[group] and (counts[group] < least or 0 < rows < least):
            hidden.append(group)
            rows += counts[group]
    return hidden
