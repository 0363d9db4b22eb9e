"""The metric that recipes are judged by."""

from typing import NamedTuple

import torch

from unseen.data import info
from unseen.data.dataset import DataSet
from unseen.expression import parse
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.results.metric_name import MetricName
from unseen.studies.settings.study import StudySpec

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
    study = recording(study, data)
    metric, why = (study.metric, "") if study.metric is not None else metric_of_classes(data)
    if not metric:
        return Judged(study, "")
    name = MetricName.parse(metric)
    plain = study.model_copy(update={"metric": None})
    in_records = str(name) == name.metric and name.metric in recorded(plain, data)
    if in_records and study.tune is None:
        return Judged(plain, metric, why)
    return Judged(study.model_copy(update={"metric": metric}), "", why)


def recorded(study: StudySpec, data: DataSet) -> tuple[str, ...]:
    """Return the metrics that a study's records have."""
    return chosen_metrics(study, data, info(parse(study.dataset)[0].name).metrics)


def recording(study: StudySpec, data: DataSet) -> StudySpec:
    """Return the study with records of what classes are usually judged by, if it names nothing."""
    if study.metrics is not None or data.kind != "classes" or data.classes is None:
        return study
    areas = ("auroc", "auprc") if len(data.classes) == 2 else ("auroc-ovr",)
    own = recorded(study.model_copy(update={"metric": None}), data)
    every = tuple(dict.fromkeys((*own, "balanced-accuracy", *areas)))
    return study if every == own else study.model_copy(update={"metrics": every})


def metric_of_classes(data: DataSet) -> tuple[str, str]:
    """Return the metric for classes of which one is most rows, and why; else nothing."""
    if data.kind != "classes" or data.classes is None:
        return "", ""
    y = torch.cat([domain.y for domain in data.domains])
    share = float(torch.bincount(y).max()) / max(1, len(y))
    if share <= FREQUENT:
        return "", ""
    metric = "auroc" if len(data.classes) == 2 else "auroc-ovr"
    most = f"{share:.0%} of the rows are of one class"
    return metric, f"judged by {metric}: {most} (metric=accuracy for that)"
