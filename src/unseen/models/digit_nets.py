"""Small convolutional nets for digits and other small images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from unseen.errors import UnseenError, number
from unseen.models.layers import named
from unseen.models.linear import whole_numbers


def mnist_cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
    standardise: bool = False,
) -> nn.Sequential:
    """Two 5×5 convolutions that keep the size, with ReLU and 2×2 max pooling, two linear layers.

    Inputs of 4×4 and larger.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        channels: Of the two convolutions.
        hidden: Width of the first linear layer.
        standardise: Subtract the mean of MNIST's pixels and divide by their deviation.

    Source:
        CSAC (Yuan et al.), "standard MNIST CNN architecture with two convolution layers and two
        fully-connected layers". It states neither widths nor kernels: they are chosen here.
        channels=[10, 20], hidden=50, standardise=True are those of PyTorch's own MNIST example of
        its day, which also trains with SGD(0.01, momentum 0.5) in batches of 64.
    """
    first = {"standardise": Standardise()} if standardise else {}
    layers = _two_convolutions("mnist-cnn", shape, outputs, channels, hidden, padding=2, smallest=4)
    return named(**first, **layers)


class Standardise(nn.Module):
    """(x − 0.1307) / 0.3081, mean and standard deviation of MNIST's training pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised images."""
        return (x - 0.1307) / 0.3081


def lenet(
    shape: tuple[int, ...],
    outputs: int,
    *,
    channels: Sequence[int] = (20, 50),
    hidden: int = 500,
) -> nn.Sequential:
    """LeNet in the widths of Caffe's example, for inputs of 16×16 and larger.

    5×5 convolutions without padding, 20 and 50 channels, 2×2 max pooling, 500 hidden units.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        channels: Of the two convolutions.
        hidden: Number of hidden units.

    Departs from:
        Caffe's, which has a ReLU after fc1 only: here after every layer but the head.
    """
    return named(**_two_convolutions("lenet", shape, outputs, channels, hidden, 0, smallest=16))


def _two_convolutions(
    name: str, shape: tuple[int, ...], outputs: int, channels: Sequence[int], hidden: int,
    padding: int, smallest: int,
) -> dict[str, nn.Module]:  # fmt: skip
    depth, *sides = image(name, shape, smallest)
    whole_numbers(f"{name}(channels)", channels, count=2)
    number(f"{name}(hidden)", hidden, 1, whole=True)
    a, b = channels
    for _ in channels:
        sides = [(side + 2 * padding - 4) // 2 for side in sides]
    return {
        "conv1": nn.Conv2d(depth, a, 5, padding=padding),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(a, b, 5, padding=padding),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(b * math.prod(sides), hidden),
        "relu3": nn.ReLU(),
        "head": nn.Linear(hidden, outputs),
    }


def domainbed_cnn(shape: tuple[int, ...], outputs: int, *, width: int = 64) -> nn.Sequential:
    """DomainBed's MNIST_CNN, for any image size.

    Four 3×3 convolutions, the second with stride 2, each followed by ReLU and then GroupNorm(8);
    the mean over the image; a linear head.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        width: Channels of the first convolution, twice as many in the others; a multiple of 8.

    Note:
        With width 64, one input channel and ten classes: 371 850 parameters.

    Source:
        Gulrajani and Lopez-Paz 2021, as in their `domainbed/networks.py`.
    """
    depth, _, _ = image("domainbed-cnn", shape, smallest=1)
    number("domainbed-cnn(width)", width, 8, whole=True)
    if width % 8:
        raise UnseenError(f"domainbed-cnn(width) must be a multiple of 8; found {width}.")
    widths = (depth, width, 2 * width, 2 * width, 2 * width)
    return named(
        **_grouped(widths, strides=(1, 2, 1, 1)),
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(2 * width, outputs),
    )


def fedilc_cnn(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """FedILC's CifarCNN, for inputs of 14×14 and larger.

    3×3 convolutions to 64, 128 (stride 2) and 128 channels, each followed by ReLU, GroupNorm(8) and
    2×2 max pooling; a linear layer to 128 with no ReLU after it; a linear head.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.

    Note:
        With three channels and ten classes: 241 674 parameters at 16×16, where one pixel is left of
        the image, and 290 826 at 32×32, where four are.

    Source:
        Zhu et al. 2022, §5.1.2, "a 3-layer CNN"; the layers are those of the released `model.py`.

    Departs from:
        That code in the side of the image: its first linear layer takes the 128 features of 16×16
        images, which the released loader makes of CIFAR-10, and no others.
    """
    depth, *sides = image("fedilc-cnn", shape, smallest=14)
    sides = [(side // 2 + 1) // 8 for side in sides]  # a pooling, a stride of 2, two poolings
    return named(
        **_grouped((depth, 64, 128, 128), strides=(1, 2, 1), pooled=True),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128 * math.prod(sides), 128),
        head=nn.Linear(128, outputs),
    )


def _grouped(
    widths: Sequence[int], strides: Sequence[int], pooled: bool = False
) -> dict[str, nn.Module]:
    """3×3 convolutions, each with ReLU and GroupNorm(8), and 2×2 max pooling if pooled."""
    layers: dict[str, nn.Module] = {}
    for i, (before, after) in enumerate(pairwise(widths), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, strides[i - 1], padding=1)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"norm{i}"] = nn.GroupNorm(8, after)
        if pooled:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
    return layers


def bn_cnn(
    shape: tuple[int, ...], outputs: int, *, channels: Sequence[int] = (16, 32)
) -> nn.Sequential:
    """3×3 convolutions, each with BatchNorm, ReLU and 2×2 max pooling, and a linear head.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        channels: Of each convolution, in order; each halves the image, which is at least 2^n wide
            for n of them.

    Note:
        With two of them the smallest net on which the ways of treating BatchNorm's statistics
        differ. The convolutions have no bias, since BatchNorm subtracts it. With [16, 32, 64, 128],
        three input channels, 64×64 images and seven classes: 112 023 parameters.
    """
    whole_numbers("bn-cnn(channels)", channels)
    if not channels:
        raise UnseenError("bn-cnn(channels) needs at least one convolution; found none.")
    depth, height, width = image("bn-cnn", shape, smallest=2 ** len(channels))
    layers: dict[str, nn.Module] = {}
    for i, (a, b) in enumerate(pairwise((depth, *channels)), start=1):
        layers[f"conv{i}"] = nn.Conv2d(a, b, 3, padding=1, bias=False)
        layers[f"norm{i}"] = nn.BatchNorm2d(b)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        height, width = height // 2, width // 2
    head = nn.Linear(channels[-1] * height * width, outputs)
    return named(**layers, flatten=nn.Flatten(), head=head)


def image(name: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image; refuse other inputs and smaller images."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UnseenError(
            f"{name} takes images [channels, height, width] of at least {smallest} by {smallest}; "
            f"found inputs of shape {list(shape)}.",
            remedy="For inputs without an image's shape take mlp.",
        )
    return shape[0], shape[1], shape[2]
