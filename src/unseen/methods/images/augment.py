"""Random changes of training images, a batch at a time: crops, flips, colours.

Example:
    Parts are joined by + and applied in that order, as in the released code of CSAC for PACS:

        random-resized-crop(scale=(0.8, 1))+flip+colour-jitter(brightness=0.4, contrast=0.4,
        saturation=0.4, hue=0.4)+grayscale(p=0.1)

Note:
    Every image has its own draws. They come from the generator that is passed and from nowhere
    else, on the CPU whatever device the images are on, and their number depends on the batch's size
    alone: not on the pixels, the strengths or what an earlier part did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from unseen.errors import UnseenError, number
from unseen.expression import parse, resolve
from unseen.ranges import Checked, Range, Share

#: Weights of red, green and blue in the grey of an image (ITU-R 601), as in Pillow.
GREY = (0.299, 0.587, 0.114)
#: Crops that are drawn for an image before the largest one in its middle is taken.
TRIES = 10
#: What `ColourJitter` changes, in the order of its draws.
CHANGES = ("brightness", "contrast", "saturation", "hue")


class Augment(Protocol):
    """(images [B, C, H, W], generator) -> images [B, C, H', W'] of the same type."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor: ...


def build(expression: str) -> Chain:
    """Return what an expression of `AUGMENTS` names, as one call; a mistake shows here.

    Example:
        >>> from unseen.core.turn import keyed
        >>> augment = build("random-resized-crop(size=8)+flip")
        >>> augment(torch.zeros(5, 3, 16, 16, dtype=torch.uint8), keyed("a turn")).shape
        torch.Size([5, 3, 8, 8])
    """
    parts = [resolve("augmentation", call, AUGMENTS) for call in parse(expression)]
    return Chain(tuple(parts))  # type: ignore[arg-type]  # a table holds functions of objects


@dataclass(frozen=True)
class Chain:
    """Parts one after the other, on images [B, C, H, W]: floating point, or bytes.

    Attributes:
        parts: In their order. Bytes are changed as numbers in [0, 1] and rounded once, at the end.
    """

    parts: tuple[Augment, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images; x stays as it is."""
        if x.ndim != 4 or not (x.is_floating_point() or x.dtype == torch.uint8):
            raise UnseenError(
                "augmentation takes images [batch, channels, height, width] of floating-point "
                f"numbers or bytes; found {x.dtype} of shape {list(x.shape)}.",
                remedy="Leave it out for inputs that are not images.",
            )
        out = x.float() / 255 if x.dtype == torch.uint8 else x
        for part in self.parts:
            out = part(out, generator)
        return (out * 255).round().to(torch.uint8) if x.dtype == torch.uint8 else out


@dataclass(frozen=True)
class RandomResizedCrop(Checked, named="random-resized-crop"):
    """A random part of each image, resized to a square, by default to the image's own size.

    The part has the area a·HW, a ~ U(scale), and the width-to-height ratio r, log r ~ U(log
    ratio).

    Attributes:
        size: The side of the square.
        scale: Least and largest share of the area. CSAC's code: (0.8, 1); FedDG-GA's and
            DomainBed's: (0.7, 1).
        ratio: Of width to height.

    Note:
        Sides are rounded, and a part that is larger than the image is drawn again. After ten tries
        it is the largest part in the middle of a ratio within bounds. Resizing is bilinear, over
        all pixels that fall together where it makes smaller; for images of [0, 1] within 1/255 of
        Pillow's, which rounds twice.

    Source:
        The operation of torchvision, RandomResizedCrop.
    """

    size: Annotated[int, Range(1, 4096)] | None = None
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("scale", 1.0), ("ratio", 100.0)):
            pair = _pair(f"random-resized-crop({name})", getattr(self, name), most)
            object.__setattr__(self, name, pair)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        height, width = x.shape[2:]
        top, left, tall, wide = self.boxes(len(x), height, width, generator)
        down = _resampling(top, tall, height, self.size or height).to(x)
        across = _resampling(left, wide, width, self.size or width).to(x)
        return torch.einsum("bih,bchw,bjw->bcij", down, x, across)

    def boxes(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return top, left, height and width of each image's part, in whole pixels [count]."""
        draws = torch.rand(4, count, TRIES, generator=generator, dtype=torch.float64)
        low, high = self.scale
        area = height * width * (low + (high - low) * draws[0])
        low, high = map(math.log, self.ratio)
        shape = (low + (high - low) * draws[1]).exp()
        wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
        fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
        top = (draws[2] * (height - tall + 1)).floor()
        left = (draws[3] * (width - wide + 1)).floor()
        first = fits.long().argmax(1, keepdim=True)
        inside = min(max(width / height, self.ratio[0]), self.ratio[1])
        most_wide = min(width, max(1, round(height * inside)))
        most_tall = min(height, max(1, round(width / inside)))
        middle = (height - most_tall) // 2, (width - most_wide) // 2, most_tall, most_wide
        top, left, tall, wide = (
            torch.where(fits.any(1), tries.gather(1, first).squeeze(1), float(whole)).long()
            for tries, whole in zip((top, left, tall, wide), middle, strict=True)
        )
        return top, left, tall, wide


@dataclass(frozen=True)
class Flip(Checked, named="flip"):
    """Each image mirrored, left to right, with probability p."""

    p: Share = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return torch.where(_draw(x, self.p, generator), x.flip(-1), x)


@dataclass(frozen=True)
class Grayscale(Checked, named="grayscale"):
    """Each image of three channels made grey, all channels equal, with probability p.

    Attributes:
        p: 0.1 in CSAC's, FedDG-GA's and DomainBed's code. Images of one channel stay as they are.
    """

    p: Share = 0.1

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        _coloured("grayscale", x)
        return torch.where(_draw(x, self.p, generator), grey(x).expand_as(x), x)


@dataclass(frozen=True)
class ColourJitter(Checked, named="colour-jitter"):
    """Brightness, contrast, saturation and hue of each image changed, in an order drawn for it.

    With f ~ U(max(0, 1 − strength), 1 + strength) and pixels cut to [0, 1]: brightness f·x;
    contrast f·x + (1 − f)·m, m the mean of the image's grey; saturation f·x + (1 − f)·grey(x). Hue:
    turned by ~ U(−strength, strength) of a full circle of hue, saturation and value.

    Attributes:
        brightness, contrast, saturation: Strengths, at least 0. CSAC's and FedDG-GA's code: 0.4 of
            each; DomainBed's: 0.3.
        hue: A strength, at most 0.5.

    Note:
        A change of strength 0 leaves the image as it is, bit for bit. Images have one channel or
        three, and pixels in [0, 1]; those of one channel have neither saturation nor hue.

    Source:
        The operation of torchvision, ColorJitter.

    Departs from:
        it on images of bytes in that nothing is rounded between the changes.
    """

    brightness: Annotated[float, Range(0, 100)] = 0.0
    contrast: Annotated[float, Range(0, 100)] = 0.0
    saturation: Annotated[float, Range(0, 100)] = 0.0
    hue: Annotated[float, Range(0, 0.5)] = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        _coloured("colour-jitter", x)
        if len(x) and (float(x.min()) < 0 or float(x.max()) > 1):
            raise UnseenError(
                "colour-jitter takes pixels in [0, 1]; found values from "
                f"{float(x.min()):.3g} to {float(x.max()):.3g}."
            )
        order = torch.rand(len(x), len(CHANGES), generator=generator).argsort(1)
        draws = torch.rand(len(CHANGES), len(x), generator=generator)
        out = x.clone()
        for place in range(len(CHANGES)):
            for k, name in enumerate(CHANGES):
                strength = getattr(self, name)
                at = (order[:, place] == k).nonzero().flatten()
                if strength and len(at):
                    low = -strength if name == "hue" else max(0.0, 1 - strength)
                    high = strength if name == "hue" else 1 + strength
                    amount = (low + (high - low) * draws[k, at]).to(x).view(-1, 1, 1, 1)
                    at = at.to(x.device)
                    out[at] = changed(name, out[at], amount)
        return out


AUGMENTS: dict[str, Callable[..., object]] = {
    "random-resized-crop": RandomResizedCrop,
    "flip": Flip,
    "colour-jitter": ColourJitter,
    "grayscale": Grayscale,
}


def grey(x: Tensor) -> Tensor:
    """Return the grey [B, 1, H, W] of images of three channels; those of one are grey."""
    if x.shape[1] == 1:
        return x
    weights = torch.tensor(GREY, dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True)


def changed(name: str, x: Tensor, amount: Tensor) -> Tensor:
    """Return images in [0, 1] with one of `CHANGES` by an amount [B, 1, 1, 1]."""
    if x.shape[1] == 1 and name in ("saturation", "hue"):
        return x
    if name == "hue":
        return turned(x, amount)
    if name == "brightness":
        return (amount * x).clamp(0, 1)
    other = grey(x).mean((2, 3), keepdim=True) if name == "contrast" else grey(x)
    return (amount * x + (1 - amount) * other).clamp(0, 1)


def turned(x: Tensor, amount: Tensor) -> Tensor:
    """Return images of three channels in [0, 1] whose hue is turned by a share of the circle.

    Value v = max, chroma c = max − min, hue h in sixths of the circle; back by
    v − c·max(0, min(k, 4 − k, 1)), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.
    """
    v, top = x.max(1, keepdim=True)
    c = v - x.min(1, keepdim=True).values
    red, green, blue = x.split(1, dim=1)
    steps = torch.cat([green - blue, blue - red, red - green], 1).gather(1, top)
    h = 2 * top + steps / torch.where(c > 0, c, 1)
    n = torch.tensor([5.0, 3.0, 1.0], dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    k = (n + h + 6 * amount) % 6
    return v - c * torch.minimum(k, 4 - k).clamp(0, 1)


def _resampling(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Return weights [B, size, side] that resize the pixels start ... start + length − 1 to `size`.

    Returns:
        A triangle about the place of each new pixel, as wide as the step between two of them but at
        least one pixel to either side, cut at the part's ends; rows add up to 1.
    """
    step = (length.double() / size).view(-1, 1, 1)
    place = start.view(-1, 1, 1) + (torch.arange(size).view(1, -1, 1) + 0.5) * step
    pixel = torch.arange(side).view(1, 1, -1)
    within = (pixel >= start.view(-1, 1, 1)) & (pixel < (start + length).view(-1, 1, 1))
    weights = (1 - (pixel + 0.5 - place).abs() / step.clamp(min=1)).clamp(min=0) * within
    return weights / weights.sum(2, keepdim=True)


def _draw(x: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """Return which images [B, 1, 1, 1] a change of probability p falls on."""
    return (torch.rand(len(x), generator=generator) < p).view(-1, 1, 1, 1).to(x.device)


def _coloured(name: str, x: Tensor) -> None:
    if x.shape[1] not in (1, 3):
        raise UnseenError(
            f"{name} takes images of one channel or of three; found {x.shape[1]} channels."
        )


def _pair(name: str, values: object, most: float) -> tuple[float, float]:
    """Return two positive numbers in order, of which the larger is at most `most`."""
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise UnseenError(f"{name} must be two numbers, the least and the largest; found {values}.")
    for value in values:
        number(name, value, 0, most, open_low=True)
    low, high = map(float, values)
    if low > high:
        raise UnseenError(f"{name} must have the smaller number first; found {values}.")
    return low, high
