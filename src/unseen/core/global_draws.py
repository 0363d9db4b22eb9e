"""Torch's global generator, from which layers draw: keyed for a while, then as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import Tensor

#: The generator is one for all threads: another one would draw from it, or set it, in between.
LOCK = RLock()


@contextmanager
def global_draws(start: Tensor | None = None) -> Iterator[None]:
    """Let nobody else draw from torch's global CPU generator, and restore it at the end.

    Args:
        start: The state to draw from; None: the one that it has.
    """
    with LOCK:
        before = torch.get_rng_state()
        if start is not None:
            torch.set_rng_state(start)
        try:
            yield
        finally:
            torch.set_rng_state(before)
