"""Feature maps of a net's named layers, read by hooks that live no longer than a context."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.core import Model
from unseen.errors import UnseenError, nearest

#: Returns what the layers gave in the latest forward pass, maps [N, C, H, W], in their order.
Take = Callable[[], list[Tensor]]


def layer_names(module: nn.Module, layers: Sequence[str] | None = None, last: int = 2) -> list[str]:
    """Return the layers named, or the net's last convolutions.

    Args:
        module: The net.
        layers: Names in the net; an unknown one is refused with the nearest.
        last: How many convolutions.

    Example:
        >>> c = nn.Conv2d
        >>> net = nn.Sequential(c(1, 2, 3), nn.ReLU(), c(2, 2, 3), c(2, 4, 3))
        >>> layer_names(net), layer_names(net, ["1"])
        (['2', '3'], ['1'])
    """
    modules = {name: part for name, part in module.named_modules() if name}
    if layers is None:
        convs = [name for name, part in modules.items() if isinstance(part, nn.Conv2d)][-last:]
        if not convs:
            raise UnseenError(
                "feature maps are read from convolutions, and the model has none.",
                remedy="Take a convolutional model, or name layers that give maps [N, C, H, W]; "
                f"its layers are {', '.join(modules) or 'none'}.",
            )
        return convs
    names = [layers] if isinstance(layers, str) else list(layers)
    for name in names:
        if name not in modules:
            raise nearest("layer", name, modules)
    if not names or len(set(names)) < len(names):
        raise UnseenError(f"name at least one layer, and each once; found {names}.")
    return names


@contextmanager
def recorded(module: nn.Module, layers: Sequence[str]) -> Iterator[Take]:
    """Hook the named layers; `take()` after a forward pass gives their outputs.

    Args:
        module: The net.
        layers: Names in it; "" is the whole net, whose outputs may be of any shape.

    Note:
        A layer that runs several times in one pass is recorded at its last. Outputs are copied,
        for an activation in place behind the layer would write into them.
    """
    parts = dict(module.named_modules())
    outputs: dict[str, object] = {}

    def record(output: object, name: str) -> None:
        outputs[name] = output.clone() if isinstance(output, Tensor) else output

    def take() -> list[Tensor]:
        maps = [_checked(name, outputs.get(name)) for name in layers]
        outputs.clear()
        return maps

    with _read({name: parts[name] for name in layers}, record):
        yield take


@contextmanager
def _read(parts: Mapping[str, nn.Module], show: Callable[[object, str], None]) -> Iterator[None]:
    """Call `show` with the output of each of these layers, and its name, when it runs."""

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        return lambda _layer, _inputs, output: show(output, name)

    with ExitStack() as hooks:
        for name, part in parts.items():
            hooks.enter_context(part.register_forward_hook(hook(name)))
        yield


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    mode = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(mode)


def frozen(model: Model, own: tuple[Tensor, Tensor], x: Tensor, take: Take) -> list[Tensor]:
    """Return what `take` reads of a pass in evaluation mode with other parameters and buffers."""
    with _evaluating(model.module):
        model.at(own[0], x, own[1])
    return take()


@dataclass
class Tap:
    """What is done to the features that pass: nothing, until `change` is set."""

    change: Callable[[Tensor], Tensor] | None = None


@contextmanager
def tapped(module: nn.Module, layer: str, side: Literal["input", "output"]) -> Iterator[Tap]:
    """Hook a layer's input or output, which `tap.change` may look at or replace."""
    tap, part = Tap(), dict(module.named_modules())[layer]

    def output(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out if tap.change is None else tap.change(out)

    def entry(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return inputs if tap.change is None else (tap.change(inputs[0]), *inputs[1:])

    out = side == "output"
    with part.register_forward_hook(output) if out else part.register_forward_pre_hook(entry):
        yield tap


def last_maps(model: Model, x: Tensor) -> str | None:
    """Return the last layer to run that gives maps [N, C, H, W] of more than one pixel, if any."""
    large: list[str] = []

    def note(output: object, name: str) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output[0, 0].numel() > 1:
            large.append(name)

    parts = {name: part for name, part in model.module.named_modules() if name}
    with _read(parts, note), _evaluating(model.module):
        model(x)
    return large[-1] if large else None


def _checked(name: str, output: object) -> Tensor:
    if isinstance(output, Tensor) and (output.ndim == 4 or not name):
        return output
    what = "was not run by the model's forward pass"
    if output is not None:
        shape = f"tensor of shape {list(output.shape)}" if isinstance(output, Tensor) else ""
        what = f"gives a {shape or type(output).__name__}"
    raise UnseenError(
        f"feature maps must be of shape [N, C, H, W]; the layer {name!r} {what}.",
        remedy="Name convolutions, or blocks that end in maps.",
    )
