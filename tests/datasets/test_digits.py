"""The rotated digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from unseen.data import load
from unseen.data.digits import rotate


def test_six_disjoint_domains_hold_every_digit_once() -> None:
    data = load("rotated-digits")
    assert data.names == ("0", "15", "30", "45", "60", "75")
    assert [len(d.y) for d in data.domains] == [300, 300, 300, 299, 299, 299]  # 1797 dealt to six
    labels = torch.cat([d.y for d in data.domains])
    assert torch.equal(labels.bincount(), torch.from_numpy(np.bincount(load_digits().target)))


def test_the_upright_domain_holds_images_of_scikit_learn_with_their_labels() -> None:
    digits = load_digits()
    known = {
        image.tobytes(): label for image, label in zip(digits.images, digits.target, strict=True)
    }
    upright = load("rotated-digits")["0"]
    assert upright.x.shape == (300, 1, 8, 8) and upright.x.dtype == torch.float32
    for image, label in zip(upright.x, upright.y, strict=True):
        assert known[(image[0].double() * 16).numpy().tobytes()] == int(label)


def test_every_domain_is_turned_by_its_name() -> None:
    """Each image, turned back, is closer to some upright digit than the image as it is."""
    digits = torch.from_numpy(load_digits().images).float().flatten(1) / 16
    for domain in load("rotated-digits").domains[2:]:
        images = domain.x.squeeze(1)
        back = rotate(images, -float(domain.name)).flatten(1)
        near = torch.cdist(back, digits).amin(dim=1)
        far = torch.cdist(images.flatten(1), digits).amin(dim=1)
        assert float((near < far).float().mean()) > 0.9, domain.name


def test_values_are_grey_levels_and_the_draw_is_always_the_same() -> None:
    one, two = load("rotated-digits"), load("rotated-digits")
    for a, b in zip(one.domains, two.domains, strict=True):
        assert float(a.x.min()) >= 0 and float(a.x.max()) <= 1
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def test_the_global_generator_is_not_touched() -> None:
    before = torch.get_rng_state()
    load("rotated-digits")
    assert torch.equal(torch.get_rng_state(), before)
