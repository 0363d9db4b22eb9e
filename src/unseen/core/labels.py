"""What examples are labelled by: a class each, a number each, or a mask of classes per image."""

from typing import Literal

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
