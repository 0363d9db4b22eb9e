"""Whether training has come to its end: when a job may stop, and notes for a table's readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from unseen.core.record_lines import Record
from unseen.studies.results.formats import counted
from unseen.studies.results.selection import Records, Selected, levels
from unseen.studies.results.study_folder import curve

#: By which share of itself a loss must fall to count as falling.
FALL = 1e-3


def source_losses(records: Iterable[Record]) -> dict[int, float]:
    """Return round -> the mean over the sources of the validation loss, where it is defined."""
    return curve([record for record in records if record["role"] == "source"], "loss")


def is_flat(losses: Mapping[int, float], patience: int) -> bool:
    """Return whether the loss has not fallen for a number of rounds.

        min_{s > r - p} L_s > (1 - 0.001) min_{s ≤ r - p} L_s

    Args:
        losses: Round -> L, of the rounds that were evaluated; r is the last.
        patience: p.

    Example:
        >>> falling = {0: 1.0, 1: 0.8, 2: 0.7}
        >>> is_flat(falling, 2), is_flat(falling | {3: 0.71, 4: 0.6999}, 2)
        (False, True)
    """
    last = max(losses, default=0)
    before = [loss for round, loss in losses.items() if round <= last - patience]
    since = [loss for round, loss in losses.items() if round > last - patience]
    return bool(before) and min(since) > (1 - FALL) * min(before)


#: With fewer evaluated rounds nothing is said of where a curve goes.
FEWEST = 3


class Ends:
    """Counts jobs whose round is the first one, and jobs whose loss still fell in the last.

    Args:
        without: Methods that say themselves how many rounds they take.
        every: Rounds from one evaluation to the next. The first one is among the first so many:
            records that were packed begin later.
    """

    def __init__(self, without: Sequence[str] = (), every: int = 1) -> None:
        self.without, self.every = without, every
        self.jobs, self.first, self.falling = Counter[str](), Counter[str](), Counter[str]()

    def watch(self, runs: Iterable[tuple[Selected, Records]]) -> Iterator[tuple[Selected, Records]]:
        """Yield the runs with their source records, and count them."""
        for run, source in runs:
            if run.method not in self.without:
                self._count(run, source)
            yield run, source

    def _count(self, run: Selected, source: Records) -> None:
        rows = [record for record in source if record["role"] == "source" and "loss" in record]
        losses = levels(rows, "loss")
        if len(losses) < FEWEST:
            return
        self.jobs[run.method] += 1
        first, last = min(losses), max(losses)
        lowest = min(losses, key=lambda r: (losses[r], r))
        if run.round == first and first < self.every:
            self.first[run.method] += 1
        if lowest == last:
            self.falling[run.method] += 1

    def notes(self, metric: str, until_flat: bool) -> list[str]:
        """Return what a reader should know of how training ended.

        Args:
            metric: What rounds are selected by.
            until_flat: Whether training went on until the loss was flat.
        """
        lines = []
        if first := self._most(self.first):
            lines.append(
                f"selected in most jobs was the first round of {first}: by {metric} nothing "
                "that came later is better on the sources; another metric may tell more"
            )
        if not until_flat and (falling := self._most(self.falling)):
            lines.append(
                f"most jobs ended while the sources' loss was still falling: {falling}; more "
                "rounds, or rounds = 'until-flat(...)', may change the order of the methods"
            )
        return lines

    def _most(self, counts: Counter[str]) -> str:
        """Return the methods of which more than half of the jobs count."""
        return ", ".join(method for method, jobs in self.jobs.items() if 2 * counts[method] > jobs)


def lengths(rounds: Sequence[int], limit: int) -> str:
    """Return after how many rounds jobs ended, and how many of them were cut off.

    Example:
        >>> lengths([20, 35], 100), lengths([60, 100, 100], 100)
        ('20 to 35', '60 to 100 (2 of 3 jobs at the limit, flat or not)')
    """
    least, most, cut = min(rounds), max(rounds), sum(n >= limit for n in rounds)
    span = f"{least} to {most}" if most > least else f"{most}"
    return span + (
        f" ({cut} of {counted(len(rounds), 'job')} at the limit, flat or not)" * (cut > 0)
    )
