"""Whether sums that a site sends of trees and linear models can be those of any rows."""

from torch import Tensor

from unseen.methods.exact.boosted_views import GRID
from unseen.methods.exact.boosting import Counts
from unseen.methods.exact.histograms import Histograms
from unseen.methods.exact.newton import Derivatives
from unseen.methods.exact.random_counts import LeftOfCuts

#: What sends such sums.
Sender = Counts | Derivatives | Histograms | LeftOfCuts
#: Rounding of sums.
NEAR = 1e-6


def senseless(sender: Sender, row: Tensor, most: int | None) -> str | None:
    """Return why no rows have these sums, or None.

    Args:
        sender: What made them.
        row: The sums [P], finite.
        most: How many rows there can be; None where that is not known.
    """
    row = row.double()
    counts = row[:0]
    if isinstance(sender, Counts):
        fault, counts = _of_counts(sender, row)
        if fault:
            return fault
    elif isinstance(sender, LeftOfCuts) and sender.sizes.classes is not None:
        if bool((row % 1 != 0).any()):
            return "counts that are not whole numbers"
        counts = row.view(-1, sender.sizes.sums).sum(1)
        if bool((row < 0).any()):
            return "counts below 0"
    elif isinstance(sender, LeftOfCuts):
        counts = row.view(-1, 2)[:, 0]
    elif isinstance(sender, Histograms):
        parts = row.view(sender.forest.scores, -1, sender.forest.inputs, sender.forest.bins, 3)
        totals = parts.sum(3)
        if bool((parts[..., 1:] < -NEAR).any()):
            return "rows or second derivatives below 0"
        if bool(((totals - totals[:, :, :1]).abs() > NEAR * (1 + totals.abs())).any()):
            return "sums that differ from column to column"
        counts = totals[:, :, 0, 2].sum(1)
    elif float(row[0]) < 0 or bool((_diagonal(sender, row) < 0).any()):
        return "a loss or second derivatives below 0"
    if len(counts) and float(counts.min()) < -NEAR:
        return "counts below 0"
    if most is not None and len(counts) and float(counts.max()) > most + NEAR:
        return f"sums over {float(counts.max()):g} rows, and it said that it has {most}"
    return None


def _of_counts(sender: Counts, row: Tensor) -> tuple[str | None, Tensor]:
    """Return the fault of counts of cells, and every number of rows that they state."""
    cells = (len(row) - 1 - (sender.classes or 1)) // (GRID + 1) * (GRID + 1)
    columns, total = row[:cells].view(-1, GRID + 1).sum(1), row[cells : cells + 1]
    labels = row[cells + 1 :] if sender.classes is not None else row[:0]
    whole = [row[: cells + 1], labels]
    if any(bool(((part < 0) | (part % 1 != 0)).any()) for part in whole):
        return "counts that are not whole numbers from 0 on", total
    sums = [*columns.tolist(), *([float(labels.sum())] if len(labels) else [])]
    if any(own != float(total) for own in sums):
        return "counts that add up to other numbers of rows from column to column", total
    return None, total


def _diagonal(sender: Derivatives, row: Tensor) -> Tensor:
    """Return the second derivatives in each coefficient [q]."""
    q = sender.shape.free
    upper, places = row[1 + q :], [i * q - i * (i - 1) // 2 for i in range(q)]
    return upper[places]
