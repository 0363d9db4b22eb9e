"""Small nets: linear models and perceptrons; convolutions for digits and other small images."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Literal

from torch import Tensor, nn

from unseen.data.networks.layers import Shape, named, numbered
from unseen.errors import UnseenError, number
from unseen.ranges import Count, Range


def mnist_cnn(
    shape: Shape,
    outputs: int,
    *,
    channels: Sequence[int] = (32, 64),
    hidden: Count = 128,
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
    layers = _two_convolutions("mnist-cnn", shape, outputs, channels, hidden, padding=2, smallest=4)
    return named(**({"standardise": Standardise()} if standardise else {}), **layers)


class Standardise(nn.Module):
    """(x − 0.1307) / 0.3081, mean and standard deviation of MNIST's training pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.1307) / 0.3081


def lenet(
    shape: Shape, outputs: int, *, channels: Sequence[int] = (20, 50), hidden: Count = 500
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
    name: str, shape: Shape, outputs: int, channels: Sequence[int], hidden: int,
    padding: int, smallest: int,
) -> dict[str, nn.Module]:  # fmt: skip
    depth, *sides = image(name, shape, smallest)
    whole_numbers(f"{name}(channels)", channels, count=2)
    for _ in channels:
        sides = [(side + 2 * padding - 4) // 2 for side in sides]

    def block(before: int, after: int, _: int) -> dict[str, nn.Module]:
        conv = nn.Conv2d(before, after, 5, padding=padding)
        return {"conv": conv, "relu": nn.ReLU(), "pool": nn.MaxPool2d(2)}

    layers = numbered((depth, *channels), block)
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(channels[1] * math.prod(sides), hidden)}
    return layers | {"relu3": nn.ReLU(), "head": nn.Linear(hidden, outputs)}


def domainbed_cnn(
    shape: Shape, outputs: int, *, width: Annotated[int, Range(8)] = 64
) -> nn.Sequential:
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
    if width % 8:
        raise UnseenError(f"domainbed-cnn(width) must be a multiple of 8; found {width}.")
    widths = (depth, width, 2 * width, 2 * width, 2 * width)
    return named(
        **_grouped(widths, strides=(1, 2, 1, 1)),
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(2 * width, outputs),
    )


def fedilc_cnn(shape: Shape, outputs: int) -> nn.Sequential:
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

    def block(before: int, after: int, i: int) -> dict[str, nn.Module]:
        conv = nn.Conv2d(before, after, 3, strides[i - 1], padding=1)
        pool = {"pool": nn.MaxPool2d(2)} if pooled else {}
        return {"conv": conv, "relu": nn.ReLU(), "norm": nn.GroupNorm(8, after), **pool}

    return numbered(widths, block)


def bn_cnn(shape: Shape, outputs: int, *, channels: Sequence[int] = (16, 32)) -> nn.Sequential:
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
    depth, *sides = image("bn-cnn", shape, smallest=2 ** len(channels))

    def block(a: int, b: int, _: int) -> dict[str, nn.Module]:
        conv = nn.Conv2d(a, b, 3, padding=1, bias=False)
        norm = nn.BatchNorm2d(b)
        return {"conv": conv, "norm": norm, "relu": nn.ReLU(), "pool": nn.MaxPool2d(2)}

    layers = numbered((depth, *channels), block)
    pixels = math.prod(side >> len(channels) for side in sides)
    head = nn.Linear(channels[-1] * pixels, outputs)
    return named(**layers, flatten=nn.Flatten(), head=head)


def image(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image; refuse other inputs and smaller images."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UnseenError(
            f"{name} takes images [channels, height, width] of at least {smallest} by {smallest}; "
            f"found inputs of shape {list(shape)}.",
            remedy="For inputs without an image's shape take mlp.",
        )
    return shape[0], shape[1], shape[2]


def logistic(shape: Shape, outputs: int) -> nn.Sequential:
    """Return z = W x + b: logistic under cross entropy, linear under squared error.

    Args:
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.

    Note:
        Inputs of d numbers make (d + 1) · outputs parameters.
    """
    return mlp(shape, outputs, widths=())


def mlp(
    shape: Shape,
    outputs: int,
    *,
    widths: Sequence[int] = (64, 64),
    dropout: Annotated[float, Range(0, math.nextafter(1, 0))] = 0.0,
    init: Literal["torch", "xavier"] = "torch",
    logits: Count | None = None,
    features: Literal["rectified", "linear"] = "rectified",
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
        features: "linear" leaves out the ReLU after the last hidden layer.

    Example:
        FedILC's net for Color-MNIST (392-390-390-1) is `mlp(widths=[390, 390], init='xavier',
        logits=1)`; the sigmoid belongs to the loss. Its released net for eICU (`IcuMLP`) is
        `mlp(widths=[1024, 1024, 512], init='xavier', logits=1, features='linear')`.

        >>> [name for name, _ in mlp((2, 14, 14), 1, widths=[390, 390]).named_children()]
        ['flatten', 'fc1', 'relu1', 'fc2', 'relu2', 'head']
    """
    whole_numbers("mlp(widths)", widths)
    sizes = [math.prod(shape), *widths]

    def block(before: int, after: int, _: int) -> dict[str, nn.Module]:
        drop = {"dropout": nn.Dropout(dropout)} if dropout else {}
        return {"fc": nn.Linear(before, after), "relu": nn.ReLU(), **drop}

    layers = {"flatten": nn.Flatten(), **numbered(sizes, block)}
    if features == "linear":
        layers.pop(f"relu{len(widths)}", None)
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
