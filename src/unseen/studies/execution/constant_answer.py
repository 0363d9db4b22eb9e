"""The answer that looks at no input, and how it does at a task's targets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unseen.core.metrics.evaluation import FOR_TIMES, METRICS
from unseen.core.record_lines import Record
from unseen.core.survival import at_risk
from unseen.studies.execution.prepare import Prepared

#: What a constant number is judged by: the metrics that the sources' mean label is best for.
JUDGED: tuple[str, ...] = ("loss", "rmse")


def constants(prepared: Prepared, metrics: Sequence[str]) -> list[Record]:
    """Return one record for each target: its metrics of the constant answer, `Prepared.prior`.

    The answer is the sources' mean label; for classes the share that each has among the sources'
    training labels, so that accuracies are those of the most frequent class and the loss is that of
    the shares; for times the sources' hazards of the intervals, or Cox's model without inputs. All
    scores are equal. The loss is None where something occurs that no source has: a class, an event
    in an interval, or survival of one.
    """
    prior = prepared.prior
    if prior is None:
        return []
    answer = _of_times if prepared.times else _of_classes if prepared.classes else _of_numbers
    return [
        {"domain": name, **answer(prepared, prior, client.split("validation").y.cpu(), metrics)}
        for name, client in prepared.targets.items()
    ]


def _of_numbers(prepared: Prepared, mean: Tensor, y: Tensor, _: Sequence[str]) -> Record:
    labels = prepared.scale.restored(y) if prepared.scale is not None else y.double()
    return {metric: METRICS[metric](mean.expand(len(y), 1), labels) for metric in JUDGED}


def _of_classes(_: Prepared, shares: Tensor, y: Tensor, metrics: Sequence[str]) -> Record:
    outputs = _log(shares).expand(len(y), -1)
    figures = {metric: METRICS[metric](outputs, y) for metric in metrics}
    if bool((shares[y] == 0).any()):  # of which the logarithm has no end
        figures |= dict.fromkeys({"loss", "log-loss"} & figures.keys())
    return figures


def _of_times(prepared: Prepared, hazards: Tensor, y: Tensor, metrics: Sequence[str]) -> Record:
    judged = dict.fromkeys([*FOR_TIMES[: 2 if prepared.times == 1 else None], *metrics])
    if prepared.times == 1:
        return {metric: METRICS[metric](hazards.expand(len(y), 1), y) for metric in judged}
    outputs = (_log(hazards) - _log(1 - hazards)).expand(len(y), -1)
    figures = {metric: METRICS[metric](outputs, y) for metric in judged}
    events, survived = at_risk(y, prepared.times)
    if bool((events & (hazards == 0)).any() | (survived & (hazards == 1)).any()):
        figures["loss"] = None
    return figures


def _log(shares: Tensor) -> Tensor:
    return shares.double().clamp(min=torch.finfo(torch.float64).tiny).log()
