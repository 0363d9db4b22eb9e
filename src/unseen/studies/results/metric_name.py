"""Names of metrics: `accuracy`, `worst accuracy@region`, `variance source accuracy@sex`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

#: Words before a metric. Of whom: the source clients, or the domains that are neither source nor
#: target; what of its groups or environments: the worst, or how even they are.
SOURCE, VALIDATION = "source", "validation"
WORST, VARIANCE, ENTROPY = "worst", "variance", "entropy"


@dataclass(frozen=True)
class MetricName:
    """A metric's name.

    Attributes:
        metric: The metric itself.
        column: The metadata column that it is grouped by, or "".
        words: The words before it.

    Example:
        >>> MetricName.parse("validation worst accuracy@region")
        MetricName(metric='accuracy', column='region', words=('validation', 'worst'))
        >>> str(_)
        'validation worst accuracy@region'
    """

    metric: str
    column: str = ""
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        head, _, column = text.partition("@")
        *words, metric = head.split(" ")
        return cls(metric, column, tuple(words))

    def __str__(self) -> str:
        return " ".join((*self.words, self.grouped))

    @property
    def grouped(self) -> str:
        """The name without the words before it, as records have it."""
        return f"{self.metric}@{self.column}" if self.column else self.metric

    @property
    def inner(self) -> str:
        """The name without its first word."""
        return str(MetricName(self.metric, self.column, self.words[1:]))

    @property
    def undefined(self) -> str:
        """The name under which an evaluation says whether it is undefined."""
        return str(MetricName(f"{self.metric}.undefined", self.column))

    @property
    def range(self) -> tuple[float, float] | None:
        """What its figures cannot leave; None where that is not known."""
        from unseen.core.metrics.evaluation import RANGES

        spread = {VARIANCE, ENTROPY} & {*self.words}
        return None if spread else RANGES.get(self.metric)

    @property
    def best(self) -> int | None:
        """The value that is best, of a metric that is neither better high nor low."""
        from unseen.core.metrics.evaluation import BEST_AT

        return None if {VARIANCE, ENTROPY} & {*self.words} else BEST_AT.get(self.metric)

    @property
    def lower(self) -> bool:
        """Whether less of it is better."""
        from unseen.core.metrics.evaluation import LOWER

        return self.metric in LOWER or VARIANCE in self.words

    @property
    def scale(self) -> int:
        """The unit of what is shown over that of the records.

        Returns:
            100 for accuracies, which are shown in percent; for their variance and entropy as
            FedILC's Table 3 has them; 1 for everything else.
        """
        percent = 100 if "accuracy" in self.metric else 1
        return {VARIANCE: 1000, ENTROPY: 10}.get(next(iter(self.words), ""), percent)


def main_metric(asked: str | None, metrics: Sequence[str]) -> str:
    """Return the metric that a study selects and reports by.

    Args:
        asked: What the study asks for.
        metrics: The metrics that it records.

    Returns:
        What the study asks for, else Dice, which masks have, else accuracy, else the root of the
        mean squared error, which is in the label's own unit, else the first metric.

    Example:
        >>> main_metric(None, ("loss", "mae", "rmse")), main_metric(None, ("loss", "pearson"))
        ('rmse', 'loss')
    """
    if asked is not None:
        return asked
    return next((name for name in ("dice", "accuracy", "rmse") if name in metrics), metrics[0])
