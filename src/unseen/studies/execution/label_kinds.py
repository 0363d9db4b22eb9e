"""What follows from the kind of labels: outputs, sums before training, units, metrics."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.label_scale import Scale
from unseen.core.metrics.evaluation import (
    BY_KIND,
    FOR_MASKS,
    FOR_NUMBERS,
    FOR_TIMES,
    METRICS,
    check_metric,
)
from unseen.core.survival import Hazards, Intervals, at_risk
from unseen.data.dataset import DataSet, Totals
from unseen.errors import UnseenError, check_known
from unseen.studies.results import selection
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.study import StudySpec


def times_of(data: DataSet, study: StudySpec) -> int:
    """Return the outputs of a model of times until an event; 0 where labels are others."""
    if data.times is None:
        if study.training.loss:
            raise UnseenError(
                f"training.loss = {study.training.loss!r} is for times until an event, which the "
                f"labels of {data.name} are not.",
                remedy="Name the column of the event: event='died'. Else leave it out.",
            )
        return 0
    loss = study.training.of_times
    return loss.outputs if isinstance(loss, Hazards) else 1


def totals_of(data: DataSet, study: StudySpec) -> Totals | None:
    """Return the sums that a study's sources send before training, if any."""
    return Totals.of(data, study.training.intervals if data.times is not None else 0)


def scale_of(data: DataSet, study: StudySpec, sums: Tensor | None) -> Scale | Intervals | None:
    """Return what labels are standardised by, or the intervals in which times are, if any."""
    if data.times is not None:
        loss = study.training.of_times
        if isinstance(loss, Hazards) and loss.cuts:
            return Intervals(loss.cuts)
    totals = totals_of(data, study)
    return totals.scale(sums) if totals is not None and sums is not None else None


def prior_of(data: DataSet, sources: Mapping[str, Client]) -> Tensor | None:
    """Return the mean of the sources' training labels [1], or each class's share of them [C].

    Masks have none; of times see `prior_of_times`.
    """
    if not sources or data.kind not in ("classes", "numbers"):
        return None
    y = torch.cat([client.split("train").y for client in sources.values()])
    if data.classes is None:
        return y.double().mean().view(1)
    return torch.bincount(y, minlength=len(data.classes)).double() / len(y)


def prior_of_times(sources: Mapping[str, Client], outputs: int) -> Tensor:
    """Return the sources' hazards of the intervals [J], 0 where no row was at risk.

    h_j = (rows with an event in j) / (rows at risk in j), which minimises `Hazards`' loss over
    outputs that are the same for all rows. Of Cox's model it is one log-risk [1], 0: the loss is
    the same for every constant.

    Args:
        sources: Their labels in units of intervals, where these are.
        outputs: Those of the model.
    """
    if outputs == 1:
        return torch.zeros(1, dtype=torch.float64)
    y = torch.cat([client.split("train").y for client in sources.values()])
    events, survived = (marks.double().sum(0) for marks in at_risk(y, outputs))
    return events / (events + survived).clamp(min=1.0)


def chosen_metrics(study: StudySpec, data: DataSet, usual: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics to record.

    Args:
        study: The study, whose own metrics come first.
        data: The data set.
        usual: Those usual for it; where labels are others, others replace them.
    """
    classes = len(data.classes) if data.classes is not None else None
    times = times_of(data, study)
    of_times = FOR_TIMES[: 2 if times == 1 else None]
    instead = {"numbers": FOR_NUMBERS, "masks": FOR_MASKS, "times": of_times}
    alike = data.kind == "numbers" and BY_KIND["numbers"].issuperset(usual)
    if data.kind in instead and not alike:
        usual = instead[data.kind]
    search = study.tune or Tune()
    asked = [name for name in (study.metric, search.metric) if name is not None]
    main = [name.removeprefix(selection.WORST).partition("@")[0] for name in asked]
    flat = study.patience is not None or "until" in str(search.space.get("rounds"))
    names = study.metrics_of(data.kind) or usual
    more = [*(name for name in main if name in METRICS), *(["loss"] if flat else [])]
    metrics = tuple(dict.fromkeys([*names, *more]))
    for name in metrics:
        check_metric(name, classes, data.masks, times)
    check_known("column to group by", data.levels, *study.groups)
    return metrics
