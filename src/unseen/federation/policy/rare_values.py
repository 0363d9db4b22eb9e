"""Values of a table that few of a site's rows have: they stand alone in sums."""

from collections.abc import Iterator
from dataclasses import replace
from math import nan

import torch
from torch import Tensor

from unseen.datasets.dataset import DataSet
from unseen.datasets.tables.encoding import Schema


def without_rare(data: DataSet, least: int) -> DataSet:
    """Return a site's table in which values of too few rows count as missing.

    These are a category's or a flag's values, and all numbers of a column that few rows have. The
    names of such categories are gone, too.

    Args:
        data: A data set of the site's one domain.
        least: Rows that a value needs.
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
