"""Values of a table that few of a site's rows have, and names of values that leave a site."""

from collections.abc import Iterator
from dataclasses import replace
from math import nan

import torch
from torch import Tensor

from unseen.data.dataset import DataSet
from unseen.data.tables.encoding import Schema
from unseen.sites.policy.site_policy import SitePolicy


def without_rare(data: DataSet, least: int) -> DataSet:
    """Return a site's table in which values of too few rows count as missing.

    These are a category's or a flag's values, and all numbers of a column that few rows have. The
    names of such categories are gone, too.
    """
    schema, (domain,) = data.schema, data.domains
    if schema is None or least <= 1:
        return data
    x, categories = domain.x.clone(), dict(schema.categories)
    for j, name in enumerate(schema.columns):
        for _, rows in _rare(schema, name, x[:, j], least):
            x[rows, j] = nan
        if name in categories:
            x[:, j], categories[name] = _recoded(x[:, j], categories[name])
    coded = replace(schema, categories=categories)
    return replace(data, schema=coded, domains=(replace(domain, x=x),))


def rare(data: DataSet, least: int) -> list[str]:
    """Return the columns with values of too few rows, in words: `ca (known in 2 rows)`."""
    schema, (domain,) = data.schema, data.domains
    columns = []
    for j, name in enumerate(schema.columns if schema is not None else ()):
        assert schema is not None
        values = [f"{what} in {int(rows.sum())}" for what, rows in
                  _rare(schema, name, domain.x[:, j], least)]  # fmt: skip
        if values:
            columns.append(f"{name} ({', '.join(values)})")
    return columns


def _rare(schema: Schema, name: str, column: Tensor, least: int) -> Iterator[tuple[str, Tensor]]:
    """Yield what few rows of a column have, and which rows [N] these are."""
    filled = ~column.isnan()
    if name not in schema.categories and name not in schema.flags:
        if 0 < int(filled.sum()) < least:
            yield "known", filled
        return
    for value in column[filled].unique():
        rows = column == value
        if int(rows.sum()) < least:
            code = int(value)
            yield schema.categories[name][code] if name in schema.categories else str(code), rows


def _recoded(column: Tensor, names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the codes [N] of the names that are left, and these."""
    left = [code for code in range(len(names)) if bool((column == code).any())]
    codes = torch.full_like(column, nan)
    for new, old in enumerate(left):
        codes[column == old] = new
    return codes, tuple(names[code] for code in left)


def kept_names(policy: SitePolicy, data: DataSet, label: str) -> Iterator[tuple[str, str]]:
    """Yield why the names of a column's values may not leave, and the remedy; of tables alone."""
    for column, codes, names in named_values(data, label) if data.schema is not None else ():
        if policy.columns is not None and "levels" not in policy.uses(column):
            remedy = f"[columns] {column!r} = [..., 'levels'] in site.toml lets them leave"
            yield f"the names of the values of {column!r} do not leave", remedy
        counts = torch.bincount(codes[codes >= 0].long(), minlength=len(names))
        if nearly_unique(counts, policy.least.rows_per_level):
            remedy = "leave the column out: drop=[...] in the study, or remove it from the file"
            yield f"the column {column!r} has nearly a value of its own for each row", remedy


def named_values(data: DataSet, label: str) -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Yield each column whose values leave a site by name: column, codes [N], the names."""
    (domain,) = data.domains
    if data.classes is not None:
        yield label, domain.y, data.classes
    schema = data.schema
    for name, names in schema.categories.items() if schema is not None else ():
        assert schema is not None
        values = domain.x[:, schema.columns.index(name)]
        yield name, values.nan_to_num(-1), names
    for name, names in data.levels.items():
        yield name, domain.meta[name], names


def nearly_unique(counts: Tensor, least: int) -> bool:
    """Return whether a column's values would give single rows away by name.

    `least` is the rows for each value on the average.

    Note:
        Values that one row alone has may be a minority of all; else a column of notes, most of
        them empty, would pass by its average.
    """
    counts = counts[counts > 0]
    if not len(counts):
        return False
    return int(counts.sum()) < least * len(counts) or 2 * int((counts == 1).sum()) > len(counts)
