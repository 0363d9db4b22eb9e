"""A user's images, from a folder and from an archive of it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unseen.data import load
from unseen.errors import UnseenError

TREE = {
    "photo": {"cat": ["b.png", "a.PNG"], "dog": ["1.jpg"]},
    "sketch": {"cat": ["x.bmp"], "dog": ["2.jpeg", "10.png"]},
}
GREY = {"b.png": 10, "a.PNG": 20, "1.jpg": 30, "x.bmp": 40, "2.jpeg": 50, "10.png": 60}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "animals"
    for domain, classes in TREE.items():
        for label, names in classes.items():
            (root / domain / label).mkdir(parents=True)
            for name in names:
                Image.new("RGB", (9, 9), (GREY[name], 0, 255)).save(root / domain / label / name)
    return root


def test_domains_classes_and_images_stand_in_the_order_of_their_names(tree: Path) -> None:
    data = load("folder", tree, size=9)
    assert data.names == ("photo", "sketch") and data.classes == ("cat", "dog")
    photo, sketch = data.domains
    assert photo.y.tolist() == [0, 0, 1] and sketch.y.tolist() == [0, 1, 1]
    assert photo.x.shape == (3, 3, 9, 9) and photo.x.dtype == torch.uint8
    assert photo.x[:, 0, 4, 4].tolist() == pytest.approx([20, 10, 30], abs=2)  # JPEG is lossy
    assert sketch.x[:, 0, 4, 4].tolist() == pytest.approx([40, 60, 50], abs=2)
    assert photo.x[0, :, 4, 4].tolist() == [20, 0, 255]  # red, green, blue


def test_an_archive_gives_the_same_as_its_folder(tree: Path) -> None:
    for name, mode in (("a.tar", "w"), ("b.tar.gz", "w:gz")):
        with tarfile.open(tree.parent / name, mode) as archive:  # type: ignore[call-overload]
            archive.add(tree, arcname="." if mode == "w" else "data/animals")
        unpacked = load("folder", tree, size=9)
        archived = load("folder", tree.parent, path=name, size=9)
        assert archived.names == unpacked.names and archived.classes == unpacked.classes
        for a, b in zip(archived.domains, unpacked.domains, strict=True):
            assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def test_images_are_resized_and_made_grey(tree: Path) -> None:
    file = tree / "photo" / "cat" / "a.PNG"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    small = Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)
    x = load("folder", tree, size=16)["photo"].x[0]
    assert np.array_equal(x.permute(1, 2, 0).numpy(), np.asarray(small))
    grey = load("folder", tree, size=16, grey=True)["photo"].x
    assert grey.shape == (3, 1, 16, 16)


def test_hidden_and_other_files_are_passed_over(tree: Path) -> None:
    (tree / "photo" / "cat" / ".hidden.png").write_bytes(b"not an image")
    (tree / "photo" / "cat" / "notes.txt").write_text("not an image")
    (tree / ".cache" / "cat").mkdir(parents=True)
    (tree / ".cache" / "cat" / "a.png").write_bytes(b"not an image")
    (tree / "readme.png").write_bytes(b"not in a class")
    assert [len(d.y) for d in load("folder", tree).domains] == [3, 3]


def test_a_class_that_only_one_domain_has_is_one_and_is_remarked_upon(tree: Path) -> None:
    (tree / "photo" / "dog").rename(tree / "photo" / "dgo")
    data = load("folder", tree)
    assert data.classes == ("cat", "dgo", "dog")
    assert data["photo"].y.tolist() == [0, 0, 1] and data["sketch"].y.tolist() == [0, 2, 2]
    (note,) = data.notes
    assert note.startswith("2 classes occur at one site alone, 'dgo' at photo, 'dog' at sketch")
    with pytest.raises(UnseenError, match=r"domain 'photo'\) 'dgo'; did you mean 'dog'"):
        load("folder", tree, classes=["cat", "dog"])


def test_a_domain_may_lack_a_class_that_others_have(tree: Path) -> None:
    (tree / "third").mkdir()
    (tree / "photo" / "cat").rename(tree / "third" / "cat")
    data = load("folder", tree)
    assert data.classes == ("cat", "dog") and data.notes == ()
    assert data["photo"].y.tolist() == [1] and data["third"].y.tolist() == [0, 0]


def test_listed_classes_may_be_absent_from_a_domain(tree: Path) -> None:
    (tree / "photo" / "dog" / "1.jpg").unlink()
    data = load("folder", tree, classes=["dog", "cat", "fox"])
    assert data.classes == ("dog", "cat", "fox")
    assert data["photo"].y.tolist() == [1, 1] and data["sketch"].y.tolist() == [1, 0, 0]


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89PNG\r\n\x1a\n"])
def test_an_unreadable_image_is_named(tree: Path, content: bytes) -> None:
    (tree / "sketch" / "dog" / "10.png").write_bytes(content)
    with pytest.raises(UnseenError, match=r"sketch/dog/10\.png cannot be read"):
        load("folder", tree)


def test_a_truncated_image_is_named(tree: Path) -> None:
    file = tree / "sketch" / "dog" / "10.png"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(UnseenError, match=r"sketch/dog/10\.png cannot be read"):
        load("folder", tree)


def test_images_of_more_than_8_bits_are_refused_rather_than_clipped(tree: Path) -> None:
    Image.fromarray(np.full((9, 9), 40_000, dtype=np.uint16)).save(tree / "photo/cat/b.png")
    with pytest.raises(UnseenError, match=r"photo/cat/b\.png has more than 8 bits"):
        load("folder", tree)


def test_a_place_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="no images lie under"):
        load("folder", tmp_path)
    with pytest.raises(UnseenError, match="does not exist"):
        load("folder", tmp_path, path="absent")
    (tmp_path / "notes.txt").write_text("no archive")
    with pytest.raises(UnseenError, match="neither a folder nor a tar archive"):
        load("folder", tmp_path, path="notes.txt")


def test_an_archive_of_two_trees_is_refused(tree: Path) -> None:
    file = tree.parent / "two.tar"
    with tarfile.open(file, "w") as archive:
        archive.add(tree, arcname="train")
        archive.add(tree, arcname="test")
    with pytest.raises(UnseenError, match="found test and train"):
        load("folder", tree.parent, path="two.tar")


def test_pacs_has_its_9991_images(real_data: Path) -> None:
    data = load("folder", real_data, path="pacs_64/PACS_64.tar")
    assert data.names == ("art_painting", "cartoon", "photo", "sketch")
    assert [len(d.y) for d in data.domains] == [2048, 2344, 1670, 3929]
    assert data.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    # Sketches are black on white: of all domains theirs are the brightest and least coloured.
    some = {d.name: d.x[::20].float() for d in data.domains}
    brightness = {name: float(x.mean()) for name, x in some.items()}
    colour = {name: float(x.std(dim=1).mean()) for name, x in some.items()}
    assert max(brightness, key=brightness.__getitem__) == "sketch"
    assert min(colour, key=colour.__getitem__) == "sketch"
