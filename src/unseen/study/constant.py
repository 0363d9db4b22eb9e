"""What an answer that looks at no input scores: what a model must beat to be of any use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unseen.core.metrics import METRICS
from unseen.results.records import Record
from unseen.study.prepare import Prepared

#: What a constant number is judged by: the metrics that the sources' mean label is best for.
JUDGED = ("loss", "rmse")


def constants(prepared: Prepared, metrics: Sequence[str]) -> list[Record]:
    """One record for each target: its metrics of the constant answer.

    The answer is the sources' mean label or, for classes, the share that each has among the
    sources' training labels: so accuracies are those of the most frequent class, the loss is that
    of the shares (None where a class occurs that no source has), and all scores are equal.
    """
    if prepared.prior is None:
        return []
    found = []
    for name, client in prepared.targets.items():
        y = client.split("validation").y.cpu()
        figures = (
            _number(prepared, y)
            if prepared.classes is None
            else _classes(prepared.prior, y, metrics)
        )
        found.append({"domain": name, **figures})
    return found


def _number(prepared: Prepared, y: Tensor) -> Record:
    assert prepared.prior is not None
    labels = prepared.scale.restored(y) if prepared.scale is not None else y.double()
    outputs = prepared.prior.expand(len(y), 1)
    return {name: METRICS[name](outputs, labels) for name in JUDGED}


def _classes(prior: Tensor, y: Tensor, metrics: Sequence[str]) -> Record:
    outputs = prior.clamp(min=torch.finfo(torch.float64).tiny).log().expand(len(y), -1)
    figures = {name: METRICS[name](outputs, y) for name in metrics}
    if "loss" in figures and bool((prior[y] == 0).any()):
        figures["loss"] = None
    return figures
