"""The answer as a notebook shows it: a table, a picture and a page."""

from dataclasses import dataclass
from html import escape
from typing import Any

from unseen.studies.choice.answer import Choice
from unseen.studies.choice.choice_html import html
from unseen.studies.choice.choice_plot import plot


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
