"""The metric that recipes are judged by."""

from typing import NamedTuple

import torch

from unseen.datasets import info
from unseen.datasets.dataset import DataSet
from unseen.expression import parse
from unseen.results.metric_name import MetricName
from unseen.spec.study import StudySpec
from unseen.study.label_kinds import chosen_metrics

#: A class of more than this share of the rows makes accuracy easy: always answer it.
FREQUENT = 0.7


class Judged(NamedTuple):
    """What is played, and what it is judged by.

    Attributes:
        study: The settings, without a metric that their records have anyway: another metric
            afterwards needs no training.
        metric: The metric; "" for the study's own.
        why: Why it is not accuracy; "" where nobody asks.
    """

    study: StudySpec
    metric: str
    why: str = ""


def judged_by(study: StudySpec, data: DataSet) -> Judged:
    """Return the metric that recipes are judged by.

    It is the study's. Where the study names none and one class has more than 70 % of the rows, it
    is the area under the ROC curve.

    Args:
        study: The settings that all recipes share.
        data: Its data set.
    """
    if study.metric is not None:
        plain = study.model_copy(update={"metric": None})
        name = MetricName.parse(study.metric)
        recorded = chosen_metrics(plain, data, info(parse(study.dataset)[0].name).metrics)
        kept = str(name) == name.metric and name.metric in recorded and study.tune is None
        return Judged(plain, study.metric) if kept else Judged(study, "")
    if data.kind != "classes" or data.classes is None:
        return Judged(study, "")
    y = torch.cat([domain.y for domain in data.domains])
    share = float(torch.bincount(y).max()) / max(1, len(y))
    if share <= FREQUENT:
        return Judged(study, "")
    metric = "auroc" if len(data.classes) == 2 else "auroc-ovr"
    why = f"judged by {metric}: {share:.0%} of the rows are of one class (metric=accuracy for that)"
    return judged_by(study.model_copy(update={"metric": metric}), data)._replace(why=why)
