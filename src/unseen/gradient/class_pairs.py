"""StableFDG's highlighter on the client: attention between examples of one class."""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.errors import UnseenError, unadapted
from unseen.gradient.backprop import Around, Gradient, Step
from unseen.gradient.fedfa import channels
from unseen.images.features import last_maps
from unseen.models.highlighter import Highlighter, with_highlighter
from unseen.ranges import Count, whole


@dataclass(frozen=True)
class ClassPairs(Around, named="stablefdg"):
    """The inner gradient, in whose passes an example attends to the next one of its class.

    Attributes:
        inner: the gradient of the loss.
        width: the length of queries and keys; 30 as released.

    Note:
        The last example of a class attends to the first; one that is alone in a batch to itself, as
        all do outside of these passes.

    Source:
        Park, Han, Kim, Wang, Brinton, Moon 2023, "StableFDG: Style and Attention Based Learning for
        Federated Domain Generalization"; its released code.
    """

    inner: Gradient
    width: Annotated[Count, whole(8, 64)] = 30

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        layer = highlighter(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            layer.partners = next_of_class(y)
            try:
                # Once more, behind the hooks that change the maps in this step.
                with layer.source.layer.register_forward_hook(layer.source):
                    return inner(x, y)
            finally:
                layer.partners = None

        return step


def next_of_class(y: Tensor) -> Tensor:
    """Return for each example the place of the next of its class, in a circle [N].

    Example:
        >>> next_of_class(torch.tensor([1, 0, 1, 1, 2]))
        tensor([2, 1, 3, 0, 4])
    """
    places = torch.arange(len(y), device=y.device)
    for c in y.unique():
        rows = (y == c).nonzero()[:, 0]
        places[rows] = rows.roll(-1)
    return places


def highlighter(model: Model) -> Highlighter:
    """Return the layer of the net that attends."""
    for layer in model.module.modules():
        if isinstance(layer, Highlighter):
            return layer
    raise unadapted("stablefdg")


def highlighted(network: nn.Module, shape: tuple[int, ...], width: int) -> nn.Module:
    """Return the network with a highlighter of its last maps of more than one pixel.

    Args:
        network: The network, which is changed.
        shape: Of one input.
        width: See `ClassPairs`.
    """
    probe = Model(copy.deepcopy(network), shape=shape)
    name = last_maps(probe, torch.zeros(1, *shape))
    if name is None:
        raise UnseenError(
            "stablefdg weighs the pixels of the last maps, and the model has none of more than one "
            "pixel.",
            remedy="Take a convolutional model and larger images, or stablefdg-style, its styles.",
        )
    return with_highlighter(network, name, channels(probe, [name])[0], width)
