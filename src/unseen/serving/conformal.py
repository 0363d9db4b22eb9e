"""Prediction sets and intervals for a row of a new site, with the sites as the unit.

Rows of one site resemble each other, so that not rows but sites are exchangeable. With scores
s_ki of K sites with n_k rows each, the quantile is that of

    Σ_k 1/(K + 1) · (1/n_k) Σ_i δ_{s_ki}  +  1/(K + 1) δ_∞ ,

which a row of another such site stays below with probability 1 − α at least, where the scores are
of a model that saw none of the sites. Scores of models that were trained without one group each,
used with the model of all sites, hold this approximately. No α below 1/(K + 1) can be promised. The
score of a class is −log p_y, that of a number |y − f|.

Source:
    Lee, Barber and Willett 2023, "Distribution-free inference with hierarchical data"
    (hierarchical conformal prediction); Dunn, Wasserman and Ramdas 2022, "Distribution-Free
    Prediction Sets for Two-Layer Hierarchical Models" (pooling of the sites' distributions).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from unseen.core.record_lines import Record
from unseen.errors import UnseenError

#: Scores are counted in bins, whose upper ends stand for them: equal ratios from LEAST to MOST.
LEAST, MOST, BINS = 1e-4, 1e4, 2000
ENDS = torch.logspace(math.log10(LEAST), math.log10(MOST), BINS, dtype=torch.float64)


def class_score(p: Tensor, y: Tensor) -> Tensor:
    """Return −log p_y [N] of calibrated probabilities [N, C]."""
    own = p.double().gather(1, y[:, None]).squeeze(1)
    return -own.clamp(min=1e-300).log()


def shares(scores: Tensor) -> Tensor:
    """Return what a site sends: which share of its scores lies in each bin [BINS + 1]."""
    place = torch.bucketize(scores.double(), ENDS)
    return torch.bincount(place, minlength=BINS + 1).double() / len(scores)


@dataclass(frozen=True)
class Scores:
    """The sites' scores.

    Attributes:
        total: Σ_k of the sites' shares [BINS + 1].
        sites: K.
        unit: What a score of 1 is, in the label's units; 1 for classes.
    """

    total: Tensor
    sites: int
    unit: float = 1.0

    def to_json(self) -> Record:
        places = self.total.nonzero().flatten().tolist()
        bins = [[b, float(f"{float(self.total[b]):.9g}")] for b in places]
        return {"sites": self.sites, "unit": self.unit, "shares": bins}

    @classmethod
    def of_json(cls, content: Record) -> Self:
        total = torch.zeros(BINS + 1, dtype=torch.float64)
        for b, share in content["shares"]:
            total[b] = share
        return cls(total, content["sites"], content["unit"])

    @property
    def most(self) -> float:
        """The highest coverage that K sites can promise, K/(K + 1)."""
        return self.sites / (self.sites + 1)

    def quantile(self, coverage: float) -> float:
        """Return the score that a new site's row stays below with probability `coverage`."""
        if not 0 < coverage < 1:
            raise UnseenError(f"a coverage lies between 0 and 1; found {coverage:g}.")
        if coverage > self.most + 1e-12:
            raise UnseenError(
                f"{self.sites} sites cannot promise a coverage of {coverage:g} at another one, but "
                f"{math.floor(1000 * self.most) / 1000:g} at most, K/(K + 1).",
                remedy=f"Ask for {math.floor(100 * self.most) / 100:g}, or train on more sites.",
            )
        cdf = self.total.cumsum(0) / (self.sites + 1)
        b = int((cdf < coverage - 1e-9).sum())
        return float(ENDS[b]) * self.unit if b < BINS else math.inf

    def is_largest(self, coverage: float) -> bool:
        """Return whether that score is the largest of all, so that one row decides it."""
        last = min(int(self.total.nonzero().max()), BINS - 1)
        return self.quantile(coverage) >= float(ENDS[last]) * self.unit

    def sets(self, p: Tensor, coverage: float) -> Tensor:
        """Return which classes are in each row's set [N, C]; the likeliest one always is.

        Args:
            p: Calibrated probabilities [N, C].
            coverage: 1 − α.
        """
        least = math.exp(-self.quantile(coverage))
        inside = p.double() >= least
        return inside | (p == p.max(1, keepdim=True).values)


def pool(scores: Mapping[str, Tensor], unit: float = 1.0) -> Scores:
    """Return the scores of several sites, by what each of them would send."""
    parts = [shares(values / unit) for values in scores.values()]
    return Scores(torch.stack(parts).sum(0), len(parts), unit)
