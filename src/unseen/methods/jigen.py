"""JiGen: clients that also learn to tell the order of an image's shuffled tiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Method, Model, Turn
from unseen.core.parts import Wrapper
from unseen.data.networks.two_heads import TwoHeads, with_order
from unseen.errors import UnseenError, unadapted
from unseen.methods import base
from unseen.methods.base import cited, incompatible, with_gradient
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.moon import features
from unseen.methods.images.features import tapped
from unseen.methods.options import options_from
from unseen.ranges import Count, NotNegative, Range, Share, log, uniform, whole


@dataclass(frozen=True)
class Jigsaw(Wrapper, named="jigen"):
    """g ← g + α ∇ mean_n CE(h_p(f(z_n)), p_n), z_n being image n with its tiles in order p_n.

    f: what enters the heads; h_p: the second one. p_n is the order as it is with probability
    `ordered`, else any of the others, all as likely.

    Attributes:
        inner: the gradient of the loss, on the images as they are.
        alpha: α; 0.7 in the released command for PACS, 0.1 by its script's default. The paper tunes
            it.
        ordered: the paper's data bias β; 0.9 in the released command.
        permutations: P, how many other orders there are; 30 in the paper, by the choice of
            `unseen.methods.images.jigsaw.orders`.
        grid: tiles along each side; 3 in the paper.

    Source:
        Carlucci, D'Innocente, Bucci, Caputo, Tommasi 2019, "Domain Generalization by Solving Jigsaw
        Puzzles", Eq. 1.
    """

    inner: Gradient
    alpha: Annotated[NotNegative, log(0.01, 1)] = 0.7
    ordered: Annotated[Share, uniform(0.3, 0.9)] = 0.9
    permutations: Annotated[Count, whole(5, 100)] = 30
    grid: Annotated[int, Range(2, 3)] = 3

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        name, layer = second_head(model)
        draws, choices = turn.generator("jigen"), orders(self.grid, self.permutations)
        with (
            self.inner.open(model, inbox, client, memory, turn) as inner,
            tapped(model.module, name, "input") as tap,
        ):

            def step(x: Tensor, y: Tensor) -> Tensor:
                value = inner(x, y)
                if not self.alpha:
                    return value
                which = self.draw_orders(len(x), draws)
                z = features(model, tap, puzzled(x, choices[which], self.grid))
                puzzle = self.alpha * F.cross_entropy(layer.order(z), which.to(z.device))
                puzzle.backward()  # type: ignore[no-untyped-call]
                return value + puzzle.detach()

            yield step

    def draw_orders(self, count: int, draws: torch.Generator) -> Tensor:
        """Return the order of each of so many images [count], 0 for as it is."""
        other = torch.randint(1, self.permutations + 1, (count,), generator=draws)
        return torch.where(torch.rand(count, generator=draws) < self.ordered, 0, other)


def second_head(model: Model) -> tuple[str, TwoHeads]:
    """Return the layer that has both heads, and its name."""
    for name, layer in model.module.named_modules():
        if isinstance(layer, TwoHeads):
            return name, layer
    raise unadapted("jigen")


@cache
def orders(grid: int, count: int) -> Tensor:
    """Return the order of all tiles as they are, then `count` others [1 + count, grid²].

    Each further one is the permutation with the largest sum of Hamming distances from those before
    it, the first of such in lexicographic order.

    Source:
        Noroozi, Favaro 2016, "Unsupervised Learning of Visual Representations by Solving Jigsaw
        Puzzles", Algorithm 1, which JiGen follows.

    Example:
        >>> orders(2, 3).tolist()
        [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
    """
    every = torch.tensor(list(permutations(range(grid**2))), dtype=torch.uint8)
    if count >= len(every):
        raise UnseenError(
            f"{grid} × {grid} tiles have {len(every) - 1:,} orders besides their own.",
            remedy=f"Set permutations to at most {len(every) - 1:,}, or a larger grid.",
            expected=f"at most {len(every) - 1}",
            found=f"{count}",
        )
    picks, apart = [0], torch.zeros(len(every), dtype=torch.long)
    for _ in range(count):
        apart += (every != every[picks[-1]]).sum(1)
        apart[picks[-1]] = -(grid**2) * (count + 1)  # never again
        picks.append(int(apart.argmax()))
    return every[picks].long()


def puzzled(x: Tensor, order: Tensor, grid: int) -> Tensor:
    """Return images [N, C, H, W] whose tile k is their former tile order[n, k].

    Note:
        A tile has ⌊H/grid⌋ rows and ⌊W/grid⌋ columns; rows and columns beyond the last stay.

    Args:
        x: The images.
        order: Permutations of the tiles [N, grid²], row by row.
        grid: Tiles along each side.
    """
    N, C, H, W = x.shape
    h, w = H // grid, W // grid
    if not h or not w:
        raise UnseenError(
            f"jigen cuts images into {grid} × {grid} tiles, and these have {H} × {W} pixels.",
            remedy="Set a smaller grid.",
        )
    inside = x[:, :, : h * grid, : w * grid].reshape(N, C, grid, h, grid, w)
    tiles = inside.permute(0, 2, 4, 1, 3, 5).reshape(N, grid**2, C, h, w)
    moved = tiles[torch.arange(N, device=x.device)[:, None], order.to(x.device)]
    moved = moved.reshape(N, grid, grid, C, h, w).permute(0, 3, 1, 4, 2, 5)
    out = x.clone()
    out[:, :, : h * grid, : w * grid] = moved.reshape(N, C, h * grid, w * grid)
    return out


SOURCE = "carlucci2019jigen"


@options_from(Jigsaw)
def add_jigen(method: Method, **options: Any) -> Method:
    """Solve puzzles of a client's own images beside the task.

        min  mean_n ℓ(h_c(f(x_n)), y_n) + α mean_n CE(h_p(f(z_n)), p_n)

    z_n: image n with its tiles in order p_n, one of P + 1 of which the first is as it was; h_c and
    h_p: two heads on the same features f. The second term needs no label, and nothing leaves a
    client for it but the second head, which is averaged with the model. alpha=0 is FedAvg.

    Note:
        Predictions are the first head's, of whole images. `deepall+jigen` is the method on pooled
        data, as the paper and CSAC's table have it. The puzzles take a pass of their own, which
        moves BatchNorm's statistics too, as shuffled images do in the released code.

    Departs from:
        the released code, which passes each image once, whole or as a puzzle, and classifies the
        puzzles too unless told not to; here, as Eq. 1 is printed, every image is classified as it
        is, so that the loss's own rate is FedAvg's. There the order as it is may be drawn among the
        others, tiles turn grey with probability 0.1, and permutations lie in a file; images are
        cropped to sizes that 3 divides, where here a rest at the right and at the bottom stays. The
        second head begins at 0, not at random.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "jigen", "solves puzzles already.", "Set its own alpha.")
    changed = with_gradient(method, partial(Jigsaw, **options), SOURCE)
    second = partial(with_order, outputs=options["permutations"] + 1)
    return base.asking(base.changed_further(changed, second), "images")
