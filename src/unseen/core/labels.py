"""What examples are labelled by: a class each, a number each, or a mask of classes per image."""

from typing import Literal

import torch
from torch import Tensor

#: Classes [N] int64, numbers [N] float32, or masks [N, H, W] int64, a class for each pixel.
Kind = Literal["classes", "numbers", "masks"]
#: The code of a pixel that no loss and no metric counts.
IGNORED = -1


def kind_of(classes: object, masks: bool) -> Kind:
    """Return the kind of labels.

    Args:
        classes: Names or number of the classes; None for numbers.
        masks: Whether every pixel has a class.
    """
    if classes is None:
        return "numbers"
    return "masks" if masks else "classes"


def are_masks(y: Tensor) -> bool:
    """Return whether labels are masks [N, H, W], which is all that a batch says of its kind."""
    return y.ndim == 3


def shares(y: Tensor, classes: int) -> Tensor:
    """Return the share [C] of each class among labels, pixels that are ignored left out.

    Example:
        >>> shares(torch.tensor([[[0, 1], [IGNORED, 1]]]), 3).tolist()
        [0.3333333333333333, 0.6666666666666666, 0.0]
    """
    counts = torch.bincount(y[y != IGNORED].flatten(), minlength=classes).double()
    return counts / counts.sum().clamp(min=1)
