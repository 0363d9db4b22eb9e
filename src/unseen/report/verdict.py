"""What the page says first of its methods: nothing that its test does not say."""

from __future__ import annotations

from unseen.results.comparison import LEVEL
from unseen.results.statistics import mean
from unseen.results.tables import Table

#: A figure or a name, and what it is.
Card = tuple[str, str]


def cards(made: Table) -> list[Card]:
    """Which methods are significantly ahead of the reference, and where that one stands.

    An average is named only where its corrected p against the reference is below the level.
    """
    at = made.columns.index("average")
    whole = zip(made.methods, (row[at] for row in made.cells), strict=True)
    averages = {m: mean(cell.values) for m, cell in whole if cell.complete}
    if len(averages) < 2:
        return []
    tested = made.comparison
    if tested is None or tested.reference not in averages:
        what = "a reference" if tested is None else f"all runs of {tested.reference}"
        return [("not tested", f"no method may be called best: the test needs {what}")]
    reference = tested.reference
    sign = -1 if made.lower else 1
    ahead = {m: x for m, x in averages.items() if sign * (x - averages[reference]) > 0}
    p = {m: tested.p[m] for m in ahead if m in tested.p}
    unit = "\N{NO-BREAK SPACE}%" if made.scale == 100 else ""

    def named(method: str) -> str:
        return f"{method}: {made.shown(averages[method])}{unit}"

    stands = (named(reference), f"average {made.metric} of the reference")
    leaders = [m for m in p if p[m] < LEVEL]
    if not leaders:
        least = f" (smallest corrected p {_p(min(p.values()))})" if p else ""
        return [("no method", f"is significantly ahead of {reference}{least}"), stands]
    first = max(leaders, key=lambda m: sign * averages[m])
    why = f"average {made.metric}, significantly ahead of {reference} (corrected p {_p(p[first])})"
    if len(leaders) > 1:
        why += f", as are {len(leaders) - 1} more; these were not tested against each other"
    return [(named(first), why), stands]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"
