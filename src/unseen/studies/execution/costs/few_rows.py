"""What a measurement on a few rows says about all of them."""

import math
from dataclasses import replace

import torch

from unseen.core import Client
from unseen.methods.recipe import Training


def line(*points: tuple[float, float]) -> tuple[float, float]:
    """Return the constant and the slope of a line through the last point, neither negative.

    Example:
        >>> line((2, 5.0), (4, 9.0)), line((2, 9.0), (4, 8.0)), line((4, 8.0))
        ((1.0, 2.0), (8.0, 0.0), (0.0, 2.0))
    """
    (x0, y0), (x, y) = ((0.0, 0.0), *points)[-2:]
    slope = min(max(0.0, (y - y0) / (x - x0)), y / x)
    return y - slope * x, slope


def amount(size: int, recipe: Training) -> tuple[int, int]:
    """Return the steps and the examples of one round of a client with `size` examples."""
    batch = recipe.batch_size
    steps = size // batch if recipe.drop_last else math.ceil(size / batch)
    examples = min(size, steps * batch)
    if recipe.epochs is not None:
        return recipe.epochs * steps, recipe.epochs * examples
    assert recipe.steps is not None  # one of the two is set
    return recipe.steps, round(recipe.steps * examples / max(1, steps))


def shortened(client: Client, rows: int, name: str) -> Client:
    """Return the client with at most `rows` rows of one split, and without the other split."""
    split = client.split(name)
    spread = torch.linspace(0, len(split) - 1, min(rows, len(split)), dtype=torch.float64)
    short = split.take(spread.round().long())
    train, validation = (short, None) if name == "train" else (None, short)
    return replace(client, train=train, validation=validation)
