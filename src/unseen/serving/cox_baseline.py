"""The baseline hazard of a trained Cox model: one exchange of sums at stated times."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from unseen.core.client import Split
from unseen.core.survival import Cox
from unseen.serving.baseline_hazard import Baseline, sums_of
from unseen.serving.description import not_in_the_clear
from unseen.serving.directory import Trained
from unseen.serving.event_times import KEY
from unseen.studies.execution.plan import Plan
from unseen.studies.execution.prepare import Prepared

#: (model, clients, split) -> outputs and labels.
Answers = Callable[[Trained, Prepared, Split], tuple[Tensor, Tensor]]


def stated_cuts(planned: Plan) -> tuple[float, ...]:
    """Return the times at which a study asks for the baseline; none of other models."""
    loss = planned.setting.study.training.of_times
    return loss.cuts if planned.data.times is not None and isinstance(loss, Cox) else ()


def kept_from_leaving(planned: Plan, rows_here: bool) -> str:
    """Return why a model has no baseline although its study asks for one, or ""."""
    privacy = planned.setting.study.privacy
    if not rows_here:
        return "real sites do not send its sums"
    if reason := not_in_the_clear(planned.setting.study):
        return f"its sums would leave the sites in the clear, and the study has {reason}"
    return "privacy.columns keeps sums in the clear from leaving" if privacy.columns else ""


def add_baseline(
    spec: dict[str, Any], trained: Trained, planned: Plan, prepared: Prepared, answers: Answers
) -> None:
    """Write the baseline hazard into the content of `model.json`, and what left for it.

    Args:
        spec: The content, which is changed.
        trained: The model.
        planned: Its study, which states times.
        prepared: Its clients, whose training rows count.
        answers: Returns the model's outputs and the labels of a split.
    """
    cuts = stated_cuts(planned)
    sums = torch.zeros(2, len(cuts), dtype=torch.float64)
    for name, client in prepared.sources.items():
        trained.at(name if name in trained.sites else None)
        sums += sums_of(*answers(trained, prepared, client.split("train")), cuts)
    trained.at(None)
    spec[KEY] = spec[KEY] | {"baseline": asdict(Baseline.of_sums(cuts, sums))}
    left = spec["left the sites"]
    left["what"].append(
        f"for `predict --times`, after training: of each of {len(cuts)} stated intervals the "
        "number of events and the sum of e^(log-risk) over the training rows at risk"
    )
    for site in left["by site"].values():
        site["up"] += 16 * len(cuts)
