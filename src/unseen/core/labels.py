"""What examples are labelled by: a class each, a number each, or a mask of classes per image."""

from typing import Literal

from torch import Tensor

#: Classes [N] int64, numbers [N] float32, or masks [N, H, W] int64, a class for each pixel.
Kind = Literal["classes", "numbers", "masks"]
#: The code of a pixel that no loss and no metric counts.
IGNORED = -1
#: Red, green and blue of the classes: background, then Okabe and Ito's colours again and again.
COLOURS = (
    (0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178),
    (213, 94, 0), (204, 121, 167),
)  # fmt: skip


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


def colour(code: int) -> tuple[int, int, int]:
    """Return the colour in which a class is shown."""
    return COLOURS[0] if code == 0 else COLOURS[1 + (code - 1) % (len(COLOURS) - 1)]
