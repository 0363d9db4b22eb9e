"""Membership inference: was this example among those trained on? How good a guess is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unseen.core.client import Client, Split
from unseen.core.metrics.evaluation import Predict, forward
from unseen.core.turn import keyed
from unseen.core.types import Inbox
from unseen.core.vector import Model

RESAMPLES = 1000
Floats = NDArray[np.float64]


def numbers(t: Tensor) -> Floats:
    """Return a tensor as an array of float64."""
    array: Floats = t.detach().cpu().double().numpy()
    return array


def interval(
    *groups: Tensor | Sequence[float] | Floats, statistic: Callable[..., Any] = np.mean
) -> tuple[float, float, float]:
    """Return a statistic of groups of values, and the middle 95 % of those of resamples."""
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    generator = np.random.default_rng(0)
    samples = [
        statistic(*(x[generator.integers(len(x), size=len(x))] for x in arrays))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(statistic(*arrays)), float(low), float(high)


def auc(members: Floats, others: Floats) -> float:
    """Return the probability that a member scores above a non-member, ties counting half.

    Example:
        >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
        0.875
    """
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / 2 / len(others))


def rate_at(members: Floats, others: Floats, false: float = 0.01) -> float:
    """Return the share of members caught where a share `false` of non-members is accused."""
    threshold = np.quantile(others, 1 - false, method="higher")
    return float((members > threshold).mean())


def estimate(name: str, values: tuple[float, float, float], digits: int) -> dict[str, Any]:
    """Return a value and its interval as findings have them, rounded."""
    value, *ends = (round(number, digits) for number in values)
    return {name: value, "interval": ends}


@dataclass(frozen=True)
class Trained:
    """A model at the end of its rounds, as it predicts."""

    model: Model
    inbox: Inbox
    predict: Predict

    def confidence(self, split: Split) -> Floats:
        self.model.bind(self.inbox["model"].clone(), self.inbox["buffers"].clone())
        return numbers(confidence(forward(self.model, split, self.predict, self.inbox), split.y))


def confidence(outputs: Tensor, y: Tensor) -> Tensor:
    """Return how sure a model is of each example.

    Args:
        outputs: [N, C].
        y: Labels [N], classes or numbers.

    Returns:
        The logit of the probability of the right class; for numbers the squared error with its
        sign turned.
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
    """Return clients with a random half of their training examples each, and which half it is.

    Args:
        clients: The sites.
        key: Names the draw.
    """
    reduced, members = {}, {}
    for name, client in clients.items():
        split, n = client.split("train"), len(client.split("train"))
        index = torch.randperm(n, generator=keyed(f"{key}/{name}"))[: n // 2].sort().values
        members[name] = torch.zeros(n, dtype=torch.bool).index_fill_(0, index, True)
        reduced[name] = replace(client, train=split.take(index))
    return reduced, members


def by_threshold(trained: Trained, clients: Mapping[str, Client]) -> dict[str, Any]:
    """Take for a member what the model fits better than most.

    Args:
        trained: The model.
        clients: The sites; members are their training splits, the others their validation splits.
    """
    return measured(
        *(
            np.concatenate([trained.confidence(client.split(which)) for client in clients.values()])
            for which in ("train", "validation")
        )
    )


def measured(members: Floats, others: Floats) -> dict[str, Any]:
    """Return the AUC with its interval, and the true positives at one false one in a hundred."""
    return {
        **estimate("auc", interval(members, others, statistic=auc), 4),
        "rate_at_1_percent": round(rate_at(members, others), 4),
        "members": len(members),
        "others": len(others),
    }


def by_shadows(confidences: Floats, halves_of: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Infer membership by the likelihood ratio, with few shadow models.

    Args:
        confidences: Of M models in N examples [M, N].
        halves_of: Which half of the examples each model was trained on [M, N].

    Note:
        Each model is attacked in its turn with all others as shadows: an example's score is how
        much more likely its confidence is under the models that saw it than under those that did
        not, each a normal distribution with the example's own mean and, since the models are few,
        one deviation for all examples.

    Source:
        Carlini et al. 2022.
    """
    M = len(confidences)
    inside, outside = [], []
    for target in range(M):
        shadows = np.arange(M) != target
        members, c, x = halves_of[shadows], confidences[shadows], confidences[target]
        able = (members.sum(0) > 0) & ((~members).sum(0) > 0)
        scores = _log_likelihood(x, c, members) - _log_likelihood(x, c, ~members)
        inside.append(scores[able & halves_of[target]])
        outside.append(scores[able & ~halves_of[target]])
    each = [round(auc(a, b), 4) for a, b in zip(inside, outside, strict=True)]
    results = measured(np.concatenate(inside), np.concatenate(outside))
    return results | {"models": M, "auc_of_each": each}


def _log_likelihood(x: Floats, c: Floats, mask: np.ndarray[Any, Any]) -> Floats:
    """Return the log-density of x [N] under the normal distribution of the masked values [M, N]."""
    mean = (c * mask).sum(0) / np.maximum(mask.sum(0), 1)
    squares = ((c - mean) ** 2 * mask).sum()
    freedom = max(1, int(mask.sum() - (mask.sum(0) > 0).sum()))
    deviation = max((squares / freedom) ** 0.5, 1e-6)
    return np.asarray(-(((x - mean) / deviation) ** 2) / 2 - np.log(deviation))
