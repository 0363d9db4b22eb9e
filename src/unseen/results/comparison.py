"""Every method against one of them: ranks, and paired tests corrected for their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unseen.errors import choice, nearest
from unseen.results.paired import EXACT, holm, t_test, wilcoxon
from unseen.results.ranking import Ranking, rank
from unseen.results.statistics import mean

#: One figure per (method, task, seed).
Figures = Mapping[tuple[str, str, int], float]
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Two more columns of a table.

    ranking: mean ranks over targets of the means over seeds. raw, corrected: test -> method -> p of
    the test against `reference`, as it is and after Holm's correction. Methods that lack a figure,
    and the reference itself, have none. pairs: how many each test has. test: the one that is shown.
    verdict: with h, which is 1 where the corrected p is below 0.05.
    """

    reference: str
    ranking: Ranking
    raw: Mapping[str, Mapping[str, float]]
    corrected: Mapping[str, Mapping[str, float]]
    pairs: int
    test: str = "wilcoxon"
    verdict: bool = False

    @property
    def ranks(self) -> Mapping[str, float]:
        """Mean rank of each method that has every figure, 1 for the best."""
        return self.ranking.ranks

    @property
    def p(self) -> Mapping[str, float]:
        """Corrected p of the test that is shown, by method."""
        return self.corrected[self.test]

    def fields(self, method: str) -> tuple[str, str]:
        """Rank and p as they are shown."""
        rank, p = self.ranks.get(method), self.p.get(method)
        shown = "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"
        if self.verdict and p is not None:
            shown += f"/{int(p < LEVEL)}"
        return "" if rank is None else f"{rank:.1f}", shown

    @property
    def columns(self) -> tuple[str, str]:
        """The columns' names."""
        return "rank", f"{'p/h' if self.verdict else 'p'} ({self.reference})"

    def raw_fields(self, method: str) -> list[float | None]:
        """Rank, then every test's p as it is and corrected."""
        found = [x for test in TESTS for x in (self.raw[test], self.corrected[test])]
        return [self.ranks.get(method), *(p.get(method) for p in found)]

    @property
    def raw_columns(self) -> list[str]:
        """The names of `raw_fields`."""
        kinds = [f"{test} {kind}" for test in TESTS for kind in ("p", "Holm p")]
        return ["rank", *(f"{kind} ({self.reference})" for kind in kinds)]

    @property
    def notes(self) -> list[str]:
        """What the columns are."""
        h = f"; h = 1 where this p is below {LEVEL}" if self.verdict else ""
        lines = [
            "rank: mean over targets of the rank of the mean over seeds, 1 is best",
            self.ranking.note,
            f"p: {NAMES[self.test]} against {self.reference} on {self.pairs} pairs (target, seed), "
            f"two-sided{self._exact}, Holm-corrected over the methods{h}; seeds of one target "
            "share its examples, so p measures consistency over these targets and says nothing of "
            "others",
        ]
        return [line for line in lines if line]

    @property
    def _exact(self) -> str:
        """Where Wilcoxon's p is from, in words."""
        if self.test != "wilcoxon":
            return ""
        normal = f" up to {EXACT} of them and normal beyond" if self.pairs > EXACT else ""
        return f", exact{normal} with mean ranks for ties and without differences of 0"


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
    """Rank the methods that have every figure, and test each against the reference."""
    if reference not in methods:
        raise nearest("method to compare with", reference, methods)
    choice("test", test, tuple(TESTS))
    keys = [(t, s) for t in tasks for s in seeds]
    complete = [m for m in methods if all((m, *key) in figures for key in keys)]
    # Rounded, since equal means and differences of shares may differ in their last bits, and ties
    # matter.
    rows = {
        m: [round(mean([figures[m, t, s] for s in seeds]), 12) for t in tasks] for m in complete
    }
    others = [m for m in complete if m != reference] if reference in complete else []
    pairs = {m: [round(figures[m, *k] - figures[reference, *k], 12) for k in keys] for m in others}
    raw = {name: _each(call, pairs) for name, call in TESTS.items()}
    corrected = {
        name: dict(zip(found, holm(list(found.values())), strict=True))
        for name, found in raw.items()
    }
    return Comparison(reference, rank(rows, lower), raw, corrected, len(keys), test, verdict)


#: What differences can be tested by: name -> (differences) -> p, None where undefined.
TESTS: dict[str, Callable[[Sequence[float]], float | None]] = {"wilcoxon": wilcoxon, "t": t_test}
NAMES = {"wilcoxon": "Wilcoxon's signed-rank test", "t": "paired t-test"}


def _each(
    test: Callable[[Sequence[float]], float | None], pairs: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    return {m: p for m, found in pairs.items() if (p := test(found)) is not None}
