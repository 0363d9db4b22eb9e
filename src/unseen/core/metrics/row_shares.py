"""Metrics that are shares of rows, and which rows each of them is a share of."""

from collections.abc import Callable

import torch
from torch import Tensor

from unseen.core.outputs import predicted

#: Name -> which rows [N] it is a share of, by the decisions [N] and the labels [N].
SHARES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": lambda guess, y: torch.ones_like(y, dtype=torch.bool),
    "sensitivity": lambda guess, y: y == 1,
    "specificity": lambda guess, y: y == 0,
    "ppv": lambda guess, y: guess == 1,
    "npv": lambda guess, y: guess == 0,
}
#: Those of the rows of one class, or of one decision, and what is made of these by class.
OF_SOME_ROWS = (
    *(name for name in SHARES if name != "accuracy"),
    "balanced-accuracy", "f1-macro", "mcc", "auprc-of-decisions",
)  # fmt: skip


def of_few(outputs: Tensor, y: Tensor, least: int) -> bool:
    """Return whether any of `OF_SOME_ROWS` would be of too few rows of a class or a decision.

    What one of them hides, the others and the accuracy would tell.

    Args:
        outputs: The model's outputs [N, C].
        y: The labels [N].
        least: Rows that a share is of, at least, if it is of any.
    """
    if least <= 1 or y.dim() != 1 or y.is_floating_point() or not len(y):
        return False
    sizes = torch.cat([torch.bincount(codes.long()) for codes in (predicted(outputs), y)])
    return bool(((sizes > 0) & (sizes < least)).any())
