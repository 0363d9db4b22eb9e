"""Images by amplitude and phase: what is exchanged is the amplitude; the phase stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from unseen.core import Split
from unseen.core.schedule import floor_share
from unseen.errors import UnseenError
from unseen.ranges import Checked, Range


@dataclass(frozen=True)
class Window(Checked):
    """The amplitudes of an image at low frequencies: |u| ≤ b and |v| ≤ b, b = ⌊share · min(H, W)⌋.

    Only v ≥ 0 is kept, since a real image's spectrum is Hermitian, F(−u, −v) = conj F(u, v).

    Attributes:
        share: In [0, 0.5]; 0 is the DC coefficient alone, which is |mean of the channel| · H · W;
            None is the whole spectrum.

    Example:
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> Window(0)(x), Window(0.25)(x).shape, Window()(x).shape
        (tensor([[[[32.]]]]), torch.Size([1, 1, 5, 3]), torch.Size([1, 1, 8, 5]))
    """

    share: Annotated[float, Range(0, 0.5)] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the amplitudes [N, C, r, c] of images [N, C, H, W] inside the window."""
        rows, columns = self.index(x.shape[-2:])
        amplitude: Tensor = spectrum(x).abs()[..., rows, columns]
        return amplitude

    def index(self, size: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return rows [r, 1] and columns [c] of the window in a half spectrum [H, W // 2 + 1]."""
        height, width = size
        b = max(size) if self.share is None else floor_share(self.share, min(size))
        rows = (torch.arange(-b, b + 1) % height).unique()  # type: ignore[no-untyped-call]
        return rows[:, None], torch.arange(min(b, width // 2) + 1)


def spectrum(x: Tensor) -> Tensor:
    """Return the half spectrum [N, C, H, W // 2 + 1] of images [N, C, H, W]."""
    if x.ndim != 4:
        raise UnseenError(
            "amplitudes are taken of images [N, channels, height, width]; found inputs of shape "
            f"{list(x.shape)}."
        )
    half: Tensor = torch.fft.rfft2(x)
    return half


def mixed(x: Tensor, other: Tensor, lam: Tensor | float, window: Window) -> Tensor:
    """Return images with amplitude (1 − λ) |F(x)| + λ A inside the window, and the phase of x.

    Args:
        x: Images [N, C, H, W].
        other: A, amplitudes in the window of one image per row of x or of one for all, of any
            shape. The result has this amplitude where A is that of real images or a mean of them:
            symmetric in u where v = 0 and, for even W, where v = W / 2.
        lam: λ [N] or a number.
        window: The frequencies.
    """
    rows, columns = window.index(x.shape[-2:])
    half = spectrum(x)
    amplitude = half.abs()
    phase = phases(half, amplitude)
    own = amplitude[..., rows, columns]
    # (1 − λ) a + λ b, so that λ = 0 and λ = 1 are exact.
    lam = lam.view(-1, 1, 1, 1).to(own) if isinstance(lam, Tensor) else lam
    amplitude[..., rows, columns] = (1 - lam) * own + lam * other.view(-1, *own.shape[1:])
    return image_of(phase, amplitude, x)


def mixed_within(x: Tensor, order: Tensor, lam: Tensor) -> Tensor:
    """Return images with amplitude (1 − λ) |F(x)| + λ |F(x_π)|, and the phase of x.

    Args:
        x: Images [N, C, H, W].
        order: π, of which of them each one's other amplitude is [N].
        lam: λ [N].
    """
    half = spectrum(x)
    amplitude = half.abs()
    phase = phases(half, amplitude)
    lam = lam.view(-1, 1, 1, 1).to(amplitude)
    amplitude = (1 - lam) * amplitude + lam * amplitude.index_select(0, order)
    return image_of(phase, amplitude, x)


def phases(half: Tensor, amplitude: Tensor) -> Tensor:
    """Return cos and sin of arg F [..., 2] of a half spectrum F; 1 and 0 where F is as good as 0.

    Args:
        half: F.
        amplitude: |F|.

    Note:
        Below the smallest normal number the reciprocal of an amplitude is not finite. Both parts
        are real, since an export to ONNX has no choice between complex numbers.
    """
    none = (amplitude < torch.finfo(amplitude.dtype).tiny)[..., None]
    parts = torch.view_as_real(half) / amplitude[..., None].masked_fill(none, 1)
    return torch.where(none, torch.tensor([1.0, 0.0]).to(parts), parts)


def image_of(phase: Tensor, amplitude: Tensor, like: Tensor) -> Tensor:
    """Return the images [N, C, H, W] of phases and amplitudes, of the size of others."""
    half = torch.view_as_complex(phase * amplitude[..., None])
    images: Tensor = torch.fft.irfft2(half, s=(like.shape[-2], like.shape[-1]))
    return images


def pixel_range(split: Split) -> tuple[float, float]:
    """Return the least and the largest value a pixel may take.

    Returns:
        0 and 1 for uint8 data, which are read as x / 255, and else what this client's images hold.
    """
    if split.x.dtype == torch.uint8:
        return 0.0, 1.0
    low, high = torch.aminmax(split.x[:])
    return float(low), float(high)
