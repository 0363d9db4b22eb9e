"""MNIST's files in all their spellings, and the rotated digits."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from unseen.data import load
from unseen.errors import UnseenError
from unseen_papers.data import mnist

SMALL = {"train": 5, "t10k": 3}


def idx(magic: int, *shape: int) -> bytes:
    """An idx file after its description: magic number, sizes, bytes; here 0, 1, 2, ... mod 10."""
    count = 1
    for n in shape:
        count *= n
    return struct.pack(f">{1 + len(shape)}i", magic, *shape) + bytes(i % 10 for i in range(count))


def write(folder: Path, packed: bool, dot: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in SMALL.items():
        contents = {"images": (3, idx(2051, n, 28, 28)), "labels": (1, idx(2049, n))}
        for kind, (axes, content) in contents.items():
            name = f"{part}-{kind}{dot}idx{axes}-ubyte" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(content) if packed else content)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "PARTS", SMALL)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dot", ["-", "."])
def test_files_are_read_in_every_spelling(
    tmp_path: Path, folder: str, packed: bool, dot: str
) -> None:
    write(tmp_path / folder, packed, dot)
    images, digits = mnist.read(tmp_path, "train")
    assert images.shape == (5, 28, 28) and images.dtype == torch.uint8
    assert images[0, 0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert digits.tolist() == [0, 1, 2, 3, 4] and digits.dtype == torch.int64
    data = load("rotated-mnist", tmp_path)
    assert [len(d.y) for d in data.domains] == [2, 2, 1, 1, 1, 1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(idx(2051, 5, 28, 28))[:-20],
        gzip.compress(idx(2051, 5, 28, 28)[:-1]),
        idx(2049, 5, 28, 28),
        idx(2051, 4, 28, 28),
        b"",
        b"<html>not found</html>",
    ],
    ids=["cut gzip", "cut idx", "wrong kind", "fewer images", "empty", "a web page"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, True, "-")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(UnseenError, match=r"train-images-idx3-ubyte\.gz"):
        load("rotated-mnist", tmp_path)


def test_all_70000_digits_stand_in_six_domains(real_data: Path) -> None:
    data = load("rotated-mnist", real_data)
    assert data.names == ("0", "15", "30", "45", "60", "75")
    assert [len(d.y) for d in data.domains] == [11667] * 4 + [11666] * 2
    assert {(tuple(d.x.shape[1:]), d.x.dtype) for d in data.domains} == {((1, 28, 28), torch.uint8)}
    # The number of images of each digit in MNIST's training and test set together.
    digits = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert torch.cat([d.y for d in data.domains]).bincount().tolist() == digits


def test_the_upright_domain_has_its_own_digits(real_data: Path) -> None:
    train, test = mnist.read(real_data, "train"), mnist.read(real_data, "t10k")
    images, digits = torch.cat([train[0], test[0]]), torch.cat([train[1], test[1]])
    known = dict(zip(map(bytes, images.flatten(1).numpy()), digits.tolist(), strict=True))
    upright = load("rotated-mnist", real_data)["0"]
    found = [known[bytes(image)] for image in upright.x.flatten(1).numpy()]
    assert found == upright.y.tolist()
