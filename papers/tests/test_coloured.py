"""Color-MNIST: every statement of its description, checked on the real digits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from unseen.core.turn import keyed
from unseen.data import load
from unseen.data.dataset import DataSet, Domain
from unseen_papers.data import mnist
from unseen_papers.data.mnist import colour


@pytest.fixture(scope="module")
def data(real_data: Path) -> DataSet:
    return load("color-mnist", real_data)


def colours(domain: Domain) -> torch.Tensor:
    """The only channel that is not empty."""
    lit = domain.x.flatten(2).amax(dim=2) > 0
    assert bool((lit.sum(dim=1) == 1).all())
    return lit.long().argmax(dim=1)


def small(images: torch.Tensor) -> list[bytes]:
    return [bytes(image) for image in images[:, ::2, ::2].flatten(1).numpy()]


def test_the_image_stands_in_the_channel_of_its_colour() -> None:
    images = torch.arange(2 * 28 * 28).view(2, 28, 28).remainder(255).to(torch.uint8)
    x, y = colour(images, torch.tensor([4, 5]), 0.0, 0.0, keyed("any"))
    assert y.tolist() == [1, 0]  # y = 1[digit < 5]
    assert torch.equal(x[0, 1], images[0, ::2, ::2]) and int(x[0, 0].max()) == 0
    assert torch.equal(x[1, 0], images[1, ::2, ::2]) and int(x[1, 1].max()) == 0


def test_colour_follows_the_label_after_its_own_noise() -> None:
    images = torch.ones(4, 28, 28, dtype=torch.uint8)
    digits = torch.tensor([0, 4, 5, 9])
    x, y = colour(images, digits, 0.0, 1.0, keyed("any"))
    assert y.tolist() == [0, 0, 1, 1]
    assert x[:, 1, 0, 0].tolist() == [0, 0, 1, 1]
    x, y = colour(images, digits, 1.0, 0.0, keyed("any"))
    assert y.tolist() == [1, 1, 0, 0]
    assert x[:, 1, 0, 0].tolist() == [0, 0, 1, 1]


def test_domains_and_their_sizes(data: DataSet) -> None:
    assert data.names == (
        "flip-0.15", "flip-0.30", "flip-0.45", "flip-0.60", "flip-0.75", "ood-0.90",
    )  # fmt: skip
    for domain in data.domains:
        assert domain.x.shape == (10_000, 2, 14, 14) and domain.x.dtype == torch.uint8
    for domain in data.domains[:-1]:
        assert domain.validation is not None and len(domain.validation) == 2_000
    assert data["ood-0.90"].validation is None


def test_clients_share_the_first_50000_images_and_the_ood_domain_has_the_rest(
    data: DataSet, real_data: Path
) -> None:
    images, _ = mnist.read(real_data, "train")
    merged = [bytes(i) for d in data.domains[:-1] for i in d.x.amax(dim=1).flatten(1).numpy()]
    assert sorted(merged) == sorted(small(images[:50_000]))
    ood = [bytes(i) for i in data["ood-0.90"].x.amax(dim=1).flatten(1).numpy()]
    assert ood == small(images[50_000:])


def test_labels_are_clean_at_clients_and_flipped_at_the_target(
    data: DataSet, real_data: Path
) -> None:
    images, digits = mnist.read(real_data, "train")
    truth = dict(zip(small(images), (digits < 5).long().tolist(), strict=True))
    for domain in data.domains[:-1]:
        found = [truth[bytes(i)] for i in domain.x.amax(dim=1).flatten(1).numpy()]
        assert found == domain.y.tolist()
    wrong = (data["ood-0.90"].y != (digits[50_000:] < 5).long()).double().mean()
    assert abs(float(wrong) - 0.15) < five_sigma(0.15)


def test_colours_are_wrong_as_often_as_the_name_says(data: DataSet) -> None:
    for domain in data.domains:
        probability = float(domain.name.split("-")[1])
        wrong = (colours(domain) != domain.y).double().mean()
        assert abs(float(wrong) - probability) < five_sigma(probability), domain.name


def test_training_and_validation_rows_are_coloured_alike(data: DataSet) -> None:
    domain = data["flip-0.15"]
    assert domain.validation is not None
    wrong = (colours(domain) != domain.y)[domain.validation].double().mean()
    assert abs(float(wrong) - 0.15) < five_sigma(0.15, 2_000)


def five_sigma(probability: float, n: int = 10_000) -> float:
    """Five standard deviations of a share of n draws."""
    return 5 * math.sqrt(probability * (1 - probability) / n)
