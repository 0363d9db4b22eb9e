"""When a job has trained for long enough: the sources' loss has stopped falling."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from unseen.core.record_lines import Record
from unseen.studies.results.statistics import mean

#: By which share of itself a loss must fall to count as falling.
FALL = 1e-3


def source_losses(records: Iterable[Record]) -> dict[int, float]:
    """Return round -> the mean over the sources of the validation loss, where it is defined."""
    losses: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record["role"] == "source" and record.get("loss") is not None:
            losses[record["round"]].append(record["loss"])
    return {round: mean(values) for round, values in losses.items()}


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
