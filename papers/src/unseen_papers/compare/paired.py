"""What paired differences, one for each site, show beside Wilcoxon's test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unseen.studies.results.statistics import mean, standard_error

#: Up to so many differences all signs are permuted; of more, this many draws are taken.
EXACT, DRAWS = 16, 99_999
#: Numbers of drawn signs that are multiplied at a time.
AT_A_TIME = 2**23
#: Half the width of what counts as no difference, in the metric's unit.
MARGIN = 0.005
#: The level of one test alone, and how often an effect is to be shown at it.
LEVEL, POWER = 0.05, 0.8


def permuted(differences: Sequence[float]) -> float:
    """Return the two-sided p of the mean when every sign is as likely as the other.

    Exact for up to 16 differences, else of 99,999 keyed draws: (1 + those at least as far from 0)
    over (1 + draws).

    Example:
        >>> permuted([1.0, 2.0, 3.0, 4.0, 5.0])
        0.0625
    """
    d = np.asarray(differences)
    n = len(d)
    near = 1e-12 * float(n + np.abs(d).sum())  # they come rounded to twelve decimals
    total = abs(d.sum()) - near
    if n <= EXACT:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(signs @ d) >= total))
    draws = np.random.default_rng(0).integers(0, 2, (DRAWS, n), dtype=np.int8)
    parts = np.array_split(draws, 1 + draws.size // AT_A_TIME)  # eight times as large as numbers
    far = sum(int((np.abs((1.0 - 2.0 * part) @ d) >= total).sum()) for part in parts)
    return (1 + far) / (1 + DRAWS)


def equivalence(differences: Sequence[float]) -> float | None:
    """Return the p of two one-sided t-tests that the mean difference is within ± `MARGIN`.

    Args:
        differences: One for each site.

    Returns:
        The larger p of the two; None for fewer than two differences.

    Source:
        Schuirmann 1987, "A comparison of the two one-sided tests procedure".
    """
    from scipy.stats import t as student

    error = standard_error(differences) if len(differences) > 1 else None
    if error is None:
        return None
    centre, freedom = mean(differences), len(differences) - 1
    if not error:
        return float(abs(centre) >= MARGIN)
    return float(
        max(
            student.sf((centre + MARGIN) / error, freedom),
            student.cdf((centre - MARGIN) / error, freedom),
        )
    )


def detectable(differences: Sequence[float]) -> float | None:
    """Return the smallest effect that n sites with this spread show in four cases of five.

    By the paired t-test at the level 0.05, alone and two-sided: δ = λ s / √n, where a noncentral t
    of n − 1 degrees of freedom and noncentrality λ lies beyond t₀.₉₇₅ with probability 0.8.
    Corrected for further tests it is larger.

    Args:
        differences: One for each site.

    Returns:
        The effect in the unit of the differences; None for fewer than two.

    Example:
        >>> round(detectable([-1.0, 0.0, 1.0, 0.0]), 2)  # 2.13 s for four, 0.94 s for eleven
        1.74
    """
    from scipy.optimize import brentq
    from scipy.stats import nct
    from scipy.stats import t as student

    if (error := standard_error(differences)) is None:
        return None
    freedom = len(differences) - 1
    beyond = student.ppf(1 - LEVEL / 2, freedom)

    def lacking(shift: float) -> float:
        # Of the other tail next to nothing is left.
        return float(nct.sf(beyond, freedom, shift) - POWER)

    return float(brentq(lacking, 0.0, 1.5 * beyond + 1)) * error
