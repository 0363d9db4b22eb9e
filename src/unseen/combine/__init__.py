"""Server rules: each turns a stack of K client vectors into one vector.

    rule = PPDG(lam=0.1)
    state = rule.init(K, P)
    vector, state, weights = rule(rows, table, state, generator)

`Weighted` rules see scalars only, `Gram` rules the inner products of the updates, `Elementwise`
rules every update; `Collect` hands every one on.
"""

from unseen.combine.adjustment import GeneralizationAdjustment
from unseen.combine.apart import Apart
from unseen.combine.arfl import AutoWeighted
from unseen.combine.by_loss import Agnostic, GroupDRO, QFair, VarianceOfRisks
from unseen.combine.divergence import SemanticDivergence
from unseen.combine.fedcsa import ClassShares
from unseen.combine.fedexp import FedExP
from unseen.combine.fedgala import GlobalAlignment
from unseen.combine.fednova import NormalizedAveraging
from unseen.combine.fedomg import FedOMG
from unseen.combine.geometric import WeightedGeometricMean
from unseen.combine.graddrop import GradDrop
from unseen.combine.mean import Mean, RosterMean, Sum, Weights
from unseen.combine.norm_bound import NormBound
from unseen.combine.pcgrad import PCGrad
from unseen.combine.ppdg import PPDG
from unseen.combine.quantile import QuantileOfRisks
from unseen.combine.random_effects import RandomEffects
from unseen.combine.robust import Krum, Median, Robust, TrimmedMean
from unseen.combine.sign_agreement import (
    AbsoluteGeometricMean,
    AgrRand,
    AgrSum,
    AndMask,
    GradientMasked,
    SandMask,
)
from unseen.combine.torchjd import JacobianDescent
from unseen.core import Collect, Combine, Elementwise, Gram, Rows, Weighted
from unseen.core.rows import DenseRows, gram

__all__ = [
    "PPDG", "AbsoluteGeometricMean", "Agnostic", "AgrRand", "AgrSum", "AndMask", "Apart",
    "AutoWeighted", "ClassShares", "Collect", "Combine", "DenseRows", "Elementwise", "FedExP",
    "FedOMG", "GeneralizationAdjustment", "GlobalAlignment", "GradDrop", "GradientMasked", "Gram",
    "GroupDRO", "JacobianDescent", "Krum", "Mean", "Median", "NormBound", "NormalizedAveraging",
    "PCGrad", "QFair", "QuantileOfRisks", "RandomEffects", "Robust", "RosterMean", "Rows",
    "SandMask", "SemanticDivergence", "Sum", "TrimmedMean", "VarianceOfRisks", "Weighted",
    "WeightedGeometricMean", "Weights", "gram",
]  # fmt: skip
