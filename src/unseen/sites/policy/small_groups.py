"""Metrics by group leave a site of large groups alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from unseen.core import Reply

#: What the scalars of rows by group begin with.
EXAMPLES = "examples@"
#: The node of groups that stay here, and of no group.
NOWHERE = (2, 0)


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

    Args:
        counts: Rows by group.
        least: Rows of a group whose metrics leave.
        none: Rows of no group, which count among all rows.
        also: Groups that stay here in any case.

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
