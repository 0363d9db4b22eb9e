"""Models by name, which return logits.

Note:
    The last linear layer is the head: `head` in the papers' small nets, and what torchvision calls
    it (`fc`, `classifier`) in those that keep its names. A factory takes the shape of one input and
    the number of outputs; what may be set on the command line is keyword-only. A user's own model
    is named `module:factory`.
"""

import inspect
from collections.abc import Callable

import torch
from torch import nn

from unseen.core.global_draws import global_draws
from unseen.data.networks.alexnet import alexnet, alexnet_bn, densenet121
from unseen.data.networks.digit_nets import (
    bn_cnn,
    domainbed_cnn,
    fedilc_cnn,
    lenet,
    logistic,
    mlp,
    mnist_cnn,
)
from unseen.data.networks.efficientnet import (
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
)
from unseen.data.networks.resnet import resnet18, resnet50
from unseen.data.networks.unet import unet
from unseen.errors import UnseenError, nearest, number
from unseen.expression import load_object, parse, resolve

MODELS: dict[str, Callable[..., nn.Module]] = {
    model.__name__.replace("_", "-"): model
    for model in (
        logistic, mlp, mnist_cnn, lenet, domainbed_cnn, fedilc_cnn, bn_cnn, resnet18, resnet50,
        densenet121, alexnet, alexnet_bn, efficientnet_lite0, efficientnet_lite1,
        efficientnet_lite2, unet,
    )
}  # fmt: skip

__all__ = ["MODELS", "build"]


def build(
    model: str, shape: tuple[int, ...], outputs: int, generator: torch.Generator
) -> nn.Module:
    """Build the module that `model` names, with initial weights that depend on `generator` alone.

    Args:
        model: An expression with a name from `MODELS`, or `module:factory(option=...)` for a user's
            own, which is called with those of `shape` and `outputs` that its parameters name.
        shape: Of one input, without the batch.
        outputs: Number of classes, or of targets.
        generator: Decides the initial weights: one number is drawn from it, and torch's global CPU
            generator is left as it was.

    Example:
        >>> from unseen.core.turn import keyed
        >>> build("mlp(widths=[8])", (2, 3), 4, keyed("a seed"))
        Sequential(
          (flatten): Flatten(start_dim=1, end_dim=-1)
          (fc1): Linear(in_features=6, out_features=8, bias=True)
          (relu1): ReLU()
          (head): Linear(in_features=8, out_features=4, bias=True)
        )
    """
    if not shape:
        raise UnseenError("the shape of an input needs at least one axis; found none.")
    for axis, length in enumerate(shape):
        number(f"shape[{axis}]", length, 1, whole=True)
    number("outputs", outputs, 1, whole=True)
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    with global_draws():  # layers draw their weights from torch's global generator
        make = _own if ":" in model.partition("(")[0] else _by_name
        factory = make(model, shape, outputs)
        torch.default_generator.manual_seed(int(seed))
        module = factory()
    if not isinstance(module, nn.Module):
        raise UnseenError(
            f"{model!r} must make a torch.nn.Module; it made {type(module).__name__}."
        )
    return module


def _by_name(model: str, shape: tuple[int, ...], outputs: int) -> Callable[[], object]:
    calls = parse(model)
    if len(calls) != 1:
        raise UnseenError(f"a model is one part, as in mlp(widths=[64]); found {model!r}.")
    return lambda: resolve("model", calls[0], MODELS, (shape, outputs))


def _own(model: str, shape: tuple[int, ...], outputs: int) -> Callable[[], object]:
    """A user's factory with the arguments that it asks for, and the options that are set."""
    options = dict(parse(model)[0].arguments) if "(" in model else {}
    path = model.partition("(")[0].strip()
    factory = load_object(path)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise UnseenError(
            f"{path!r} must be a class or a function that makes a new model each time; found "
            f"{type(factory).__name__}."
        )
    values = {"shape": shape, "outputs": outputs}
    parameters = inspect.signature(factory).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    plain = {p.name: p for p in parameters if p.kind not in variadic}
    theirs = [name for name in plain if name not in values]
    unknown = [option for option in options if option not in theirs]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise nearest(f"option of {path!r}:", unknown[0], theirs)
    needed = [n for n in theirs if plain[n].default is inspect.Parameter.empty]
    if foreign := [name for name in needed if name not in options]:
        what = (
            f"{path!r} asks for {', '.join(foreign)}; a factory may ask for shape and outputs only."
        )
        remedy = "Give the others defaults, or set them: module:factory(option=...)."
        raise UnseenError(what, remedy=remedy)
    arguments = {name: value for name, value in values.items() if name in plain} | options
    return lambda: factory(**arguments)
