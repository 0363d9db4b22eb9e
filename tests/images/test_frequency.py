"""Amplitude and phase of images against numpy's full transforms, and what may be swapped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen import UnseenError
from unseen.core.client import Split
from unseen.core.turn import keyed
from unseen.methods.images.frequency import Window, mixed, mixed_within, pixel_range, spectrum

SIZES = [(8, 8), (7, 9), (28, 28), (6, 11)]


def images(size, n=5, channels=3, name="x", dtype=torch.float32):
    return torch.rand(n, channels, *size, generator=keyed(name)).to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_there_and_back_is_the_image(size):
    x = images(size)
    for lam in (0.0, torch.zeros(5)):
        again = mixed(x, Window()(images(size, name="other")), lam, Window())
        torch.testing.assert_close(again, x, rtol=0, atol=1e-5)
    back = mixed(x, Window()(x), 1.0, Window())
    torch.testing.assert_close(back, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [None, 0.0, 0.2, 0.5])
def test_a_mixed_image_has_its_own_phase_and_the_chosen_amplitude(size, share):
    x, other = (images(size, name=n, dtype=torch.float64) for n in ("x", "other"))
    lam, window = torch.linspace(0, 1, 5, dtype=torch.float64), Window(share)
    found = spectrum(mixed(x, window(other), lam, window))
    own, rows, columns = spectrum(x), *window.index(size)
    expected = own.abs()
    weight = lam.view(-1, 1, 1, 1)
    inside = (1 - weight) * own.abs() + weight * spectrum(other).abs()
    expected[..., rows, columns] = inside[..., rows, columns]
    torch.testing.assert_close(found.abs(), expected, rtol=1e-9, atol=1e-9)
    turned = found * own.conj()  # on the positive real axis where the phases agree
    torch.testing.assert_close(turned.real, found.abs() * own.abs(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(turned.imag, torch.zeros_like(turned.imag), rtol=0, atol=1e-9)


def swapped(x: np.ndarray, a: np.ndarray, share: float, lam: float) -> np.ndarray:
    """The swap on the whole, centred spectrum, image by image, as the published codes have it."""
    half = np.fft.fft2(x, axes=(-2, -1))
    amplitude, phase = np.abs(half), np.angle(half)
    centred = np.fft.fftshift(amplitude, axes=(-2, -1))
    theirs = np.fft.fftshift(np.abs(np.fft.fft2(a, axes=(-2, -1))), axes=(-2, -1))
    h, w = x.shape[-2:]
    b, ch, cw = int(np.floor(min(h, w) * share)), h // 2, w // 2
    at = (slice(None), slice(max(ch - b, 0), ch + b + 1), slice(max(cw - b, 0), cw + b + 1))
    centred[at] = centred[at] * (1 - lam) + theirs[at] * lam
    amplitude = np.fft.ifftshift(centred, axes=(-2, -1))
    return np.real(np.fft.ifft2(amplitude * np.exp(1j * phase), axes=(-2, -1)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
def test_the_window_is_that_of_the_centred_spectrum(size, share):
    x, other = (images(size, name=n, dtype=torch.float64) for n in ("x", "other"))
    found = mixed(x, Window(share)(other), 0.7, Window(share))
    expected = [swapped(i, o, share, 0.7) for i, o in zip(x.numpy(), other.numpy(), strict=True)]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_mixed_among_themselves_is_mixed_with_the_others_amplitude(size):
    x = images(size, dtype=torch.float64)
    order, lam = torch.tensor([3, 0, 4, 1, 1]), torch.linspace(0, 1, 5, dtype=torch.float64)
    found = mixed_within(x, order, lam)
    whole, weight = np.fft.fft2(x.numpy()), lam.numpy()[:, None, None, None]
    amplitude = (1 - weight) * np.abs(whole) + weight * np.abs(whole)[order.numpy()]
    expected = np.real(np.fft.ifft2(amplitude * np.exp(1j * np.angle(whole))))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1.0, 1e30])
def test_a_frequency_without_amplitude_has_phase_0(scale):
    """As `angle` has it: a black image takes on the other's amplitude, all of it at phase 0."""
    dark = torch.full((1, 1, 4, 4), scale)
    bright = torch.rand(1, 1, 4, 4, generator=keyed("bright"))
    found = mixed_within(torch.cat([dark, bright]), torch.tensor([1, 1]), torch.ones(2))
    assert found.isfinite().all()
    whole = np.abs(np.fft.fft2(bright.double().numpy()))
    expected = np.real(np.fft.ifft2(whole))  # a constant image: F is real, not negative
    np.testing.assert_allclose(found[:1].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(found[1:].numpy(), bright.numpy(), atol=1e-6)


@pytest.mark.parametrize("share", [None, 0.3])
def test_mixed_images_have_derivatives(share):
    """By automatic differentiation against differences, as what looks at inputs needs them."""
    x = images((4, 5), n=2, channels=1, dtype=torch.float64).requires_grad_()
    other, lam = (
        images((4, 5), n=2, channels=1, name="other", dtype=torch.float64),
        torch.tensor(0.3),
    )
    window = Window(share)
    assert torch.autograd.gradcheck(lambda x: mixed(x, window(other), 0.3, window), x)
    order = torch.tensor([1, 0])
    assert torch.autograd.gradcheck(lambda x: mixed_within(x, order, lam.expand(2)), x)


def test_dc_alone_moves_the_mean_of_each_channel():
    x, other = images((8, 8)), images((8, 8), name="other")
    found = mixed(x, Window(0)(other), 1.0, Window(0))
    shift = other.mean((2, 3), keepdim=True) - x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(found, x + shift)


def test_an_amplitude_that_is_no_real_images_is_not_to_be_had():
    """Symmetry in u at v = 0 is what makes the result real: without it the amplitude changes."""
    x = images((8, 8), dtype=torch.float64)
    a = Window()(images((8, 8), name="other", dtype=torch.float64))
    torch.testing.assert_close(spectrum(mixed(x, a, 1.0, Window())).abs(), a)
    a[..., 1, 0] *= 2
    found = spectrum(mixed(x, a, 1.0, Window())).abs()
    assert (found[..., 1, 0] - a[..., 1, 0]).abs().min() > 1e-3
    torch.testing.assert_close(found[..., 1:], a[..., 1:])


def test_black_images_and_one_amplitude_for_all_are_no_special_case():
    black = torch.zeros(2, 1, 8, 8)
    assert torch.isfinite(mixed(black, Window()(images((8, 8), 2, 1)), 1.0, Window())).all()
    mean = Window()(images((8, 8))).mean(0).flatten()
    found = mixed(images((8, 8)), mean, 1.0, Window())
    torch.testing.assert_close(
        Window()(found), mean.view(1, 3, 8, 5).expand(5, -1, -1, -1), rtol=1e-4, atol=1e-4
    )


def test_pixels_range_over_what_their_type_or_their_client_holds():
    y = torch.zeros(2, dtype=torch.long)
    assert pixel_range(Split(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8), y)) == (0.0, 1.0)
    assert pixel_range(Split(torch.tensor([[-1.0], [2.0]]), y)) == (-1.0, 2.0)


def test_tables_and_windows_beyond_the_image_are_refused():
    with pytest.raises(UnseenError, match=r"images \[N, channels, height, width\].*\[4, 6\]"):
        Window()(torch.zeros(4, 6))
    with pytest.raises(UnseenError, match=r"Window\(share\)"):
        Window(0.6)
