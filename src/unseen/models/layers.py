"""Layers one after the other, max pooling before the ReLU in front of it; ImageNet's pixels."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from unseen.errors import UnseenError

#: Mean and standard deviation of ImageNet's training pixels in [0, 1]: red, green, blue.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Sequential(nn.Sequential):
    """torch's own, to the bit, with the ReLU in front of a max pooling taken after it.

    Note:
        The maximum of rectified numbers is the rectified maximum, and a gradient takes the same
        path, so nothing changes but that three quarters of the numbers need no ReLU: a tenth of a
        training step of LeNet. Where a hook reads either layer, they run in their order.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        layers = list(self)
        i = 0
        while i < len(layers):
            first, second = layers[i], layers[i + 1] if i + 1 < len(layers) else None
            if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and _unseen(first, second):
                x = first(second(x))
                i += 2
            else:
                x = first(x)
                i += 1
        return x


class Standardise(nn.Module):
    """(x − mean) / deviation by band, those of ImageNet's pixels, as torchvision's weights expect.

    Nothing of it is in the state dict.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised images [N, 3, H, W]."""
        mean, deviation = (x.new_tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return (x - mean) / deviation


def standardising(net: str, bands: int, wanted: bool) -> dict[str, nn.Module]:
    """Return the layer under its name if it is wanted, which takes a net of three bands."""
    if wanted and bands != 3:
        raise UnseenError(
            f"{net}(standardise=True) takes images of three bands, red, green and blue; found "
            f"{bands}.",
            remedy="Leave it out.",
        )
    return {"standardise": Standardise()} if wanted else {}


def named(**layers: nn.Module) -> Sequential:
    """Chain layers one after the other, by their names."""
    return Sequential(OrderedDict(layers))


def _unseen(*layers: nn.Module) -> bool:
    """Whether no hook reads the layers' inputs, outputs or gradients."""
    return not any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in layers
    )
