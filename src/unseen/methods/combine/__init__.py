"""Server rules: each turns a stack of K client vectors into one vector.

    rule = PPDG(lam=0.1)
    state = rule.init(K, P)
    vector, state, weights = rule(rows, table, state, generator)

`Weighted` rules see scalars only, `Gram` rules the inner products of the updates, `Elementwise`
rules every update; `Collect` hands every one on.
"""

from unseen.core import Collect, Combine, Elementwise, Gram, Rows, Weighted
from unseen.core.rows import DenseRows, gram
from unseen.methods.combine.adjustment import GeneralizationAdjustment
from unseen.methods.combine.apart import Apart
from unseen.methods.combine.arfl import AutoWeighted
from unseen.methods.combine.by_loss import Agnostic, GroupDRO, QFair, VarianceOfRisks
from unseen.methods.combine.divergence import SemanticDivergence
from unseen.methods.combine.fedcsa import ClassShares
from unseen.methods.combine.fedexp import FedExP
from unseen.methods.combine.fedgala import GlobalAlignment
from unseen.methods.combine.fednova import NormalizedAveraging
from unseen.methods.combine.fedomg import FedOMG
from unseen.methods.combine.geometric import WeightedGeometricMean
from unseen.methods.combine.graddrop import GradDrop
from unseen.methods.combine.mean import Mean, RosterMean, Sum, Weights
from unseen.methods.combine.norm_bound import NormBound
from unseen.methods.combine.pcgrad import PCGrad
from unseen.methods.combine.ppdg import PPDG
from unseen.methods.combine.quantile import QuantileOfRisks
from unseen.methods.combine.random_effects import RandomEffects
from unseen.methods.combine.robust import Krum, Median, Robust, TrimmedMean
from unseen.methods.combine.sign_agreement import (
    AbsoluteGeometricMean,
    AgrRand,
    AgrSum,
    AndMask,
    GradientMasked,
    SandMask,
)
from unseen.methods.combine.torchjd import JacobianDescent

__all__ = [
    "PPDG", "AbsoluteGeometricMean", "Agnostic", "AgrRand", "AgrSum", "AndMask", "Apart",
    "AutoWeighted", "ClassShares", "Collect", "Combine", "DenseRows", "Elementwise", "FedExP",
    "FedOMG", "GeneralizationAdjustment", "GlobalAlignment", "GradDrop", "GradientMasked", "Gram",
    "GroupDRO", "JacobianDescent", "Krum", "Mean", "Median", "NormBound", "NormalizedAveraging",
    "PCGrad", "QFair", "QuantileOfRisks", "RandomEffects", "Robust", "RosterMean", "Rows",
    "SandMask", "SemanticDivergence", "Sum", "TrimmedMean", "VarianceOfRisks", "Weighted",
    "WeightedGeometricMean", "Weights", "gram",
]  # fmt: skip
