"""What single examples contribute to a gradient, where possible without their gradients.

For a linear layer z = W a + b the gradient of example n is δ_n (a_n, 1)ᵀ, with δ_n = ∂loss_n/∂z_n
and b as the weights of a column of ones. Whatever is a sum over examples of products of a function
of δ and a function of a is therefore a matrix product, and no example's gradient need exist.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from unseen.core import Model
from unseen.core.losses import LossFunction
from unseen.errors import UnseenError
from unseen.methods.combine.geometric import RunningLogSums

#: Examples whose logarithms are summed in float32 before they enter a float64 sum.
SUMMED = 1024


@contextmanager
def recorded(
    layers: Mapping[str, nn.Module], examples: int
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input [N, i] and output [N, o] of each layer in one forward pass."""
    records: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Any:
        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            shape = list(inputs[0].shape)
            if name in records or len(shape) != 2 or shape[0] != examples:
                how = "is used twice" if name in records else f"has inputs of shape {shape}"
                raise UnseenError(
                    f"the layer {name!r} {how}; the gradient of one example is a single product "
                    f"only where a linear layer is used once, with inputs [{examples}, features]."
                )
            records[name] = (inputs[0], output)

        return keep

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(hook(name)))
        yield records


def linear_layers(model: Model) -> dict[str, nn.Linear]:
    """Return the model's linear layers by name, if all that is trained lies in them."""
    layers: dict[str, nn.Linear] = {}
    owned: set[int] = set()
    for name, module in model.module.named_modules():
        for part, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if type(module) is not nn.Linear or id(parameter) in owned:
                where = (
                    "is shared by two layers" if id(parameter) in owned else "is not in nn.Linear"
                )
                raise UnseenError(
                    f"{part!r} of the layer {name!r} ({type(module).__name__}) {where}: single "
                    "examples' gradients follow by algebra for linear layers only.",
                    remedy="Set chunk, for example chunk=16, to form them that many at a time, or "
                    "choose batches.",
                )
            layers[name] = module
            owned.add(id(parameter))
    return layers


def signals(loss: Tensor, outputs: list[Tensor], graph: bool = False) -> list[Tensor]:
    """Return δ [N, o] of each example at each output [N, o] of a mean loss.

    Args:
        loss: the mean loss.
        outputs: of the layers.
        graph: keep δ differentiable.

    Note:
        The loss is a mean over N examples, so that δ_n = N ∂loss/∂z_n: softmax(z) − onehot(y), or
        σ(z) − y for one logit, at the head under cross-entropy.
    """
    slopes = torch.autograd.grad(loss, outputs, create_graph=graph)
    return [delta * len(delta) for delta in slopes]


def with_ones(layer: nn.Linear, a: Tensor) -> Tensor:
    """Return inputs [N, i] with a column of ones if the layer has a bias, as [N, i + 1]."""
    return a if layer.bias is None else torch.cat([a, a.new_ones(len(a), 1)], dim=1)


def linear_signals(
    model: Model, loss: LossFunction, x: Tensor, y: Tensor
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Return the loss, and (δ [N, o], inputs [N, i] or with ones [N, i + 1]) of every linear layer.

    Note:
        In the parameters' type, whatever type the layers' products are computed in.
    """
    layers = linear_layers(model)
    with recorded(layers, len(y)) as records:
        value = loss(model, x, y)
    for name in layers.keys() - records.keys():
        raise UnseenError(f"the layer {name!r} did not run as a module in the forward pass.")
    deltas = signals(value, [output for _, output in records.values()])
    kind = model.vector.dtype
    pairs = {
        name: (delta.to(kind), with_ones(layers[name], a.detach().to(kind)))
        for (name, (a, _)), delta in zip(records.items(), deltas, strict=True)
    }
    return value.detach(), pairs


def put(model: Model, name: str, matrix: Tensor) -> None:
    """Write what a linear layer's examples gave, [o, i] or [o, i + 1], into the gradient."""
    views = model.layout.views(model.gradient)
    weight = views.get(f"{name}.weight" if name else "weight")
    bias = views.get(f"{name}.bias" if name else "bias")
    if weight is not None:
        weight.copy_(matrix[:, : weight.shape[1]])
    if bias is not None:
        bias.copy_(matrix[:, -1])


def outer_log_sums(delta: Tensor, a: Tensor, floor: float = 0.0) -> RunningLogSums:
    """Return the log sums, flat [o·i], of the N matrices δ_n a_nᵀ [o, i].

    log|δ a| = log|δ| + log|a| and sign(δ a) = sign δ · sign a, so that with D± = 1[δ ≷ 0] and
    A± = 1[a ≷ 0]

        Σ₊ 1 = D₊ᵀA₊ + D₋ᵀA₋,      Σ₊ log|g| = (D₊ log|δ|)ᵀA₊ + D₊ᵀ(A₊ log|a|) + same with −

    and likewise over the negative entries: 12 products of the size of the layer's gradient, 6
    where no input is negative, as after a ReLU. A floor under the logarithm is not a product: then
    the matrices are formed after all, one at a time.
    """
    sums = RunningLogSums(delta.shape[1] * a.shape[1], delta.device)
    if floor:
        for d, b in zip(delta, a, strict=True):
            sums.add(torch.outer(d, b).flatten(), floor)
    else:
        for d, b in zip(delta.split(SUMMED), a.split(SUMMED), strict=True):
            _add_products(sums, d, b)
    return sums


def _add_products(sums: RunningLogSums, delta: Tensor, a: Tensor) -> None:
    """Add what `outer_log_sums` says over a few examples; float32 is enough for their number."""
    size = delta.shape[1], a.shape[1]
    left, left_logs = _signed(delta, both=True)
    right, right_logs = _signed(a, both=bool((a < 0).any()))
    counts = _by_sign(left.T @ right, *size)
    logs = _by_sign(left_logs.T @ right + left.T @ right_logs, *size)
    sums.add_sums(len(a), *counts, *logs)


def _signed(t: Tensor, both: bool) -> tuple[Tensor, Tensor]:
    """Return 1[t > 0] and, next to it, 1[t < 0] if both are needed; and the same times log|t|."""
    signs = torch.cat([t > 0, t < 0], dim=1) if both else t > 0
    logs = torch.where(t == 0, 0, t.abs().log())
    signs = signs.to(t.dtype)
    return signs, signs * (torch.cat([logs, logs], dim=1) if both else logs)


def _by_sign(product: Tensor, o: int, i: int) -> tuple[Tensor, Tensor]:
    """Return flat sums of the blocks (+, +), (−, −) and of the blocks (−, +), (+, −)."""
    positive, negative = product[:o, :i], product[o:, :i]
    if product.shape[1] > i:
        positive, negative = positive + product[o:, i:], negative + product[:o, i:]
    return positive.flatten(), negative.flatten()


def outer_squares(delta: Tensor, a: Tensor) -> Tensor:
    """Return Σ_n (δ_n a_nᵀ)² entry by entry, [o, i], as (δ²)ᵀ(a²)."""
    return delta.square().T @ a.square()


def outputs_and_signals(
    model: Model, loss: LossFunction, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss, and δ [N, C] at the model's outputs."""
    outputs: list[Tensor] = []
    with model.module.register_forward_hook(lambda _module, _inputs, z: outputs.append(z)):
        value = loss(model, x, y)
    return value.detach(), signals(value, outputs[-1:])[0]


def chunks_of_gradients(model: Model, x: Tensor, delta: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield the gradients of single examples, [n, P] with n ≤ chunk at a time, as J_nᵀ δ_n."""
    _refuse_batch_layers(model)

    def one(vector: Tensor, example: Tensor, signal: Tensor) -> Tensor:
        return (model.at(vector, example[None])[0] * signal).sum()

    gradients = vmap(grad(one), in_dims=(None, 0, 0))
    for examples, signal in zip(x.split(chunk), delta.split(chunk), strict=True):
        yield gradients(model.vector, examples, signal)


def _refuse_batch_layers(model: Model) -> None:
    """Refuse BatchNorm and Dropout: in training an example's gradient is then not its own."""
    for name, layer in model.module.named_modules():
        batch = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        draws = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if layer.training and (batch or draws):
            raise UnseenError(
                f"the layer {name!r} ({type(layer).__name__}) makes an example's gradient depend "
                "on its batch or on another draw.",
                remedy="Choose batches, or a net without it.",
            )
