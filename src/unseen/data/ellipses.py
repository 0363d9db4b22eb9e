"""Drawn images with masks that are known: a disc with a core, seen by four sites' cameras."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts, Info
from unseen.errors import number
from unseen.ranges import Range

FACTS = Facts.of("ellipses")


@dataclass(frozen=True)
class Look:
    """How a site sees a scene.

    Attributes:
        contrast: What brightness is multiplied by, about ½.
        tint: What red, green and blue are multiplied by.
        noise: The deviation of each pixel's noise.
        waves: Periods of the background's texture across the image.
        light: How much brighter the right edge is than the left.
    """

    contrast: float
    tint: tuple[float, float, float]
    noise: float
    waves: float
    light: float


SITES = {
    "amber": Look(0.9, (1.0, 0.75, 0.45), 0.03, 3.0, 0.1),
    "faint": Look(0.35, (0.95, 1.0, 1.0), 0.02, 2.0, -0.1),
    "grainy": Look(0.8, (0.9, 1.0, 0.9), 0.16, 5.0, 0.0),
    "plain": Look(1.0, (1.0, 1.0, 1.0), 0.02, 2.0, 0.2),
}


def load(
    data_dir: str | Path | None = None,
    *,
    size: Annotated[int, Range(16, 512)] = 32,
    count: Annotated[int, Range(2, 10_000)] = 60,
) -> DataSet:
    """Four sites of drawn images uint8 [N, 3, S, S] with masks: background, disc, core.

    Args:
        data_dir: Not read: no file is needed.
        size: S in pixels.
        count: N of each site.

    Note:
        Every image has an ellipse of random place, size and angle with a brighter core inside, on
        a background of waves. Masks are drawn from the ellipses' equations at the pixels' centres,
        so that they are exact. What a site differs in is its camera (`SITES`), not what it shows.
    """
    number("ellipses(size)", size, 16, 512, whole=True)
    number("ellipses(count)", count, 2, 10_000, whole=True)
    domains = []
    for name, look in SITES.items():
        generator = keyed(f"ellipses/{name}")
        pictures = [picture(look, size, generator) for _ in range(count)]
        x, y = (torch.stack(parts) for parts in zip(*pictures, strict=True))
        domains.append(Domain(name, x, y))
    notes = ("its images are drawn, so figures on it say nothing about real ones",)
    return FACTS.data(domains, FACTS.labels, masks=True, notes=notes)


def picture(look: Look, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one image uint8 [3, S, S] and its mask int64 [S, S]."""
    draws = torch.rand(9, generator=generator, dtype=torch.float64).tolist()
    place = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    v, u = torch.meshgrid(place, place, indexing="ij")
    disc = inside(u, v, draws, 1.0)
    core = inside(u, v, draws, 0.35 + 0.25 * draws[5])
    angle = 2 * math.pi * draws[6]
    phase = 2 * math.pi * (look.waves * (u * math.cos(angle) + v * math.sin(angle)) + draws[7])
    scene = 0.3 + 0.08 * torch.sin(phase) + disc * (0.2 + 0.1 * draws[8]) + core * 0.25
    view = 0.5 + look.contrast * (scene - 0.5) + look.light * (u - 0.5)
    colours = view * torch.tensor(look.tint, dtype=torch.float64).view(3, 1, 1)
    noise = torch.randn(3, size, size, generator=generator, dtype=torch.float64)
    pixels = (255 * (colours + look.noise * noise)).round().clamp(0, 255).to(torch.uint8)
    return pixels, disc.long() + core.long()


def inside(u: Tensor, v: Tensor, draws: list[float], scale: float) -> Tensor:
    """Return which points lie in the ellipse of these draws, made smaller about its centre.

    Its centre lies within [0.35, 0.65]², its half axes within [0.12, 0.28] of the image's side.

    Args:
        u: Of each point, from left to right in [0, 1].
        v: From top to bottom.
        draws: Five numbers in [0, 1]: centre, half axes, angle.
        scale: 1 for the ellipse itself.
    """
    centre = [0.35 + 0.3 * d for d in draws[:2]]
    long, wide = (scale * (0.12 + 0.16 * d) for d in draws[2:4])
    cos, sin = math.cos(math.pi * draws[4]), math.sin(math.pi * draws[4])
    right, down = u - centre[0], v - centre[1]
    along, across = right * cos + down * sin, down * cos - right * sin
    return (along / long).square() + (across / wide).square() <= 1


INFO = Info(**vars(FACTS), loader=load)
