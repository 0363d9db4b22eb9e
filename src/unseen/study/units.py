"""Validation rows where rows belong together: whole patients, in about the share of every class."""

from __future__ import annotations

import torch
from torch import Tensor


def held_back(y: Tensor, units: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Which rows [N] are held back: whole units, about `share` of the rows of every class.

    Units come in a random order, and one is taken if it brings the counts nearer to what is
    wanted, Σ_c (held_c − share n_c)² / (share n_c) over the classes c, or over all rows together
    where labels are numbers. At least one unit is held back, and one is left to train on. There
    must be two or more.

    >>> y, units = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([7, 7, 8, 8, 9, 4])
    >>> rows = held_back(y, units, 0.5, torch.Generator().manual_seed(0))
    >>> bool(rows[0] == rows[1]), bool(rows[2] == rows[3]), y[rows].bincount().tolist()
    (True, True, [2, 1])
    """
    codes = torch.zeros_like(units) if y.is_floating_point() else y.unique(return_inverse=True)[1]
    names, place = units.unique(return_inverse=True)
    # How many rows of each class [U, C] every unit has.
    width = int(codes.max()) + 1
    sizes = torch.bincount(place * width + codes, minlength=len(names) * width)
    table = sizes.view(len(names), width).double()
    wanted = share * table.sum(0)

    def apart(held: Tensor) -> float:
        return float(((held - wanted).square() / wanted).sum())

    order = torch.randperm(len(names), generator=generator).tolist()
    taken: list[int] = []
    held = torch.zeros(width, dtype=torch.float64)
    for unit in order:
        if len(taken) < len(names) - 1 and apart(held + table[unit]) < apart(held):
            held = held + table[unit]
            taken.append(unit)
    if not taken:  # every unit alone is too much: the one that is least so
        taken = [min(order, key=lambda unit: apart(table[unit]))]
    return torch.isin(place, torch.tensor(taken))
