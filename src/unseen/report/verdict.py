"""The cards at the top: they claim nothing that the significance test does not support."""

from __future__ import annotations

from unseen.results.comparison import LEVEL
from unseen.results.statistics import mean
from unseen.results.tables import Table

#: A figure or a name, and what it is.
Card = tuple[str, str]


def cards(table: Table) -> list[Card]:
    """Return which methods are significantly ahead of the reference, and its average.

    An average is named only where its corrected p against the reference is below the level.
    """
    at = table.columns.index("average")
    whole = zip(table.methods, (row[at] for row in table.cells), strict=True)
    averages = {m: mean(cell.values) for m, cell in whole if cell.complete}
    if len(averages) < 2:
        return []
    tested = table.comparison
    if tested is None or tested.reference not in averages:
        what = "a reference" if tested is None else f"all runs of {tested.reference}"
        return [("not tested", f"no method may be called best: the test needs {what}")]
    reference = tested.reference
    sign = -1 if table.lower else 1
    ahead = {m: x for m, x in averages.items() if sign * (x - averages[reference]) > 0}
    p = {m: tested.p[m] for m in ahead if m in tested.p}
    unit = "\N{NO-BREAK SPACE}%" if table.scale == 100 else ""

    def named(method: str) -> str:
        return f"{method}: {table.shown(averages[method])}{unit}"

    level = (named(reference), f"average {table.metric} of the reference")
    leaders = [m for m in p if p[m] < LEVEL]
    if not leaders:
        least = f" (smallest corrected p {_p(min(p.values()))})" if p else ""
        return [("no method", f"is significantly ahead of {reference}{least}"), level]
    first = max(leaders, key=lambda m: sign * averages[m])
    why = f"average {table.metric}, significantly ahead of {reference} (corrected p {_p(p[first])})"
    if len(leaders) > 1:
        why += f", as are {len(leaders) - 1} more; these were not tested against each other"
    return [(named(first), why), level]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"
