"""How evenly a model serves environments: variance, entropy and divergence of accuracies.

Source: Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning",
Definition 1 and Appendix A; FedILC §5.2 and Table 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unseen.errors import UnseenError


def variance(accuracies: Sequence[float]) -> float:
    """Population variance (1/n) Σ (a_i − ā)² over environments: 0 is perfectly even.

    >>> variance([0.25, 0.75])
    0.0625
    """
    values = _checked(accuracies)
    mean = math.fsum(values) / len(values)
    return math.fsum((a - mean) ** 2 for a in values) / len(values)


def entropy(accuracies: Sequence[float]) -> float:
    """Entropy −Σ p_i ln p_i in nats of the accuracies normalised to p_i = a_i / Σ_j a_j.

    At most ln n, which is reached where all are equal.

    >>> entropy([0.8, 0.8]) == math.log(2)
    True
    """
    values = _checked(accuracies)
    total = math.fsum(values)
    if total == 0:
        raise UnseenError("the entropy of accuracies that are all 0 is not defined.")
    return math.fsum(-a / total * math.log(a / total) for a in values if a > 0)


def divergence(accuracies: Sequence[float]) -> float:
    """KL(p ‖ uniform) = ln n − H(p) in nats, with p as for `entropy`: 0 is perfectly even."""
    return math.log(len(accuracies)) - entropy(accuracies)


def _checked(accuracies: Sequence[float]) -> Sequence[float]:
    """One accuracy per environment, each a number in [0, 1]."""
    if not accuracies or not all(0 <= a <= 1 for a in accuracies):
        raise UnseenError(
            f"expected one accuracy in [0, 1] per environment; found {list(accuracies)!r}."
        )
    return accuracies
