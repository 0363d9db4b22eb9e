"""Every method against one of them: ranks, paired tests, and their correction for multiplicity."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unseen.errors import check_known, choice
from unseen.studies.results.statistics import Ranking, mean, rank, ranks, standard_error

#: One figure per (method, task, seed).
Figures = Mapping[tuple[str, str, int], float]
LEVEL = 0.05
#: Up to how many differences other than 0 Wilcoxon's p is exact.
EXACT = 500


def wilcoxon(differences: Sequence[float]) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test that paired differences are around 0.

        p = min(1, 2 P(W ≤ min(W⁺, W⁻))),   W = Σ_i s_i r_i,  every s ∈ {0, 1}ⁿ equally likely

    r: ranks of |d|, where equal ones share the mean of their ranks; W⁺ and W⁻: their sums over the
    positive and over the negative differences.

    Note:
        This is exact, with ties too: the signs are permuted and the sizes stay as they are.
        Differences of 0 are left out (Wilcoxon's own treatment, not Pratt's), and n counts the
        others; where all are 0, p = 1. No p is below 2 / 2ⁿ: that of five differences is 0.0625 at
        least, and Holm multiplies the smallest of m by m. Where n > 500, p is that of a normal W
        with the ties' own variance, Σ r² / 4, and a continuity correction of 1/2. Ties are of equal
        floats: round differences whose last bits mean nothing.

    Example:
        >>> wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]), wilcoxon([1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
        (0.0625, 0.375)
    """
    nonzero = [d for d in differences if d]
    if not nonzero:
        return 1.0
    # Twice the mean ranks, which are whole.
    doubled = [round(2 * r) for r in ranks([abs(d) for d in nonzero], lower=True)]
    above = sum(r for r, d in zip(doubled, nonzero, strict=True) if d > 0)
    least = min(above, sum(doubled) - above)
    if len(nonzero) <= EXACT:
        return min(1.0, 2 * _at_most(least, doubled))
    centre, deviation = sum(doubled) / 2, math.sqrt(sum(r * r for r in doubled)) / 2
    # 1/2 of a rank is 1 of its double.
    return math.erfc(max(0.0, centre - least - 1) / deviation / math.sqrt(2))


def agree(differences: Sequence[float]) -> bool:
    """Return whether the ranks of Wilcoxon's test lean to the side of the mean.

    Where they do not (a little worse at most sites, and far better at one), the test does not
    support the method with the better mean.

    Example:
        >>> agree([0.1, 0.2, 0.3]), agree([-0.01, -0.02, -0.03, 0.9])
        (True, False)
    """
    rank = ranks([abs(d) for d in differences], lower=True)
    lean = sum(r * ((d > 0) - (d < 0)) for r, d in zip(rank, differences, strict=True))
    return lean * sum(differences) > 0


def _at_most(limit: int, sizes: Sequence[int]) -> float:
    """Return P(Σ s_i size_i ≤ limit) for signs s ∈ {0, 1}ⁿ that are all equally likely."""
    import numpy as np

    sums = np.zeros(limit + 1)
    sums[0] = 1.0
    for size in sizes:
        sums *= 0.5
        if size <= limit:
            sums[size:] += sums[: limit + 1 - size].copy()
    return math.fsum(sums)


def t_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test that differences have mean 0.

    t = d̄ / (s / √n) with n − 1 degrees of freedom. Where all differences are equal, p = 0, or
    p = 1 if they are 0.

    Returns:
        The p; None for fewer than two differences.

    Example:
        >>> round(t_test([1.0, 2.0, 3.0]), 4)
        0.0742
    """
    from scipy.stats import t as student

    if len(differences) < 2:
        return None
    centre, error = mean(differences), standard_error(differences)
    if not error:
        return float(not centre)
    return 2 * float(student.sf(abs(centre) / error, len(differences) - 1))


def holm(p: Sequence[float], declared: int = 0) -> list[float]:
    """Return Holm's step-down correction, which bounds the chance that any rejection is wrong.

    The i-th smallest of m becomes max over j ≤ i of (m − j + 1) p_(j), at most 1.

    Args:
        p: The comparisons' p.
        declared: m where more comparisons were declared than have run; those that are missing
            count as the largest, which makes the others' corrected p as large as they can become.

    Source:
        Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
        Statistics 1979.

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    corrected, largest, m = [0.0] * len(p), 0.0, max(declared, len(p))
    for step, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (m - step) * p[i]))
        corrected[i] = largest
    return corrected


#: Tests of paired differences: name -> (its name in a sentence, differences -> p, or None).
TESTS: dict[str, tuple[str, Callable[[Sequence[float]], float | None]]] = {
    "wilcoxon": ("Wilcoxon's signed-rank test", wilcoxon),
    "t": ("paired t-test", t_test),
}


@dataclass(frozen=True)
class Comparison:
    """Two more columns of a table: ranks, and p against a reference.

    Attributes:
        reference: The method that the others are tested against.
        ranking: Mean ranks over targets of the means over seeds.
        raw: Test -> method -> p; methods that lack a figure, and the reference itself, have none.
        corrected: The same after Holm's correction.
        pairs: How many pairs each test has.
        test: The test that is shown.
        verdict: Whether h follows p, which is 1 where the corrected p is below 0.05.
    """

    reference: str
    ranking: Ranking
    raw: Mapping[str, Mapping[str, float]]
    corrected: Mapping[str, Mapping[str, float]]
    pairs: int
    test: str
    verdict: bool

    @property
    def ranks(self) -> Mapping[str, float]:
        return self.ranking.ranks

    @property
    def p(self) -> Mapping[str, float]:
        """Corrected p of the test that is shown, by method."""
        return self.corrected[self.test]

    def fields(self, method: str) -> tuple[str, str]:
        rank, p = self.ranks.get(method), self.p.get(method)
        text = "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"
        if self.verdict and p is not None:
            text += f"/{int(p < LEVEL)}"
        return "" if rank is None else f"{rank:.1f}", text

    @property
    def columns(self) -> tuple[str, str]:
        return "rank", f"{'p/h' if self.verdict else 'p'} ({self.reference})"

    def raw_fields(self, method: str) -> list[float | None]:
        """Return the rank, then every test's p as it is and corrected."""
        values = (p.get(method) for t in TESTS for p in (self.raw[t], self.corrected[t]))
        return [self.ranks.get(method), *values]

    @property
    def raw_columns(self) -> list[str]:
        tests = (f"{test} {kind} ({self.reference})" for test in TESTS for kind in ("p", "Holm p"))
        return ["rank", *tests]

    @property
    def notes(self) -> list[str]:
        h = f"; h = 1 where this p is below {LEVEL}" if self.verdict else ""
        normal = f" up to {EXACT} of them and normal beyond" if self.pairs > EXACT else ""
        exact = f", exact{normal} with mean ranks for ties and without differences of 0"
        exact = exact if self.test == "wilcoxon" else ""
        p = (
            f"p: {TESTS[self.test][0]} against {self.reference} on {self.pairs} pairs (target, "
            f"seed), two-sided{exact}, Holm-corrected over the methods{h}; seeds of one target "
            "share its examples, so p measures consistency over these targets and says nothing of "
            "others"
        )
        if not any(self.raw.values()):
            p = f"p: none, since no two methods, {self.reference} one of them, have all "
            p += f"{self.pairs} pairs (target, seed)"
        rank = "rank: mean over targets of the rank of the mean over seeds, 1 is best"
        lines = [rank, self.ranking.note, p]
        return [line for line in lines if line]


def compare(
    figures: Figures,
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    reference: str,
    lower: bool = False,
    test: str = "wilcoxon",
    verdict: bool = False,
) -> Comparison:
    """Rank the methods that have every figure, and test each against the reference.

    Args:
        figures: One per (method, task, seed), where there is one.
        methods: The methods to compare.
        tasks: The tasks that count.
        seeds: The seeds that count.
        reference: The method that the others are tested against.
        lower: Whether less is better.
        test: The test that is shown, a name in `TESTS`.
        verdict: Whether h follows p.
    """
    check_known("method to compare with", methods, reference)
    choice("test", test, tuple(TESTS))
    keys = [(t, s) for t in tasks for s in seeds]
    complete = [m for m in methods if all((m, *key) in figures for key in keys)]
    # Rounded: ties matter, and equal means and differences may differ in their last bits.
    means = ((m, [mean([figures[m, t, s] for s in seeds]) for t in tasks]) for m in complete)
    rows = {method: [round(x, 12) for x in row] for method, row in means}
    others = [m for m in complete if m != reference] if reference in complete else []
    pairs = {m: [round(figures[m, *k] - figures[reference, *k], 12) for k in keys] for m in others}
    raw, corrected = {}, {}
    for name, (_, call) in TESTS.items():
        raw[name] = {m: p for m, row in pairs.items() if (p := call(row)) is not None}
        corrected[name] = dict(zip(raw[name], holm(list(raw[name].values())), strict=True))
    return Comparison(reference, rank(rows, lower), raw, corrected, len(keys), test, verdict)
