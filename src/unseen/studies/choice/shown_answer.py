"""The answer as a notebook shows it: a table, a picture and a page."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from unseen.studies.choice.answer import Choice
from unseen.studies.choice.choice_html import html
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


@dataclass(frozen=True)
class Answer(Choice):
    """What `unseen.choose` returns."""

    @property
    def recommendation(self) -> str:
        """The recommended recipe, `recipe`."""
        return self.recipe

    @property
    def table(self) -> Any:
        """A pandas data frame with one row for each recipe, best first."""
        from pandas import DataFrame

        own = ("mean", "low", "high", "spread", "sites")
        rows = [
            {name: getattr(row.expected, name) for name in own}
            | {"worst site": row.worst[0], "server sees": row.sees, "bytes sent": row.sent}
            | {"seconds": row.seconds, "p": row.p}
            | {f"better than {name}": chance for name, chance in row.against.items()}
            for row in self.rows
        ]
        names = [row.recipe for row in self.rows]
        return DataFrame(rows, index=names).rename_axis(index="recipe", columns=self.metric)

    def plot(self) -> Any:
        """Return a matplotlib figure: what to expect of every recipe at a new site, and sites."""
        return plot(self)

    def _repr_html_(self) -> str:
        """Return the answer's page, as notebooks show it."""
        page = escape(html(self, "unseen.train(choice, out)"))
        return f'<iframe srcdoc="{page}" style="width:100%;height:46rem;border:0"></iframe>'
