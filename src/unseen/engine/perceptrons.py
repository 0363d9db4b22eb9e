"""Perceptrons in closed form: M of them forward and backward by batched matrix products.

For nets of a few thousand weights the calls of automatic differentiation cost more than the
arithmetic. A `Chain` is such a net without them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.losses import CrossEntropy, Loss, SquaredError
from unseen.data.networks.stages import Staged

Views = Mapping[str, Tensor]
#: Columns of a result that fill a register.
NARROW = 16


@dataclass(frozen=True)
class Layer:
    """z = W h + b, and max(z, 0) where there is a ReLU behind it.

    Attributes:
        weight: The name of W.
        bias: The name of b; None without one.
        rectified: Whether a ReLU follows.
    """

    weight: str
    bias: str | None
    rectified: bool = False


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
        if any("forward" in vars(part) for part in module.modules()):
            return None
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
            elif not (isinstance(part, nn.Flatten) and not layers and part.start_dim == 1):
                return None
        return cls(tuple(layers)) if layers else None

    def forward(self, views: Views, x: Tensor) -> list[Tensor]:
        """Return what enters each layer, and the logits at the end.

        Args:
            views: Name -> the tensors of all M models [M, ...].
            x: Their inputs [M, B, ...].

        Returns:
            Tensors [M, B, D], one more than there are layers.
        """
        values = [x.flatten(2)]
        for layer in self.layers:
            z = product(values[-1], views[layer.weight].mT)
            if layer.bias is not None:
                z += views[layer.bias].unsqueeze(1)
            values.append(z.relu_() if layer.rectified else z)
        return values

    def backward(
        self, views: Views, values: list[Tensor], derivative: Tensor, gradients: Views
    ) -> None:
        """Write the gradients of all M models.

        Args:
            views: As `forward` takes them.
            values: What `forward` returned.
            derivative: That of the summed losses by the logits [M, B, C].
            gradients: Where they are written, by name [M, ...].
        """
        for i in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[i]
            if layer.rectified:
                derivative = torch.ops.aten.threshold_backward(derivative, values[i + 1], 0)
            gradients[layer.weight].copy_(product(derivative.mT, values[i]))
            if layer.bias is not None:
                torch.sum(derivative, 1, out=gradients[layer.bias])
            if i:
                derivative = product(derivative, views[layer.weight])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the products a b of M pairs of matrices [M, I, K] and [M, K, J].

    Note:
        Results of fewer than sixteen columns take several times as long as their transposes.
    """
    if b.shape[-1] < min(NARROW, a.shape[1]):
        return torch.bmm(b.mT, a.mT).mT.contiguous()
    return torch.bmm(a, b)


def targets(y: Tensor, loss: Loss, outputs: int) -> Tensor:
    """Return what outputs [..., C] should be: shares of classes after smoothing, or numbers."""
    if isinstance(loss, SquaredError):
        return y.unsqueeze(-1)
    assert isinstance(loss, CrossEntropy)  # `stackable` admits no other
    if outputs == 1:
        return (y.to(torch.float32) * (1 - loss.smoothing) + loss.smoothing / 2).unsqueeze(-1)
    shares = F.one_hot(y, outputs).to(torch.float32)
    return shares * (1 - loss.smoothing) + loss.smoothing / outputs if loss.smoothing else shares


def with_residual(loss: Loss, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of every example [M, B], and its derivative by the outputs [M, B, C].

    Note:
        Written out, the softmax of a few classes is several times as fast as torch's on a CPU.
    """
    if isinstance(loss, SquaredError):
        return (outputs - target).square().squeeze(-1), 2 * (outputs - target)
    if outputs.shape[-1] == 1:
        each = F.binary_cross_entropy_with_logits(outputs, target, reduction="none")
        return each.squeeze(-1), outputs.sigmoid() - target
    logits = outputs - outputs.amax(-1, keepdim=True)
    shares = logits.exp()
    total = shares.sum(-1, keepdim=True)
    each = total.log().squeeze(-1) - (logits * target).sum(-1)  # targets sum to 1
    return each, shares.div_(total).sub_(target)
