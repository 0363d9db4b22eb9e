"""Rotated CIFAR-10: who holds which images, turned by how much."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from paper_sketches import SKETCHES
from PIL import Image

from unseen.core.turn import keyed
from unseen.data import load
from unseen.errors import UnseenError
from unseen_papers.data import cifar


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    """Five batches of 180 images in the binary form; an image's number is in its first pixel."""
    root = tmp_path / "cifar-10-batches-bin"
    root.mkdir()
    draw = np.random.default_rng(0)
    for b in range(5):
        rows = draw.integers(0, 256, (180, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(180) % 10
        (root / f"data_batch_{b + 1}.bin").write_bytes(rows.tobytes())
    return tmp_path


def test_sizes_are_those_of_dealing_out_nine_hands() -> None:
    trained = [len(range(e, 30_000, 9)) for e in range(9)]
    held = [len(range(e, 10_000, 9)) for e in range(9)]
    own = [sum(trained[e : e + 3]) + sum(held[e : e + 3]) for e in (0, 3, 6)]
    assert [cifar.FACTS.totals[f"client-{k}"] for k in (1, 2, 3)] == own
    assert sum(cifar.FACTS.totals.values()) == 50_000


@pytest.mark.parametrize("size", [16, 32])
def test_each_client_has_three_angles_and_the_target_all(batches: Path, size: int) -> None:
    data = load("rotated-cifar10", batches, size=size)
    assert data.names == ("client-1", "client-2", "client-3", "ood")
    angles = data.levels["environment"]
    images, labels = cifar.read(batches)
    order = torch.randperm(720, generator=keyed("rotated-cifar10"))
    for k, domain in enumerate(data.domains[:3]):
        codes = domain.meta["environment"]
        assert [angles[c] for c in codes.unique()] == [str(a) for a in cifar.ANGLES[k]]
        assert len(domain.y) == 240 and domain.validation is not None
        assert domain.validation.tolist() == list(range(180, 240))  # 540 / 9 · 3, 180 / 9 · 3
        for row, image in ((1, order[3 * k + 9]), (181, order[540 + 3 * k + 9])):
            assert codes[row] == 3 * k and domain.y[row] == labels[image]
            plain = images[image].permute(1, 2, 0).numpy()[:: 32 // size, :: 32 // size]
            turned = Image.fromarray(plain).rotate(cifar.ANGLES[k][0])
            assert np.array_equal(domain.x[row].permute(1, 2, 0).numpy(), np.asarray(turned))
    target = data["ood"]
    assert torch.equal(target.y, labels[720:]) and target.validation is None
    assert {angles[c] for c in target.meta["environment"].tolist()} == {"-90 to 90"}


def test_a_quarter_turn_is_exact() -> None:
    x = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    assert torch.equal(cifar.turned(x, [90, -90])[0], x[0].rot90(1, (1, 2)))
    assert torch.equal(cifar.turned(x, [90, -90])[1], x[1].rot90(-1, (1, 2)))


def test_the_python_batches_give_the_same(batches: Path, tmp_path_factory: pytest.TempPathFactory):
    other = tmp_path_factory.mktemp("py")
    (other / "cifar-10-batches-py").mkdir()
    for b in range(1, 6):
        content = (batches / "cifar-10-batches-bin" / f"data_batch_{b}.bin").read_bytes()
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        batch = {"data": rows[:, 1:].copy(), "labels": rows[:, 0].tolist()}
        file = other / "cifar-10-batches-py" / f"data_batch_{b}"
        file.write_bytes(pickle.dumps(batch, protocol=2))
    for a, b in zip(cifar.read(batches), cifar.read(other), strict=True):
        assert torch.equal(a, b)


def test_what_is_no_batch_is_refused(batches: Path) -> None:
    with pytest.raises(UnseenError, match="16 or 32"):
        load("rotated-cifar10", batches, size=28)
    file = batches / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UnseenError, match=r"data_batch_3\.bin is not a batch"):
        load("rotated-cifar10", batches)
    file.rename(file.with_suffix(""))
    file.with_suffix("").write_bytes(pickle.dumps(Path("x")))
    with pytest.raises(UnseenError, match=r"data_batch_3 is not a batch.*not run"):
        load("rotated-cifar10", batches)
    file.with_suffix("").unlink()
    with pytest.raises(UnseenError, match="data_batch_3"):
        load("rotated-cifar10", batches)


def test_the_stand_in_is_read(tmp_path: Path) -> None:
    SKETCHES["rotated-cifar10"](tmp_path)
    assert sum(len(d.y) for d in load("rotated-cifar10", tmp_path).domains) == 200


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Nine images of each class in train/CLASS; a class's number is in all its pixels."""
    root = tmp_path / "CIFAR-10-dataset"
    for number, name in enumerate(cifar.FACTS.classes):
        (root / "train" / name).mkdir(parents=True)
        for i in range(9):
            pixels = np.full((32, 32, 3), number, dtype=np.uint8)
            pixels[0, 0] = i
            Image.fromarray(pixels).save(root / "train" / name / f"{name}_s_{i:06d}.png")
    return tmp_path


def test_folders_of_classes_are_read_without_loss_and_mixed(folders: Path) -> None:
    x, y = cifar.read(folders)
    assert x.shape == (90, 3, 32, 32) and y.bincount().tolist() == [9] * 10
    assert torch.equal(x[:, 0, 5, 5].long(), y)
    pairs = list(zip(y.tolist(), x[:, 0, 0, 0].tolist(), strict=True))
    assert sorted(pairs) == [(label, i) for label in range(10) for i in range(9)] != pairs
    assert all(torch.equal(a, b) for a, b in zip((x, y), cifar.read(folders), strict=True))
    data = load("rotated-cifar10", folders)
    assert len(data["ood"].y.unique()) > 5  # by their names, the last fifth would be two classes
    assert "drawn" in data.notes[0]


def test_batches_go_before_folders(folders: Path, batches: Path) -> None:
    assert folders == batches
    assert len(cifar.read(batches)[1]) == 900
    assert not load("rotated-cifar10", batches).notes


def test_folders_of_other_images_are_refused(folders: Path) -> None:
    image = folders / "CIFAR-10-dataset/train/cat/cat_s_000004.png"
    for size, mode in (((28, 28), "RGB"), ((32, 32), "L")):
        Image.new(mode, size).save(image)
        with pytest.raises(UnseenError, match=r"cat_s_000004\.png .* 32 × 32"):
            cifar.read(folders)
    image.write_bytes(b"nothing")
    with pytest.raises(UnseenError, match=r"cat_s_000004\.png cannot be read"):
        cifar.read(folders)
    image.unlink()
    with pytest.raises(UnseenError, match="89 images"):
        cifar.read(folders)
    for one in image.parent.iterdir():
        one.unlink()
    image.parent.rmdir()
    with pytest.raises(UnseenError, match="data_batch_1"):
        cifar.read(folders)
