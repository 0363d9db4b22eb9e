"""Linear models and multi-layer perceptrons, on the flattened input."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from unseen.errors import UnseenError, choice, number


def logistic(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Return z = W x + b: logistic under cross entropy, linear under squared error.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.

    Note:
        Inputs of d numbers make (d + 1) · outputs parameters.
    """
    return mlp(shape, outputs, widths=())


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    *,
    widths: Sequence[int] = (64, 64),
    dropout: float = 0.0,
    init: Literal["torch", "xavier"] = "torch",
    logits: int | None = None,
) -> nn.Sequential:
    """A perceptron with ReLU after every hidden layer: fc1, fc2, ..., head.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        widths: Of the hidden layers.
        dropout: Probability in [0, 1) of dropping a hidden unit.
        init: torch's own, or "xavier": Glorot's uniform weights and zero biases.
        logits: Number of outputs (default: one per class); 1 separates two classes by the logit of
            class 1.

    Example:
        FedILC's net for Color-MNIST (392-390-390-1) is `mlp(widths=[390, 390], init='xavier',
        logits=1)`; the sigmoid belongs to the loss.

        >>> [name for name, _ in mlp((2, 14, 14), 1, widths=[390, 390]).named_children()]
        ['flatten', 'fc1', 'relu1', 'fc2', 'relu2', 'head']
    """
    whole_numbers("mlp(widths)", widths)
    number("mlp(dropout)", dropout, 0, math.nextafter(1, 0))
    choice("mlp(init)", init, ("torch", "xavier"))
    if logits is not None:
        number("mlp(logits)", logits, 1, whole=True)
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    sizes = [math.prod(shape), *widths]
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        layers[f"fc{i}"] = nn.Linear(before, after)
        layers[f"relu{i}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
    layers["head"] = nn.Linear(sizes[-1], outputs if logits is None else logits)
    for layer in layers.values():
        if init == "xavier" and isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(OrderedDict(layers))


def whole_numbers(name: str, values: Sequence[int], count: int | None = None) -> None:
    """Refuse what is not a list of positive integers, of length `count` unless that is None."""
    if not isinstance(values, list | tuple) or count not in (None, len(values)):
        many = "a list of" if count is None else f"a list of {count}"
        raise UnseenError(f"{name} must be {many} positive integers; found {values!r}.")
    for i, value in enumerate(values):
        number(f"{name}[{i}]", value, 1, whole=True)
