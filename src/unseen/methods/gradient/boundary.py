"""FedDG's boundary term: features on borders of objects lie together, apart from those around."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core import Model
from unseen.core.labels import IGNORED
from unseen.errors import UnseenError
from unseen.methods.images.features import Tap, tapped

#: How many pixels around an object are its background, as released.
AROUND = 5


@dataclass(frozen=True)
class Regions:
    """Where to look in the features of a batch.

    Attributes:
        maps: Shares [M, N, H, W] of each pixel in the mean of a region: of all regions M, the
            borders of class 1, what is around it, the borders of class 2, ...
        there: Which images have both regions of a class [C − 1, N].
    """

    maps: Tensor
    there: Tensor

    @classmethod
    def of(cls, y: Tensor, classes: int) -> Regions:
        """Return the regions of masks [N, H, W]."""
        counted, maps, there = y != IGNORED, [], []
        for c in range(1, classes):
            mask = y == c
            border = mask & dilated(~mask, 1, outside=True)
            around = dilated(mask, AROUND) & ~mask & counted
            pair = torch.stack([border, around]).float()
            sizes = pair.sum((2, 3), keepdim=True)
            maps.append(pair / sizes.clamp(min=1))
            there.append((sizes > 0).all(0).view(-1))
        return cls(torch.cat(maps), torch.stack(there))

    def means(self, features: Tensor) -> Tensor:
        """Return the mean features [M, N, D] of each region of features [N, D, H, W]."""
        if features.shape[2:] != self.maps.shape[2:]:
            raise UnseenError(
                "feddg(boundary) reads features of the masks' size; the network's last convolution "
                f"takes {list(features.shape[2:])}, and masks are {list(self.maps.shape[2:])}.",
                remedy="Take unet, or boundary=0.",
            )
        return torch.einsum("mnhw,ndhw->mnd", self.maps.to(features), features)

    def contrast(self, own: Tensor, foreign: Tensor, temperature: float) -> Tensor:
        """Return Σ_c NT-Xent of the means [M, N, D] of images and of their likes in other styles.

            mean over pairs (a, p) of one kind of −log [e^{s_ap} / (e^{s_ap} + Σ_n e^{s_an})]

        Of one class the kinds are borders and what is around; n: those of the other kind than a; s
        = cosine / temperature.
        """
        total = own.new_zeros(())
        for c, there in enumerate(self.there):
            if bool(there.any()):
                border, around = (
                    torch.cat([z[k][there] for z in (own, foreign)]) for k in (2 * c, 2 * c + 1)
                )
                total = total + nt_xent(border, around, temperature)
        return total


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the contrast of two kinds of vectors [n, D] and [m, D]; see `Regions.contrast`."""
    z = F.normalize(torch.cat([first, second]), dim=1)
    kind = torch.arange(len(z), device=z.device) < len(first)
    s = z @ z.T / temperature
    alike = kind[:, None] == kind
    others = s.masked_fill(alike, -torch.inf).logsumexp(1, keepdim=True)
    each = torch.logaddexp(s, others) - s
    pairs = alike & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    return each[pairs].mean()


def dilated(mask: Tensor, times: int, outside: bool = False) -> Tensor:
    """Return masks [N, H, W] grown by their four neighbours, again and again.

    Args:
        mask: Booleans.
        times: How often.
        outside: Whether what lies beyond the image's edge belongs to the mask.
    """
    for _ in range(times):
        wide = F.pad(mask.float(), (1, 1, 1, 1), value=float(outside)) > 0
        mask = (
            wide[:, 1:-1, 1:-1] | wide[:, :-2, 1:-1] | wide[:, 2:, 1:-1]
            | wide[:, 1:-1, :-2] | wide[:, 1:-1, 2:]
        )  # fmt: skip
    return mask


@contextmanager
def watched(module: nn.Module) -> Iterator[Tap]:
    """Hook what enters a network's last convolution."""
    convolutions = [n for n, part in module.named_modules() if isinstance(part, nn.Conv2d)]
    if not convolutions:
        raise UnseenError("feddg(boundary) reads a convolution, and the network has none.")
    with tapped(module, convolutions[-1], "input") as tap:
        yield tap


@dataclass(frozen=True)
class Contrast:
    """γ B for a model whose weights move in place between its two passes.

    Attributes:
        model: The model.
        tap: Looks at what enters its last convolution.
        classes: How many classes there are.
        weight: γ.
        temperature: Of the contrast.
    """

    model: Model
    tap: Tap
    classes: int
    weight: float
    temperature: float

    def means(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean features of the regions of images, at the model's weights."""
        with torch.no_grad():
            return self._means(x, Regions.of(y, self.classes))

    def there(self, own: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradient at the weights of the images in another style.

        Args:
            own: The means of the images themselves, at their weights.
            x: The images in another style.
            y: The masks of both.

        Returns:
            γ B, and its gradient in `own`.
        """
        regions = Regions.of(y, self.classes)
        own, foreign = own.requires_grad_(True), self._means(x, regions)
        value = self.weight * regions.contrast(own, foreign, self.temperature)
        if not value.requires_grad:  # no image has an object
            return value, torch.zeros_like(own)
        value.backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        return value.detach(), own.grad

    def here(self, x: Tensor, y: Tensor, slope: Tensor) -> None:
        """Add the gradient at the weights of the images themselves, from that in their means."""
        means = self._means(x, Regions.of(y, self.classes))
        (means * slope).sum().backward()  # type: ignore[no-untyped-call]

    def _means(self, x: Tensor, regions: Regions) -> Tensor:
        means: list[Tensor] = []

        def see(z: Tensor) -> Tensor:
            means.append(regions.means(z))
            return z

        self.tap.change = see
        try:
            self.model(x)
        finally:
            self.tap.change = None
        return means[-1]
