"""What examples are labelled by: a class, a number, a mask of classes, or a time until an event."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Classes [N] int64; numbers [N], or times and events [N, 2], of the type of `exact_numbers`;
#: or masks [N, H, W] int64 of a class for each pixel.
Kind = Literal["classes", "numbers", "masks", "times"]
#: The share of the labels' deviation that float32 may round away.
CUT = 1e-5
#: The code of a pixel that no loss and no metric counts.
IGNORED = -1
#: Red, green and blue of the classes: background, then Okabe and Ito's colours again and again.
COLOURS = (
    (0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178),
    (213, 94, 0), (204, 121, 167),
)  # fmt: skip


def kind_of(classes: object, masks: bool, times: bool = False) -> Kind:
    """Return the kind of labels.

    Args:
        classes: Names or number of the classes; None for numbers and times.
        masks: Whether every pixel has a class.
        times: Whether labels are times until an event.
    """
    if classes is None:
        return "times" if times else "numbers"
    return "masks" if masks else "classes"


def exact_numbers(values: Sequence[float | Sequence[float]] | NDArray[np.float64]) -> Tensor:
    """Return labels [N] or [N, 2] in float32, or in float64 where float32 would cut their spread.

    It does where numbers are far from 0 and near one another, such as times since 1970.

    Example:
        >>> exact_numbers([0.1, 7.0]).dtype, exact_numbers([1e12, 1e12 + 1]).dtype
        (torch.float32, torch.float64)
    """
    whole = torch.tensor(values, dtype=torch.float64)
    short = whole.float()
    loss = (short.double() - whole).abs()
    spread = whole.std(dim=0, correction=0) if len(whole) else whole.sum(0)
    return whole if bool((loss > CUT * spread).any()) else short


def are_masks(y: Tensor) -> bool:
    """Return whether labels are masks [N, H, W], which is all that a batch says of its kind."""
    return y.ndim == 3


def are_times(y: Tensor) -> bool:
    """Return whether labels are times and events [N, 2]."""
    return y.ndim == 2


def colour(code: int) -> tuple[int, int, int]:
    """Return the colour in which a class is shown."""
    return COLOURS[0] if code == 0 else COLOURS[1 + (code - 1) % (len(COLOURS) - 1)]
