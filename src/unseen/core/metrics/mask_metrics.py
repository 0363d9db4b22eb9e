"""Metrics of masks: overlap and distance of what is predicted and what is there.

A metric is the mean over images of each image's mean over its foreground classes, those above 0.
On one image, a class that neither mask has is left out; an image without any foreground in either
has found all there is: Dice and IoU 1, distance 0. Pixels that are ignored count as background in
both masks.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from unseen.core.labels import IGNORED
from unseen.core.outputs import predicted

#: The share of distances that are at most the Hausdorff distance of that name.
PERCENT = 95


def dice(outputs: Tensor, y: Tensor) -> float:
    """Return the Dice coefficient 2 |P ∩ T| / (|P| + |T|) of predicted and true masks.

    Example:
        >>> logits = torch.tensor([[[[0.0, 0.0, 9.0]], [[5.0, 5.0, 5.0]]]])  # 1 1 0
        >>> dice(logits, torch.tensor([[[1, 0, 0]]]))
        0.6666666666666666
    """
    return float(each_dice(outputs, y).mean())


def iou(outputs: Tensor, y: Tensor) -> float:
    """Return the intersection over union |P ∩ T| / |P ∪ T| of predicted and true masks, Jaccard's.

    Example:
        >>> logits = torch.tensor([[[[0.0, 0.0, 9.0]], [[5.0, 5.0, 5.0]]]])  # 1 1 0
        >>> iou(logits, torch.tensor([[[1, 0, 0]]]))
        0.5
    """
    return float(each_iou(outputs, y).mean())


def hd95(outputs: Tensor, y: Tensor) -> float:
    """Return the 95th percentile Hausdorff distance of predicted and true borders, in pixels.

    See `hausdorff`. A class that only one of the two masks has counts as the image's diagonal, the
    farthest that two pixels can lie apart.
    """
    return float(each_hd95(outputs, y).mean())


def each_dice(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the Dice coefficient of each image [N]."""
    guess, true, both = _areas(outputs, y)
    return _mean(2 * both / (guess + true), guess + true > 0)


def each_iou(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the intersection over union of each image [N]."""
    guess, true, both = _areas(outputs, y)
    return _mean(both / (guess + true - both), guess + true > 0)


def each_hd95(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the 95th percentile Hausdorff distance of each image [N]."""
    values = []
    for guess, true in _pairs(outputs, y):
        diagonal = float(np.hypot(*(side - 1 for side in true.shape)))
        each = [_distance(guess == c, true == c, diagonal) for c in range(1, outputs.shape[1])]
        distances = [value for value in each if value is not None]
        values.append(float(np.mean(distances)) if distances else 0.0)
    return torch.tensor(values, dtype=torch.float64)


def hausdorff(guess: np.ndarray, true: np.ndarray, percent: float = 100) -> float:
    """Return the larger of both directed Hausdorff distances of two masks' borders.

        h(A, B) = percentile_a min_b ‖a − b‖ over border pixels,  H = max(h(P, T), h(T, P))

    A border pixel has one of its four neighbours outside of the mask, or the image's end. Distances
    are between the centres of pixels, and the percentile is interpolated linearly.

    Args:
        guess: A mask [H, W] of booleans that is not empty.
        true: Another.
        percent: 100 is Hausdorff's own distance.

    Source:
        Huttenlocher et al. 1993; the percentile of each direction and their maximum as in
        `surface-distance` and MONAI.

    Example:
        >>> a, b = np.zeros((2, 1, 9), bool)
        >>> a[0, 0] = b[0, 3:5] = True
        >>> hausdorff(a, b)
        4.0
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    def border(mask: np.ndarray) -> np.ndarray:
        inside: np.ndarray = binary_erosion(mask)
        edge: np.ndarray = mask & ~inside
        return edge

    first, second = border(guess), border(true)
    there = distance_transform_edt(~second)[first]
    back = distance_transform_edt(~first)[second]
    return float(max(np.percentile(there, percent), np.percentile(back, percent)))


def _distance(guess: np.ndarray, true: np.ndarray, worst: float) -> float | None:
    """Return HD95 of one class; None where neither mask has it, the worst where one has it."""
    if not guess.any() and not true.any():
        return None
    return hausdorff(guess, true, PERCENT) if guess.any() and true.any() else worst


def _pairs(outputs: Tensor, y: Tensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each image's predicted and true mask, with what is ignored as background in both."""
    for scores, truth in zip(outputs, y, strict=True):
        counted = truth != IGNORED
        guess = predicted(scores[None])[0]
        yield (
            torch.where(counted, guess, 0).cpu().numpy(),
            torch.where(counted, truth, 0).cpu().numpy(),
        )


def _areas(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return |P|, |T| and |P ∩ T| of each image and foreground class [N, C − 1]."""
    counted, guess = y != IGNORED, predicted(outputs)

    def count(member: Callable[[int], Tensor]) -> Tensor:
        areas = [(member(c) & counted).sum((1, 2)) for c in range(1, outputs.shape[1])]
        return torch.stack(areas, 1).double()

    return (
        count(lambda c: guess == c),
        count(lambda c: y == c),
        count(lambda c: (guess == c) & (y == c)),
    )


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """Return the mean [N] over the classes that are there [N, C − 1]; 1 where none is."""
    each = torch.where(there, values, 0).sum(1) / there.sum(1).clamp(min=1)
    return torch.where(there.any(1), each, 1.0)
