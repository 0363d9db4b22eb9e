"""The metric that recipes are judged by, and recipes that a study's settings rule out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from unseen.data import info
from unseen.data.dataset import DataSet
from unseen.errors import Incompatible, UnseenError
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.studies.choice.playing import Candidates, data_of
from unseen.studies.choice.trials import BASE, POOLED
from unseen.studies.execution.label_kinds import chosen_metrics
from unseen.studies.execution.runtime import composed
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


#: Remarks on data without which a figure cannot be read.
DECISIVE = ("gives the label away", "identifier or name")
#: A site with fewer rows of a class says little of it.
FEWEST = 10


def refused_by_settings(study: StudySpec, recipes: Sequence[str], data: DataSet) -> dict[str, str]:
    """Return recipe -> why a study's privacy or kind of labels rules it out.

    Args:
        study: The settings that all recipes share.
        recipes: Expressions of methods.
        data: The study's data set.

    Raises:
        UnseenError: A recipe is mistyped, or the settings rule out the recipe that all others are
            compared with.
    """
    refused = {}
    for name in recipes:
        compose(name)
        try:
            composed(name, study, data)
        except UnseenError as error:
            if name == BASE:
                raise
            why = error.why if isinstance(error, Incompatible) else str(error)
            refused[name] = f"cannot be played with these settings: {why.rstrip('.')}"
    return refused


def served(candidates: Candidates, data_dir: Path | None) -> Candidates:
    """Return the candidates without those that the study's settings rule out.

    Args:
        candidates: What would be played.
        data_dir: The data folder.
    """
    data = data_of(candidates.study, data_dir)
    refused = refused_by_settings(candidates.study, candidates.rows, data)
    judged = judged_by(candidates.study, data)
    return replace(
        candidates,
        study=judged.study,
        metric=judged.metric,
        why_metric=judged.why,
        recipes=tuple(name for name in candidates.recipes if name not in refused),
        pool=candidates.pool and POOLED not in refused,
        refused=refused,
        doubts=doubts_of(data),
    )


def doubts_of(data: DataSet) -> tuple[str, ...]:
    """Return warnings about the data: a column that gives the label away, a rare outcome.

    Args:
        data: The study's data set.
    """
    notes = [str(note) for note in data.notes if getattr(note, "check", "") in DECISIVE]
    if data.kind != "classes" or data.classes is None or len(data.classes) != 2:
        return tuple(notes)
    fewest = {domain.name: int(domain.y.bincount(minlength=2).min()) for domain in data.domains}
    rare = [f"{name} ({count})" for name, count in fewest.items() if count < FEWEST]
    if rare:
        listed = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
        notes.append(f"Fewer than {FEWEST} rows have the rarer class at {listed}.")
    return tuple(notes)
