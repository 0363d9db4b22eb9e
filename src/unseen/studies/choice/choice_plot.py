"""The answer as a picture."""

from typing import TYPE_CHECKING

from unseen.studies.choice.answer import Choice
from unseen.studies.results.drawing import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(choice: Choice) -> "Figure":
    """Return a dot plot: every recipe's expectation with its interval, and its sites.

    Args:
        choice: The answer.
    """
    figure = picture(8, 1 + 0.36 * len(choice.rows))
    axes = figure.subplots()
    most = max(choice.rows_at.values())
    for place, row in enumerate(choice.rows):
        colour = "C0" if row.recipe == choice.recipe else "0.25"
        own = choice.figures[row.recipe]
        sizes = [8 + 60 * choice.rows_at[site] / most for site in own]
        axes.scatter([*own.values()], [place] * len(own), sizes, color="0.6", alpha=0.6, lw=0)
        axes.plot([row.expected.low, row.expected.high], [place] * 2, color=colour, lw=2)
        axes.plot([row.expected.mean], [place], "o", color=colour)
    axes.set_yticks(range(len(choice.rows)), [row.recipe for row in choice.rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"{choice.metric} at a new site, with the interval of 90% of new sites")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
