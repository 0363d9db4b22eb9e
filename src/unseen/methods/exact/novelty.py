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

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from unseen.methods.exact.conformal import BINS, ENDS, shares

#: The most features: a site sends their products.
WIDEST = 512


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
        return {"means": self.means.float(), "factor": factor, "nearer": self.nearer}
