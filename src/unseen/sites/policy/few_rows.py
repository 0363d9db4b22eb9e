"""What few of a site's rows have: values, names of values, and groups whose metrics stay there."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import nan

import torch
from torch import Tensor

from unseen.core import Reply
from unseen.data.dataset import DataSet
from unseen.data.tables.encoding import Schema
from unseen.sites.policy.site_policy import SitePolicy

#: What the scalars of rows by group begin with.
EXAMPLES = "examples@"
#: The node of groups that stay here, and of no group.
NOWHERE = (2, 0)


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

    Values that one row alone has may be a minority of all; else a column of notes, most of them
    empty, would pass by its average.
    """
    counts = counts[counts > 0]
    if not len(counts):
        return False
    return int(counts.sum()) < least * len(counts) or 2 * int((counts == 1).sum()) > len(counts)


def without_few(reply: Reply, codes: Mapping[str, Tensor], least: int) -> Reply:
    """Return a reply in which groups of too few rows are as empty ones."""
    arrays = {name: value for name, value in reply.scalars.items() if isinstance(value, Tensor)}
    counts = {
        name.removeprefix(EXAMPLES): value.tolist()
        for name, value in arrays.items() if name.startswith(EXAMPLES)
    }  # fmt: skip
    scalars = dict(reply.scalars)
    for column, hidden in hidden_groups(counts, codes, least).items():
        for name in (name for name in arrays if name.endswith(f"@{column}")):
            values = arrays[name].clone()
            values[hidden] = float(name.endswith(f".undefined@{column}"))
            scalars[name] = values
    return replace(reply, scalars=scalars)


def hidden_groups(
    counts: Mapping[str, Sequence[float]], codes: Mapping[str, Tensor], least: int
) -> dict[str, list[int]]:
    """Return column -> its groups whose metrics stay here.

    Beside small groups these are groups that those of another column would give away: where some
    groups of two columns hold the same rows but for a few, these few are what is left of the two.

    `codes` are below 0 for a row of no group.

    Example:
        >>> wards, regions = torch.tensor([0] * 28 + [1] * 2 + [2] * 30), torch.tensor([0, 1])
        >>> codes = {"ward": wards, "region": regions.repeat_interleave(30)}
        >>> hidden_groups({"ward": [28, 2, 30], "region": [30, 30]}, codes, 10)
        {'ward': [1, 0], 'region': []}
    """
    none = {column: int((codes[column] < 0).sum()) for column in counts}
    hidden = {column: few(rows, least, none[column]) for column, rows in counts.items()}
    pairs = [*combinations(counts, 2)]
    while exposed := next(
        filter(None, (_given_away(*pair, hidden, codes, least) for pair in pairs)), None
    ):
        column, groups = exposed
        smallest = min(groups, key=counts[column].__getitem__)
        also = [*hidden[column], smallest]
        hidden[column] = few(counts[column], least, none[column], also)
    return hidden


def _given_away(
    one: str,
    other: str,
    hidden: Mapping[str, Sequence[int]],
    codes: Mapping[str, Tensor],
    least: int,
) -> tuple[str, list[int]] | None:
    """Return the second column and its groups by which too few rows are told from the first's.

    The sum over some groups of one column less that over some of the other is of the rows that are
    in one of the two alone. With groups as nodes and rows as edges between their two groups (to one
    more node where a group is hidden), these rows are a cut of the graph; a smallest one is found.
    """
    import networkx as nx

    ends = []
    for place, column in enumerate((one, other)):
        own = codes[column]
        stays = (own < 0) | torch.isin(own, torch.tensor(hidden[column], dtype=own.dtype))
        pairs = zip(own.tolist(), stays.tolist(), strict=True)
        ends.append([NOWHERE if here else (place, group) for group, here in pairs])
    graph = nx.Graph()
    for (a, b), rows in Counter(zip(*ends, strict=True)).items():
        if a != b:
            graph.add_edge(a, b, weight=rows)
    for nodes in nx.connected_components(graph):
        part = graph.subgraph(nodes)
        rows, sides = nx.stoer_wagner(part)
        if rows < least:
            side = sides[0] if NOWHERE not in sides[0] else sides[1]
            return other, sorted(group for place, group in side if place == 1)
    return None


def few(counts: Sequence[float], least: int, none: int = 0, also: Sequence[int] = ()) -> list[int]:
    """Return the groups whose metrics stay here.

    What the metrics of all rows say beyond those of the groups that leave is of the hidden groups
    and of rows of no group. So the next smallest join them until they have enough rows, too.

    `none` is the rows of no group, which count among all rows; `also` stay here in any case.

    Example:
        >>> few([15, 1, 40, 0], 10), few([15, 6, 5, 40], 10), few([15, 40], 10)
        ([1, 0], [2, 1], [])
    """
    hidden, rows = [*also], none + sum(counts[group] for group in also)
    for group in sorted({*range(len(counts))} - {*also}, key=counts.__getitem__):
        if counts[group] and (counts[group] < least or 0 < rows < least):
            hidden.append(group)
            rows += counts[group]
    return hidden
