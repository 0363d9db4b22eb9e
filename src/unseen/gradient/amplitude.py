"""Images whose amplitude spectra are mixed (AM) or made those of all (HarmoFL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.core.exchange import Local, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.errors import number
from unseen.gradient.backprop import Gradient, Step
from unseen.images.bank import Bank
from unseen.images.features import tapped
from unseen.images.frequency import Window, mixed, pixel_range

#: The inbox entry that holds HarmoFL's mean amplitude.
AMPLITUDE = "amplitude"


@dataclass(frozen=True)
class AmplitudeMix(Wrapper):
    """g at x̃ in x's place, with probability p per batch: |F(x̃)| = (1 − λ) |F(x)| + λ |F(x')|, and
    the phase of x̃ is that of x.

    λ ~ U(0, strength) for each example; x': another example of the same batch, by a random
    permutation, or an image of another client out of the bank. clip: x̃ is clipped to the range of
    the pixels, see `unseen.images.frequency.pixel_range`. p = 0 is the inner gradient bit for bit.

    Source: Xu et al. 2021, "A Fourier-based Framework for Domain Generalization", amplitude mix.
    """

    inner: Gradient
    p: float = 0.5
    strength: float = 1.0
    clip: bool = True
    bank: Bank | None = None

    def __post_init__(self) -> None:
        number("am(p)", self.p, 0, 1)
        number("am(strength)", self.strength, 0, 1)

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        """The inner step on batches of which some are mixed."""
        generator, window = turn.generator("am"), Window()
        low, high = pixel_range(client.split("train"))
        pool = self.bank.others(inbox, turn) if self.bank is not None else None

        def other(x: Tensor) -> Tensor:
            if self.bank is not None and pool is not None:
                return self.bank.draw(pool, len(x), generator)
            return window(x)[torch.randperm(len(x), generator=generator).to(x.device)]

        with self.inner.open(model, inbox, client, memory, turn) as inner:

            def step(x: Tensor, y: Tensor) -> Tensor:
                if float(torch.rand((), generator=generator)) >= self.p:
                    return inner(x, y)
                lam = self.strength * torch.rand(len(x), generator=generator)
                x = mixed(x, other(x), lam, window)
                return inner(x.clamp(low, high) if self.clip else x, y)

            yield step


@dataclass(frozen=True)
class Normalised(Wrapper):
    """Another local on a network whose inputs have, inside the window, the amplitude that the
    inbox holds.

    It is a hook on the whole network, so that all that the other local does to images before they
    enter it, and all that it measures, is of the network as it predicts.

    Source: Jiang, Wang, Dou 2022, "HarmoFL", amplitude normalisation.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    window: Window

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The other local's reply; the hook ends with it."""
        with tapped(model.module, "", "input") as tap:
            tap.change = partial(self.change, inbox[AMPLITUDE])
            return self.inner(model, inbox, client, memory, turn)

    def change(self, amplitude: Tensor, x: Tensor) -> Tensor:
        """The images [N, C, H, W] with this amplitude, laid out in memory as they came."""
        return torch.empty_like(x).copy_(mixed(x, amplitude, 1, self.window))
