"""Figures as pages and messages print them, in the unit of a study's tables."""

import math

from unseen.studies.choice.within_sites import Logarithm, Logit, scale_for
from unseen.studies.results.formats import decimals, scale_of
from unseen.studies.results.metric_name import MetricName


def figure_text(number: float, metric: str, gap: bool = False, largest: float = 0.0) -> str:
    """Return a figure as tables print it: accuracies in percent, all else as records have it.

    Args:
        number: The figure.
        metric: Its metric.
        gap: Whether it is a difference, whose unit is points where the metric's is percent.
        largest: The largest absolute value of the numbers next to it, which decides the decimals.

    Example:
        >>> figure_text(0.524, "accuracy"), figure_text(0.524, "auroc")
        ('52.4', '0.524')
        >>> figure_text(0.01, "accuracy", gap=True)
        '1.0 points'
        >>> figure_text(29869.57, "rmse"), figure_text(0.5, "rmse", largest=29869.57)
        ('29869.6', '0.5')
    """
    scale = scale_of(metric)
    text = f"{scale * number:.{decimals(metric, max(abs(number), largest))}f}"
    return f"{text} points" if gap and scale == 100 else text


def chance_text(chance: float) -> str:
    """Return a chance in whole percent, of which none is certain.

    Example:
        >>> chance_text(0.613), chance_text(0.9971), chance_text(0.001)
        ('61%', '>99%', '<1%')
    """
    text = f"{chance:.0%}"
    return {"100%": ">99%", "0%": "<1%"}.get(text, text)


def range_text(metric: str) -> str:
    """Return what the interval of equal figures is.

    Example:
        >>> range_text("accuracy")
        'the whole range of accuracy'
    """
    if all(map(math.isfinite, MetricName.parse(metric).range or ())):
        return f"the whole range of {metric}"
    return f"the range of {metric} as far as that has an end, and else that figure"


def scale_words(metric: str) -> str:
    """Return on which scale figures vary, in words.

    Example:
        >>> scale_words("accuracy"), scale_words("rmse")
        ('on the scale of log odds', 'on a logarithmic scale')
    """
    words = {Logit: "on the scale of log odds", Logarithm: "on a logarithmic scale"}
    return words.get(type(scale_for(MetricName.parse(metric).range)), "on their own scale")


def minutes(seconds: float) -> str:
    """Return a time as one reads it.

    Example:
        >>> minutes(20), minutes(200), minutes(7300)
        ('20 s', '3 min', '2.0 h')
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, round(seconds))} s"
