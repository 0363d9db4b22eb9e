"""Which examples each step of a client's training takes."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Split, Turn
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.methods.recipe import Training


def batches(split: Split, recipe: Training, turn: Turn) -> Iterator[Tensor]:
    """Yield row indices of each step's batch: a fresh permutation per pass, keyed by the turn.

    Args:
        split: What batches are drawn from.
        recipe: How many, of how many examples.
        turn: Where the draws come from.

    Raises:
        UnseenError: If there is no whole batch, and short ones are left out.
    """
    _check_batch(len(split), recipe, turn)
    generator = turn.generator("batches")
    steps = 0
    for _ in range(recipe.epochs) if recipe.epochs is not None else count():
        permutation = torch.randperm(len(split), generator=generator)
        for index in permutation.split(recipe.batch_size):
            if recipe.drop_last and len(index) < recipe.batch_size:
                continue
            yield index
            steps += 1
            if steps == recipe.steps:
                return


def _check_batch(examples: int, recipe: Training, turn: Turn) -> None:
    """Refuse a client that would take no step."""
    if recipe.drop_last and examples < recipe.batch_size:
        raise UnseenError(
            f"client {turn.client!r} would take no step: its {examples} training examples are "
            f"fewer than a batch of {recipe.batch_size}, and drop_last leaves a short batch out.",
            remedy=f"Take a batch_size of {examples} or less, or drop_last=False.",
        )


def batch_grid(examples: int, recipe: Training, turn: Turn) -> Tensor:
    """Return what `batches` yields of a split of this length as a tensor [T, B], else −1."""
    _check_batch(examples, recipe, turn)
    size = min(recipe.batch_size, max(examples, 1))
    per_pass = examples // recipe.batch_size if recipe.drop_last else -(-examples // size)
    passes = recipe.epochs or -(-(recipe.steps or 0) // max(per_pass, 1))
    grid = orders_of(examples, per_pass, size, passes, turn.key("batches"))
    return grid[: recipe.steps]


@lru_cache(2048)
def orders_of(examples: int, per_pass: int, size: int, passes: int, key: str) -> Tensor:
    """Return the batches of all passes [passes · per_pass, size], which nobody may change.

    Note:
        Jobs that differ in a learning rate draw the same ones.
    """
    generator, width = keyed(key), per_pass * size
    orders = [torch.randperm(examples, generator=generator) for _ in range(passes)]
    grid = torch.stack(orders)[:, :width] if orders else torch.empty(0, width, dtype=torch.long)
    grid = F.pad(grid, (0, width - grid.shape[1]), value=-1)
    return grid.reshape(passes * per_pass, size)
