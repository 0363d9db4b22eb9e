"""Layers in a chain, max pooling before the ReLU in front of it; ImageNet's pixels; heads."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from unseen.errors import UnseenError

#: Of one input, without the batch.
Shape = tuple[int, ...]
#: Mean and standard deviation of ImageNet's training pixels in [0, 1]: red, green, blue.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: Mean of the pixels from 0 to 255 that CNTK's ResNet-18 was trained on: red, green, blue.
GREY = (123.15, 115.90, 103.06)


class Sequential(nn.Sequential):
    """torch's own, to the bit, with the ReLU in front of a max pooling taken after it.

    Note:
        The maximum of rectified numbers is the rectified maximum, and a gradient takes the same
        path, so nothing changes but that three quarters of the numbers need no ReLU: a tenth of a
        training step of LeNet. Where a hook reads either layer, they run in their order.
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)[::-1]
        while layers:
            layer = layers.pop()
            following = type(layers[-1]) if layers else None
            if type(layer) is nn.ReLU and following is nn.MaxPool2d and _unseen(layer, layers[-1]):
                x = layers.pop()(x)
            x = layer(x)
        return x


class Standardise(nn.Module):
    """(x − mean) / deviation by band, those of ImageNet's pixels, as torchvision's weights expect.

    Nothing of it is in the state dict.
    """

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = (x.new_tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return (x - mean) / deviation


class Grey(nn.Module):
    """255 x less the mean of ImageNet's pixels by band, as CNTK's weights expect; not divided.

    Nothing of it is in the state dict.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        if bands != 3:
            raise UnseenError(
                f"weights='imagenet' takes three bands, red, green and blue; found {bands}.",
                remedy="Leave it out.",
            )

    def forward(self, x: Tensor) -> Tensor:
        return 255 * x - x.new_tensor(GREY)[:, None, None]


def standardising(net: str, bands: int, apply: bool) -> dict[str, nn.Module]:
    """Return the layer under its name if it is wanted, which takes a net of three bands."""
    if apply and bands != 3:
        what = f"{net}(standardise=True) takes three bands, red, green and blue; found {bands}."
        raise UnseenError(what, remedy="Leave it out.")
    return {"standardise": Standardise()} if apply else {}


def named(**layers: nn.Module) -> Sequential:
    """Chain layers one after the other, by their names."""
    return Sequential(OrderedDict(layers))


def numbered(
    widths: Sequence[int], block: Callable[[int, int, int], dict[str, nn.Module]]
) -> dict[str, nn.Module]:
    """Return the layers of `block(before, after, i)` between neighbouring widths, i from 1 on.

    Their names end with i.
    """
    pairs = enumerate(pairwise(widths), start=1)
    blocks = ((i, block(before, after, i)) for i, (before, after) in pairs)
    return {f"{name}{i}": layer for i, layers in blocks for name, layer in layers.items()}


def around_head(network: nn.Module, wrap: Callable[[nn.Linear], nn.Module], what: str) -> nn.Module:
    """Return the network with its last linear layer replaced by what `wrap` makes of it.

    Args:
        network: The network, which is changed.
        wrap: Makes the layer that stands in its place.
        what: Who asks for it and why, for the message, as in "fedsr encodes what enters".

    Raises:
        UnseenError: It has none.
    """
    linear = [(n, m) for n, m in network.named_modules() if type(m) is nn.Linear]
    if not linear:
        why = f"{what} the last linear layer, and the model has none."
        raise UnseenError(why, remedy="Take a model that ends in one.")
    name, head = linear[-1]
    if not name:
        return wrap(head)
    above, _, last = name.rpartition(".")
    setattr(network.get_submodule(above), last, wrap(head))
    return network


def _unseen(*layers: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(layer, kind) for layer in layers for kind in kinds)
