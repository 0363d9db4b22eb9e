"""The head of a net, its last linear layer: what goes in, and other heads in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core import Model
from unseen.core.losses import LossFunction
from unseen.errors import UnseenError


def head_layer(model: Model, name: str | None = None) -> tuple[str, nn.Linear]:
    """Return the linear layer called `name`, by default the last in the order of the modules."""
    linear = {n: m for n, m in model.module.named_modules() if type(m) is nn.Linear}
    head = name if name is not None else next(reversed(linear), "")
    if head not in linear:
        raise UnseenError(
            f"the head must be a linear layer of the model; found {name or 'none'!r}. "
            f"Its linear layers: {', '.join(linear) or 'none'}."
        )
    return head, linear[head]


@dataclass(frozen=True)
class Head:
    """A net's head: z = W f + b, whose weights lie in `part` of the model's vector.

    Flat it is a row [Ph], W before b, with Ph = o (i + 1), or o i without a bias.
    """

    name: str
    layer: nn.Linear
    part: slice

    @classmethod
    def of(cls, model: Model, name: str | None = None) -> Head:
        """Return the head of a model; refuse one that is not trained as a whole."""
        name, layer = head_layer(model, name)
        # A net that is nothing but its head has no name for it.
        part = model.layout.part(name) if name else slice(0, model.layout.size)
        expected = sum(p.numel() for p in layer.parameters(recurse=False))
        if part.stop - part.start != expected:
            raise UnseenError(
                f"the head {name!r} must be trained as a whole: it has {expected} weights and "
                f"biases, of which {part.stop - part.start} are the model's to train under that "
                "name.",
                remedy="Thaw it, untie it from other layers, or name another head.",
            )
        return cls(name, layer, part)

    def run(self, model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features f [N, i] and outputs z [N, o] of one pass through the whole net."""
        passes: list[tuple[Tensor, Tensor]] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            passes.append((inputs[0], output))

        with self.layer.register_forward_hook(keep):
            outputs = model(x)
        # In bfloat16 the model gives its outputs in its parameters' type: a copy.
        output = passes[0][1].to(outputs.dtype) if len(passes) == 1 else None
        same = output is outputs or (
            model.precision != "float32"
            and output is not None
            and output.shape == outputs.shape
            and torch.allclose(output, outputs, rtol=0, atol=0, equal_nan=True)
        )
        if not same or outputs.ndim != 2:
            raise UnseenError(
                f"another head can stand in for {self.name!r} only where it runs once and its "
                f"outputs [N, o] are the model's; it ran {len(passes)} times, and the model's "
                f"outputs are of shape {list(outputs.shape)}.",
                remedy="Name the layer that gives them.",
            )
        return passes[0][0].to(outputs.dtype), outputs

    def apply(self, rows: Tensor, features: Tensor) -> Tensor:
        """Return the outputs [N, M, o] of M other heads [M, Ph] for features [N, i]."""
        o, i = self.layer.weight.shape
        weight = rows[:, : o * i].reshape(-1, i)
        bias = rows[:, o * i :].reshape(-1) if self.layer.bias is not None else None
        outputs: Tensor = F.linear(features, weight, bias).unflatten(1, (len(rows), o))
        return outputs

    def frozen(self, features: Tensor) -> Tensor:
        """Return the head's own outputs [N, o] for features [N, i]; its weights are constants."""
        bias = self.layer.bias
        weight = self.layer.weight.detach()
        return F.linear(features, weight, None if bias is None else bias.detach())

    def gradient(self, delta: Tensor, features: Tensor) -> Tensor:
        """Return the loss's gradient at the head, flat [Ph], from that at the outputs, δ [N, o].

        Note:
            (δᵀf, Σ_n δ_n): differentiable in both.
        """
        weight = (delta.T @ features).flatten()
        return weight if self.layer.bias is None else torch.cat([weight, delta.sum(0)])


def loss_of(loss: LossFunction, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return what a loss of outputs and labels makes of outputs [N, o] that are there already."""
    return loss(cast(Model, lambda _: outputs), x, y)
