"""What an answer that looks at no input scores: what a model must beat to be of any use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unseen.core.metrics import METRICS
from unseen.results.records import Record
from unseen.study.prepare import Prepared

#: What a constant number is judged by: the metrics that the sources' mean label is best for.
JUDGED: tuple[str, ...] = ("loss", "rmse")


def constants(prepared: Prepared, metrics: Sequence[str]) -> list[Record]:
    """Return one record for each target: its metrics of the constant answer.

    The answer is the sources' mean label or, for classes, the share that each has among the
    sources' training labels: so accuracies are those of the most frequent class, the loss is that
    of the shares (None where a class occurs that no source has), and all scores are equal.
    """
    prior, scale, records = prepared.prior, prepared.scale, list[Record]()
    if prior is None:
        return records
    for name, client in prepared.targets.items():
        y = client.split("validation").y.cpu()
        if prepared.classes is None:
            judged, outputs = JUDGED, prior.expand(len(y), 1)
            labels = scale.restored(y) if scale is not None else y.double()
        else:
            shares = prior.clamp(min=torch.finfo(torch.float64).tiny)
            judged, outputs, labels = tuple(metrics), shares.log().expand(len(y), -1), y
        figures: Record = {metric: METRICS[metric](outputs, labels) for metric in judged}
        if prepared.classes is not None and "loss" in figures and bool((prior[y] == 0).any()):
            figures["loss"] = None
        records.append({"domain": name, **figures})
    return records
