"""Perceptrons in closed form: M of them forward and backward by batched matrix products.

For nets of a few thousand weights the calls of automatic differentiation cost more than the
arithmetic. A `Chain` is such a net without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from unseen.data.networks.stages import Staged

Views = Mapping[str, Tensor]
#: Columns of a result that fill a register.
NARROW = 16


@dataclass(frozen=True)
class Layer:
    """z = W h + b, and max(z, 0) where there is a ReLU behind it, by a mask where Dropout follows.

    Attributes:
        weight: The name of W.
        bias: The name of b; None without one.
        rectified: Whether a ReLU follows.
        drops: Whether Dropout follows the ReLU.
    """

    weight: str
    bias: str | None
    rectified: bool = False
    drops: bool = False


@dataclass(frozen=True)
class Chain:
    """Linear layers one after the other.

    Attributes:
        layers: From the inputs to the logits.
    """

    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """Return the chain that a network is, or None; a head behind a frozen trunk can be one."""
        if isinstance(module, Staged):
            if (sequence := module.sequence()) is None:
                return None
            parts = [(name, part) for name, part in sequence if type(part) is not nn.Identity]
        elif isinstance(module, nn.Sequential):
            if type(module).forward is not nn.Sequential.forward:
                return None
            parts = list(zip(module._modules, module, strict=True))  # a part may come twice
        else:
            parts = [("", module)]
        own = dict(module.named_parameters())  # a tied tensor has one name
        layers: list[Layer] = []
        for name, part in parts:
            if type(part) is nn.Linear:
                names = (f"{name}.{own}".lstrip(".") for own in ("weight", "bias"))
                weight, bias = names
                if not {weight, *([bias] if part.bias is not None else [])} <= own.keys():
                    return None
                layers.append(Layer(weight, bias if part.bias is not None else None))
            elif type(part) is nn.ReLU and layers and not layers[-1].rectified:
                layers[-1] = replace(layers[-1], rectified=True)
            elif type(part) is nn.Dropout and layers and layers[-1].rectified and part.p:
                if layers[-1].drops:
                    return None
                layers[-1] = replace(layers[-1], drops=True)
            elif not (isinstance(part, nn.Flatten) and not layers and part.start_dim == 1):
                return None
        return cls(tuple(layers)) if layers else None

    @property
    def drops(self) -> bool:
        """Whether any layer drops."""
        return any(layer.drops for layer in self.layers)

    def forward(self, views: Views, x: Tensor, masks: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return what enters each layer, and the logits at the end.

        Args:
            views: Name -> the tensors of all M models [M, ...].
            x: Their inputs [M, B, ...].
            masks: What each layer that drops is multiplied by, in their order [M, B, D].

        Returns:
            Tensors [M, B, D], one more than there are layers.
        """
        values, following = [x.flatten(2)], iter(masks)
        for layer in self.layers:
            z = product(values[-1], views[layer.weight].mT)
            if layer.bias is not None:
                z += views[layer.bias].unsqueeze(1)
            if layer.rectified:
                z.relu_()
            values.append(z.mul_(next(following)) if layer.drops else z)
        return values

    def backward(
        self, views: Views, values: Sequence[Tensor], derivative: Tensor, gradients: Views,
        ahead: Tensor | None = None, masks: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        """Write the gradients of all M models.

        Args:
            views: As `forward` takes them.
            values: What `forward` returned.
            derivative: That of the summed losses by the logits [M, B, C].
            gradients: Where they are written, by name [M, ...].
            ahead: What is added to the derivative by the last layer's inputs [M, B, D].
            masks: As `forward` takes them.
        """
        last, previous = len(self.layers) - 1, iter(reversed(masks))
        for i in range(last, -1, -1):
            layer = self.layers[i]
            if layer.drops:
                derivative = derivative * next(previous)
            if layer.rectified:
                derivative = torch.ops.aten.threshold_backward(derivative, values[i + 1], 0)
            gradients[layer.weight].copy_(product(derivative.mT, values[i]))
            if layer.bias is not None:
                torch.sum(derivative, 1, out=gradients[layer.bias])
            if i:
                derivative = product(derivative, views[layer.weight])
                if i == last and ahead is not None:
                    derivative += ahead


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the products a b of M pairs of matrices [M, I, K] and [M, K, J].

    Note:
        Results of fewer than sixteen columns take several times as long as their transposes.
    """
    if b.shape[-1] < min(NARROW, a.shape[1]):
        return torch.bmm(b.mT, a.mT).mT.contiguous()
    return torch.bmm(a, b)
