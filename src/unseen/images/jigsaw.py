"""Puzzles of images: tiles in another order, and the orders that a net is to tell apart."""

from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from unseen.errors import UnseenError


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
