"""Membership inference: was this example among those that the model was trained on?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.audit.measures import Floats, auc, auc_interval, numbers, rate_at
from unseen.core.client import Client, Split
from unseen.core.exchange import keyed
from unseen.core.metrics import Predict, forward
from unseen.core.types import Inbox
from unseen.core.vector import Model


@dataclass(frozen=True)
class Trained:
    """A model at the end of its rounds, as it predicts."""

    model: Model
    inbox: Inbox
    predict: Predict

    def confidence(self, split: Split) -> Floats:
        """Return log p/(1 − p) of each example's own class, or −(f(x) − y)² for numbers."""
        vector, buffers = self.inbox["model"].clone(), self.inbox["buffers"].clone()
        self.model.bind(vector, buffers)
        return numbers(confidence(forward(self.model, split, self.predict, self.inbox), split.y))


def confidence(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the logit of the probability that the model gives to the right class.

    For numbers: the squared error with its sign turned.
    """
    z = outputs.double()
    if y.is_floating_point():
        return -(z.squeeze(-1) - y).square()
    if z.shape[-1] == 1:
        return z.squeeze(-1) * (2 * y - 1)
    right = z.gather(1, y[:, None])
    others = z.masked_fill(F.one_hot(y, z.shape[1]).bool(), -torch.inf)
    return (right.squeeze(1) - others.logsumexp(1)).clamp(-500, 500)


def halves(clients: Mapping[str, Client], key: str) -> tuple[dict[str, Client], dict[str, Tensor]]:
    """Return clients with a random half of their training examples each, and which half it is."""
    reduced, chosen = {}, {}
    for name, client in clients.items():
        split = client.split("train")
        n = len(split)
        index = torch.randperm(n, generator=keyed(f"{key}/{name}"))[: n // 2].sort().values
        chosen[name] = torch.zeros(n, dtype=torch.bool)
        chosen[name][index] = True
        reduced[name] = replace(client, train=split.take(index))
    return reduced, chosen


def by_threshold(trained: Trained, clients: Mapping[str, Client]) -> dict[str, Any]:
    """Take for a member what the model fits better than most.

    Members are the training splits, the others the validation splits of the same sites.
    """
    inside = np.concatenate([trained.confidence(c.split("train")) for c in clients.values()])
    outside = np.concatenate([trained.confidence(c.split("validation")) for c in clients.values()])
    return measured(inside, outside)


def measured(members: Floats, others: Floats) -> dict[str, Any]:
    """Return the AUC with its interval, and the true positives at one false one in a hundred."""
    value, low, high = auc_interval(members, others)
    return {
        "auc": round(value, 4),
        "interval": [round(low, 4), round(high, 4)],
        "rate_at_1_percent": round(rate_at(members, others), 4),
        "members": len(members),
        "others": len(others),
    }


def by_shadows(confidences: Floats, kept: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Infer membership by the likelihood ratio, with few shadow models.

    Each model is attacked in its turn with all others as shadows: an example's score is how much
    more likely its confidence is under the models that saw it than under those that did not, each a
    normal distribution with the example's own mean and, since the models are few, one deviation for
    all examples.

    Args:
        confidences: Of M models in N examples [M, N].
        kept: Which half of the examples each model was trained on [M, N].

    Source:
        Carlini et al. 2022.
    """
    M = len(confidences)
    inside, outside = [], []
    for target in range(M):
        shadows = np.arange(M) != target
        seen = kept[shadows]
        c = confidences[shadows]
        able = (seen.sum(0) > 0) & ((~seen).sum(0) > 0)
        means = [_mean(c, seen), _mean(c, ~seen)]
        spreads = [_spread(c, mask, mean) for mask, mean in zip((seen, ~seen), means, strict=True)]
        x = confidences[target]
        scores = _log_normal(x, means[0], spreads[0]) - _log_normal(x, means[1], spreads[1])
        inside.append(scores[able & kept[target]])
        outside.append(scores[able & ~kept[target]])
    each = [auc(a, b) for a, b in zip(inside, outside, strict=True)]
    results = measured(np.concatenate(inside), np.concatenate(outside))
    return results | {"models": M, "auc_of_each": [round(value, 4) for value in each]}


def _mean(c: Floats, mask: np.ndarray[Any, Any]) -> Floats:
    return np.asarray((c * mask).sum(0) / np.maximum(mask.sum(0), 1))


def _spread(c: Floats, mask: np.ndarray[Any, Any], mean: Floats) -> float:
    squares = ((c - mean) ** 2 * mask).sum()
    freedom = max(1, int(mask.sum() - (mask.sum(0) > 0).sum()))
    return float(max((squares / freedom) ** 0.5, 1e-6))


def _log_normal(x: Floats, mean: Floats, deviation: float) -> Floats:
    return np.asarray(-(((x - mean) / deviation) ** 2) / 2 - np.log(deviation))
