"""Networks that are chains of stages, cut into a part in front that stays frozen and the rest."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unseen.errors import UnseenError

#: What `freeze` may say besides "none": all before the head, or the first n blocks and the stem.
TRUNK, _BLOCKS = "trunk", re.compile(r"blocks\[:(\d+)\]")


class Stage(NamedTuple):
    """A step of a network.

    Attributes:
        kind: The head, a block, or what lies between them.
        parts: Submodules that it runs, and no other stage does.
        run: Maps the outputs of the stage before it to its own.
        in_turn: Whether `run` is the parts one after the other and nothing else.
    """

    kind: Literal["stem", "block", "top", "head"]
    parts: tuple[str, ...]
    run: Callable[[Tensor], Tensor]
    in_turn: bool = False


class Staged(nn.Module, ABC):
    """A network that runs its stages one after the other.

    Attributes:
        first: The first stage that it runs.
        last: The stage before which it ends; None for the head.
    """

    first: int = 0
    last: int | None = None

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return all stages of the whole network, the head last."""

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages()[self.first : self.last]:
            x = stage.run(x)
        return x

    def sequence(self) -> list[tuple[str, nn.Module]] | None:
        """Return the layers that run, by name, where they run one after the other; else None."""
        running = self.stages()[self.first : self.last]
        if not all(stage.in_turn for stage in running):
            return None
        return [(name, self.get_submodule(name)) for stage in running for name in stage.parts]


def cut(network: nn.Module, freeze: str) -> tuple[Staged, Staged]:
    """Return the frozen part of a network, in evaluation mode, and the rest, which trains.

    Args:
        network: The whole network, which becomes the rest.
        freeze: "trunk" for all before the head, or "blocks[:n]" for the first n blocks and what
            lies before them.

    Note:
        Both keep the names of their tensors. What a part does not run is not in its state dict.
    """
    if not isinstance(network, Staged):
        raise UnseenError(
            f"freeze = {freeze!r} takes a network that is a chain of stages; "
            f"{type(network).__name__} is not.",
            remedy="Take efficientnet-lite0, resnet18 or resnet50, derive your own from "
            "unseen.data.networks.stages.Staged, or set freeze = 'none'.",
        )
    count = _count(network, freeze)
    trunk = copy.deepcopy(network)
    trunk.last, network.first = count, count
    for part, own_stages in ((trunk, slice(0, count)), (network, slice(count, None))):
        own = {name for stage in part.stages()[own_stages] for name in stage.parts}
        for name in {name for stage in part.stages() for name in stage.parts} - own:
            part.set_submodule(name, nn.Identity())
    return trunk.eval().requires_grad_(False), network


def folded(network: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy in evaluation mode with BatchNorm inside the convolutions before it.

    Args:
        network: The network.
        x: Inputs [N, ...] on which both must agree; where they do not, since BatchNorm does not
            follow the convolution that lies before it, the copy is as the network was.
    """
    plain = copy.deepcopy(network).eval()
    merged = copy.deepcopy(plain)
    for layer in list(merged.modules()):
        children = list(layer.named_children())
        for (name, conv), (other, batch) in pairwise(children):
            if not (isinstance(conv, nn.Conv2d) and isinstance(batch, nn.BatchNorm2d)):
                continue
            if conv.out_channels == batch.num_features and batch.track_running_stats:
                layer.set_submodule(name, fuse_conv_bn_eval(conv, batch))
                layer.set_submodule(other, nn.Identity())
    with torch.no_grad():
        before, after = plain(x), merged(x)
    near = bool((before - after).abs().max() <= 1e-3 * before.abs().max())
    return merged if near else plain


def _count(network: Staged, freeze: str) -> int:
    """How many stages of the network are frozen."""
    kinds = [stage.kind for stage in network.stages()]
    blocks = [place for place, kind in enumerate(kinds) if kind == "block"]
    if freeze == TRUNK:
        return kinds.index("head")
    match = _BLOCKS.fullmatch(freeze)
    n = int(match[1]) if match else 0
    if not 1 <= n <= len(blocks):
        raise UnseenError(
            f"freeze must be 'none', 'trunk' or 'blocks[:n]' with n from 1 to {len(blocks)}, the "
            f"blocks of {type(network).__name__}; found {freeze!r}."
        )
    return blocks[n - 1] + 1
