"""The worst, the middle and the best prediction of masks at a target, to be looked at."""

import torch
from torch import Tensor

from unseen.core.client import Split
from unseen.core.labels import IGNORED, colour
from unseen.core.outputs import predicted
from unseen.core.vector import Model
from unseen.metrics.evaluation import forward
from unseen.metrics.mask_metrics import each_dice
from unseen.report.pictures import Picture, Pictures, Pixels

#: The grey of pixels that do not count; the longest side of a picture in pixels.
NOT_COUNTED, LONGEST = (128, 128, 128), 96


def panel_of(title: str, model: Model, split: Split, classes: tuple[str, ...]) -> Pictures:
    """Return the images of a split that are predicted worst, in the middle and best, by Dice.

    Args:
        title: The panel's.
        model: The model.
        split: Its images and masks.
        classes: The classes' names.
    """
    outputs = forward(model, split)
    scores = each_dice(outputs, split.y)
    order = scores.argsort(stable=True).tolist()
    places = {"worst": order[0], "middle": order[len(order) // 2], "best": order[-1]}
    rows, guess = [], predicted(outputs)
    for name, i in places.items():
        x, _ = split.batch(slice(i, i + 1))
        masks = (coloured(codes, len(classes)) for codes in (split.y[i], guess[i]))
        rows.append(Picture(name, float(scores[i]), pixels_of(x[0]), *masks))
    colours = tuple((name, colour(c)) for c, name in enumerate(classes) if c)
    return Pictures(title, tuple(rows), colours)


def pixels_of(x: Tensor) -> Pixels:
    """Return an image [C, H, W] as bytes; one of other than three channels by its first, grey."""
    x = x if len(x) == 3 else x[:1].expand(3, -1, -1)
    low, high = float(x.min().clamp(max=0)), float(x.max().clamp(min=1))
    return _small(((x - low) / (high - low) * 255).round().long())


def coloured(codes: Tensor, classes: int) -> Pixels:
    """Return a mask [H, W] in its classes' colours."""
    table = torch.tensor([*(colour(c) for c in range(classes)), NOT_COUNTED])
    return _small(table[torch.where(codes == IGNORED, classes, codes)].permute(2, 0, 1))


def _small(x: Tensor) -> Pixels:
    """Return [3, H, W] as rows of pixels; of large images every second pixel, or every third."""
    step = -(-max(x.shape[1:]) // LONGEST)
    pixels: Pixels = x[:, ::step, ::step].permute(1, 2, 0).tolist()
    return pixels
