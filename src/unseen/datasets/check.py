"""What every data set must satisfy once it is in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.datasets.dataset import NO_GROUP, DataSet, Domain
from unseen.errors import UnseenError


def check(data: DataSet) -> DataSet:
    """Return the data set itself, if its labels, inputs, validation rows and metadata are sound.

    Classes are int64 in [0, C), regression targets finite float32; inputs finite, except for a
    table, whose missing cells are NaN; validation rows distinct and in range, and some but not all
    of them; codes have names; no unit is on both sides of an official split; no domain is empty.
    """
    if len(set(data.names)) != len(data.names):
        raise UnseenError(f"domains of one data set need different names; found {data.names}.")
    if len({domain.x.shape[1:] for domain in data.domains}) > 1:
        shapes = {domain.name: list(domain.x.shape[1:]) for domain in data.domains}
        raise UnseenError(f"all domains need inputs of one shape; found {shapes}.")
    for domain in data.domains:
        if not len(domain.y):
            raise UnseenError(
                f"domain {domain.name!r} of data set {data.name!r} has no examples.",
                remedy="Remove it, or look at its files.",
            )
        faults = (look(data, domain) for look in (_inputs, _labels, _codes, _units))
        fault = next(filter(None, faults), None)
        if fault:
            raise UnseenError(f"domain {domain.name!r} of data set {data.name!r} has {fault}.")
    return data


def _inputs(data: DataSet, domain: Domain) -> str | None:
    x = domain.x
    if x.dtype not in (torch.uint8, torch.float32) and data.schema is None:
        return f"inputs of type {x.dtype}; uint8 or float32 was expected"
    # Bytes cannot be infinite; what has a digest was looked at when it was decoded. Both may be
    # gigabytes on a disk.
    if not x.is_floating_point() or domain.digest is not None:
        return None
    values = x[~x.isnan()] if data.schema is not None else x
    bad = int((~torch.isfinite(values)).sum())
    return f"{bad} input values that are NaN or infinite" if bad else None


def _labels(data: DataSet, domain: Domain) -> str | None:
    y = domain.y
    if len(y) != len(domain.x):
        return f"{len(domain.x)} inputs and {len(y)} labels"
    if data.classes is None:
        sound = y.dtype == torch.float32 and bool(torch.isfinite(y).all())
        return None if sound else "targets that are not finite float32 numbers"
    if y.dtype != torch.int64 or _outside(y, len(data.classes)):
        wrong = sorted(set(y.tolist()) - set(range(len(data.classes))))[:5]
        return (
            f"labels outside its {len(data.classes)} classes: integers (int64) from 0 to "
            f"{len(data.classes) - 1} were expected, found {wrong or y.dtype}"
        )
    rows = domain.validation
    if rows is not None and (_outside(rows, len(y)) or len(set(rows.tolist())) < len(rows)):
        return "validation rows that repeat or lie outside the domain"
    if rows is not None and len(rows) in (0, len(y)):
        return f"{len(rows)} validation rows of {len(y)}; a source trains and validates"
    return None


def _codes(data: DataSet, domain: Domain) -> str | None:
    for column, codes in domain.meta.items():
        grouped = codes[codes != NO_GROUP]
        if len(codes) != len(domain.y) or _outside(grouped, len(data.levels.get(column, ()))):
            return f"metadata {column!r} that does not give every example a code with a name"
    return None


def _units(data: DataSet, domain: Domain) -> str | None:
    units = domain.units
    if units is None:
        return None
    if len(units) != len(domain.y) or units.dtype != torch.int64:
        return f"units that do not give every example a code (int64 [{len(domain.y)}])"
    if domain.validation is None:
        return None
    held = torch.zeros(len(units), dtype=torch.bool)
    held[domain.validation] = True
    both = set(units[held].tolist()) & set(units[~held].tolist())
    return f"{len(both)} units with examples on both sides of its official split" if both else None


def _outside(values: Tensor, size: int) -> bool:
    return bool(((values < 0) | (values >= size)).any())
