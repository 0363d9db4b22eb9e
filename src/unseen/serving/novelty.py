"""How far a row is from the training sites' rows: Mahalanobis distances from sums over sites.

    d²(x) = min_c (φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c)

φ: what the last layer takes, or the input; μ_c: its mean over the training rows of class c (of all
rows, for numbers); Σ: the covariance around these means, all of them from the sums Σ 1, Σ φ and
Σ φ φᵀ. The score of a row is the share of rows that were not trained on, at the same sites, which
are nearer than it, every site alike.

Source:
    Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
    Adversarial Attacks", Eq. 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from unseen.core.exchange import Method
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.data.networks.mixture import Mixture
from unseen.errors import UnseenError
from unseen.serving.conformal import BINS, ENDS, shares
from unseen.studies.execution.prepare import Prepared

#: The prefix of the tensors in a model's directory.
PREFIX = "novelty/"
#: The most features: a site sends their products.
WIDEST = 512
#: Rows of a site that distances are summed over at most, and rows of one pass.
MOST, AT_ONCE = 5000, 256


def moments(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a site sends: rows by class [C], Σ φ by class [C, F] and Σ φ φᵀ [F, F].

    Args:
        features: φ [N, F].
        y: Classes [N]; all 0 for numbers.
        classes: C; 1 for numbers.
    """
    phi = features.double()
    count = torch.bincount(y, minlength=classes).double()
    total = torch.zeros(classes, phi.shape[1], dtype=torch.float64).index_add(0, y, phi)
    return count, total, phi.T @ phi


@dataclass(frozen=True)
class Novelty:
    """What distances are measured by.

    Attributes:
        means: μ_c of the classes that training had [C, F].
        factor: A with A Aᵀ = Σ⁻¹ [F, F], so that d² = min_c |(φ − μ_c) A|².
        nearer: Σ_k of the sites' shares of distances in each bin [BINS + 1].
        sites: K.
    """

    means: Tensor
    factor: Tensor
    nearer: Tensor
    sites: int

    @classmethod
    def of(cls, count: Tensor, total: Tensor, products: Tensor) -> Self:
        """Return it from summed moments, without distances yet.

        Σ is drawn to its mean diagonal by F/(F + N): features may be constant, or as many as rows.
        """
        present, n = count > 0.5, count.sum()
        means = total[present] / count[present, None]
        around = products - (means.T * count[present]) @ means
        covariance = around / n
        F = len(covariance)
        size = covariance.diagonal().mean().clamp(min=1e-12)
        toward = F / (F + float(n))
        covariance = (1 - toward) * covariance + toward * size * torch.eye(F, dtype=torch.float64)
        values, vectors = torch.linalg.eigh(covariance)
        factor = vectors / values.clamp(min=1e-9 * float(size)).sqrt()
        return cls(means, factor, torch.zeros(BINS + 1, dtype=torch.float64), 0)

    def distance(self, features: Tensor) -> Tensor:
        """Return d / √F [N], which is about 1 for a row of training."""
        turned = features.double() @ self.factor
        apart: Tensor = torch.cdist(turned, self.means @ self.factor).amin(1)
        return apart.div(len(self.factor) ** 0.5)

    def with_site(self, features: Tensor) -> Self:
        """Return it with the distances of one more site's rows, which were not trained on."""
        nearer = self.nearer + shares(self.distance(features))
        return type(self)(self.means, self.factor, nearer, self.sites + 1)

    def score(self, features: Tensor) -> Tensor:
        """Return the share of the training sites' rows that are nearer [N], 0 to 1."""
        place = torch.bucketize(self.distance(features), ENDS)
        middle: Tensor = (self.nearer.cumsum(0) - self.nearer / 2) / self.sites
        return middle[place].clamp(0, 1)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored of it."""
        factor = self.factor.float().contiguous()
        stored = {"means": self.means.float(), "factor": factor, "nearer": self.nearer}
        return {f"{PREFIX}{name}": tensor for name, tensor in stored.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], sites: int) -> Self:
        """Return it from the tensors of a model's directory."""
        names = [f"{PREFIX}{name}" for name in ("means", "factor", "nearer")]
        if lacking := [name for name in names if name not in tensors]:
            raise UnseenError(f"{lacking[0]} is missing from the model's tensors.")
        means, factor, nearer = (tensors[name].double() for name in names)
        return cls(means, factor, nearer, sites)


class Features:
    """Reads φ of a network's predictions: what its last layer takes, or its input."""

    def __init__(self, network: nn.Module, layer: str) -> None:
        self.layer = dict(network.named_modules())[layer] if layer else None

    def __call__(self, predict: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [N, C] and φ [N, F]."""
        if self.layer is None:
            return predict(x), x.flatten(1)
        features: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
        try:
            outputs = predict(x)
        finally:
            hook.remove()
        return outputs, features[-1].flatten(1).float().cpu()


def last_layer(model: Model, method: Method, inbox: Inbox, x: Tensor) -> str | None:
    """Return the name of the last linear layer of a prediction, or "" for the input.

    Note:
        An ensemble passes its layers more than once or has several last ones, and trees have none:
        then it is the input.
        None where that is too wide.
    """
    order: list[tuple[str, int]] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, i, name=name: order.append((name, i[0].shape[-1]))
        )
        for name, layer in model.module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        model.module.eval()
        with torch.no_grad():
            method.predict(model, inbox, x)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, _ in order]
    several = isinstance(model.module, Mixture) and len(model.module.members) > 1
    if order and not several and names.count(names[-1]) == 1 and order[-1][1] <= WIDEST:
        return names[-1]
    return "" if x[0].numel() <= WIDEST else None


def novelty_of(
    model: Model, method: Method, inbox: Inbox, prepared: Prepared
) -> tuple[Novelty, str] | None:
    """Return what distances are measured by, from what every source would send; and φ's layer."""
    sources = {n: c for n, c in prepared.sources.items() if c.train is not None}
    first = next(iter(sources.values())).split("train").batch(slice(0, 2))[0]
    layer = last_layer(model, method, inbox, first.to(model.device))
    if layer is None:
        return None
    read, classes = Features(model.module, layer), prepared.classes or 1

    def features(site: str, split: str) -> tuple[Tensor, Tensor]:
        data = sources[site].split(split)
        rows = torch.arange(0, len(data), max(1, -(-len(data) // MOST)))
        parts, labels = [], []
        with torch.no_grad():
            for some in rows.split(AT_ONCE):
                x, y = data.batch(some)
                parts.append(read(lambda x: method.predict(model, inbox, x), x.to(model.device))[1])
                labels.append(y.cpu())
        y = torch.cat(labels)
        return torch.cat(parts).cpu(), y.new_zeros(len(y)).long() if prepared.classes is None else y

    sums = [moments(*features(site, "train"), classes) for site in sources]
    novelty = Novelty.of(*(torch.stack(part).sum(0) for part in zip(*sums, strict=True)))
    for site in sources:
        novelty = novelty.with_site(features(site, "validation")[0])
    return novelty, layer
