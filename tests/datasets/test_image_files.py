"""Images as cameras, scanners and interrupted copies leave them."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from unseen.data import load
from unseen.data.image_files.images import Tree, View, pixels
from unseen.errors import UnseenError

NAMES = ("north/cat/a.png", "north/dog/b.png", "south/cat/c.png", "south/dog/d.png")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    noise = np.random.default_rng(0)
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(root / name)
    return root


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("turned", range(1, 9))
def test_images_are_upright(form: str, turned: int) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (6, 10, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[274] = turned
    file = io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {}
    Image.fromarray(noise).save(file, form, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    expected = View(12)(b"P6 %d %d 255\n" % upright.size + upright.tobytes(), "plain")
    assert torch.equal(View(12)(file.getvalue(), "turned"), expected)
    assert pixels(file.getvalue()) == upright.size


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_png_of_16_bits_is_refused_whatever_its_channels(channels: int) -> None:
    """Pillow reads only the high byte of most of them, and says nothing."""
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + bytes(2 * channels * 4) for _ in range(4))

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0))
    file = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    with pytest.raises(UnseenError, match="more than 8 bits per channel"):
        View(4)(file, "scan.png")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_an_archive_that_is_cut_off_is_refused(tree: Path, mode: str, share: float) -> None:
    path = tree.parent / "photos.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(tree, arcname=".")
    assert len(Tree(path).files()) == len(NAMES)
    content = path.read_bytes()
    end = len(content) if mode != "w" else 512 * (2 * len(NAMES) + 7)  # without the zeros
    for cut in {int(share * end), int(share * end) // 512 * 512}:
        path.write_bytes(content[:cut])
        with pytest.raises(UnseenError, match=r"cut off|cannot be unpacked|neither a folder"):
            Tree(path).files()


def test_a_link_that_leads_back_is_not_followed(tree: Path) -> None:
    (tree / "north" / "loop").symlink_to("..")
    (tree / "south" / "same").symlink_to("cat")  # a link to a neighbour is
    found = [file.path for file in Tree(tree).files()]
    assert sorted(found) == sorted([*NAMES, "south/same/c.png"])


def test_names_are_utf_8(tree: Path) -> None:
    os.rename(tree / "north", os.fsencode(tree) + b"/n\xf6rth")
    with pytest.raises(UnseenError, match=r"'n.*rth/.*' is not UTF-8"):
        load("folder", tree, size=8)


def test_deeper_images_are_mentioned(tree: Path) -> None:
    assert load("folder", tree, size=8).notes == ()
    (tree / "north" / "cat" / "P1").mkdir()
    deeper = tree / "north" / "cat" / "P1" / "e.png"
    deeper.write_bytes((tree / NAMES[0]).read_bytes())
    (note,) = load("folder", tree, size=8).notes
    assert note.startswith("1 image lies deeper") and note.endswith("north/cat/P1/e.png")


def test_folders_of_masks_are_found_in_any_case(tmp_path: Path) -> None:
    for grey, site, names in ((7, "north", ("images", "masks")), (9, "south", ("Images", "MASKS"))):
        for name, fill in zip(names, (grey, 1), strict=True):
            (tmp_path / site / name).mkdir(parents=True)
            Image.new("L", (8, 8), fill).save(tmp_path / site / name / "a.png")
    data = load("masks", tmp_path, path=".", size=8, classes=["none", "disc"])
    assert data.names == ("north", "south") and data.notes == ()
    Image.new("L", (8, 8)).save(tmp_path / "south" / "b.png")
    (note,) = load("masks", tmp_path, path=".", size=8, classes=["none", "disc"]).notes
    assert "outside of images/ and masks/" in note and note.endswith("south/b.png")
