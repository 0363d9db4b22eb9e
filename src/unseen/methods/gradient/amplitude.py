"""Images whose amplitude spectra are mixed (AM) or made those of all (HarmoFL)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.images.bank import Bank
from unseen.methods.images.features import tapped
from unseen.methods.images.frequency import Window, mixed, mixed_within, pixel_range
from unseen.ranges import Share, uniform

#: The inbox entry that holds HarmoFL's mean amplitude.
AMPLITUDE = "amplitude"


@dataclass(frozen=True)
class AmplitudeMix(Around, named="am"):
    """g at x̃ instead of x, with probability p per batch: the amplitude is mixed, the phase kept.

        |F(x̃)| = (1 − λ) |F(x)| + λ |F(x')|,   λ ~ U(0, strength) for each example

    x': another example of the same batch, by a random permutation, or an image of another client
    out of the bank. p = 0 is the inner gradient bit for bit.

    Attributes:
        inner: the gradient that the images enter.
        p: the probability with which a batch is mixed, all of it, as in GA's code.
        strength: 1 in GA's code; FACT has 1 for PACS and 0.2 for OfficeHome.
        clip: to the range of the pixels, as FACT does, see
            `unseen.methods.images.frequency.pixel_range`.
        bank: amplitude spectra of other clients' images, to mix with these.

    Source:
        Xu et al. 2021, "A Fourier-based Framework for Domain Generalization", amplitude mix.
    """

    inner: Gradient
    p: Annotated[Share, uniform(0.1, 1)] = 0.5
    strength: Annotated[Share, uniform(0.1, 1)] = 1.0
    clip: bool = True
    bank: Bank | None = None

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        generator, (low, high) = turn.generator("am"), self.range(client)
        pool = self.bank.others(inbox, turn) if self.bank is not None else None

        def step(x: Tensor, y: Tensor) -> Tensor:
            if not self.mixes(generator):
                return inner(x, y)
            lam = self.shares(len(x), generator)
            if self.bank is not None and pool is not None:
                x = mixed(x, self.bank.draw(pool, len(x), generator), lam, Window())
            else:
                x = mixed_within(x, torch.randperm(len(x), generator=generator).to(x.device), lam)
            return inner(x.clamp(low, high), y)

        return step

    def mixes(self, generator: torch.Generator) -> bool:
        """Return whether the next batch is mixed, by a draw."""
        return float(torch.rand((), generator=generator)) < self.p

    def shares(self, count: int, generator: torch.Generator) -> Tensor:
        """Return λ of a batch's examples [count], by a draw."""
        return self.strength * torch.rand(count, generator=generator)

    def range(self, client: Client) -> tuple[float, float]:
        """Return the range that pixels are clipped to."""
        return pixel_range(client.split("train")) if self.clip else (-math.inf, math.inf)


@dataclass(frozen=True)
class Normalised(Wrapper):
    """Another local on a network whose inputs have the inbox's amplitude inside a window.

    Note:
        It is a hook on the whole network, so that all that the other local does to images before
        they enter it, and all that it measures, is of the network as it predicts.

    Source:
        Jiang, Wang, Dou 2022, "HarmoFL", amplitude normalisation.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    window: Window

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        with tapped(model.module, "", "input") as tap:
            tap.change = partial(self.change, inbox[AMPLITUDE])
            return self.inner(model, inbox, client, memory, turn)

    def change(self, amplitude: Tensor, x: Tensor) -> Tensor:
        """Return the images [N, C, H, W] with this amplitude, laid out in memory as they came."""
        return torch.empty_like(x).copy_(mixed(x, amplitude, 1, self.window))
