"""Images with masks: the drawn ones, and folders domain/images and domain/masks."""

from __future__ import annotations

import math
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unseen.core.labels import IGNORED
from unseen.data import DataSet, Domain, check, load
from unseen.data.ellipses import SITES
from unseen.data.image_files.mask_files import Values
from unseen.data.summary import inspect, pixel_notes
from unseen.errors import UnseenError
from unseen.expression import parse

MASK = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 0, 0], [2, 2, 0, 0]], np.uint8)
NAMES = ["background", "disc", "core"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", "off")


def pair(root: Path, name: str, mask: np.ndarray, domain: str = "north", mode: str = "") -> None:
    """An image and its mask of one size, each in its folder."""
    height, width = mask.shape[:2]
    for part, array in (("images", np.full((height, width, 3), 9, np.uint8)), ("masks", mask)):
        path = root / domain / part / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(array)
        (image.convert(mode) if mode and part == "masks" else image).save(path)


def read(root: Path, size: int = 4, **options: Any) -> DataSet:
    return load("masks", root, size=size, **options)


# --- drawn ------------------------------------------------------------------------------------


def test_drawn_images_are_the_same_every_time() -> None:
    data, again = load("ellipses(count=5, size=20)"), load("ellipses(count=5, size=20)")
    assert data.kind == "masks"
    assert data.classes == ("background", "disc", "core")
    assert data.names == tuple(SITES)
    for domain in data.domains:
        assert domain.x.equal(again[domain.name].x) and domain.y.equal(again[domain.name].y)
        assert (domain.x.shape, domain.x.dtype) == ((5, 3, 20, 20), torch.uint8)
        assert (domain.y.shape, domain.y.dtype) == ((5, 20, 20), torch.int64)
    more = load("ellipses(count=7, size=20)")
    assert more["faint"].x[:5].equal(data["faint"].x)


def test_masks_have_the_areas_of_ellipses() -> None:
    """π a b of half axes 0.12 + 0.16 U: on average π 0.2²; the core has 0.35 + 0.25 U of them."""
    y = torch.cat([domain.y for domain in load("ellipses(count=200)").domains])
    disc, core = float((y > 0).double().mean()), float((y == 2).double().mean())
    assert disc == pytest.approx(math.pi * 0.2**2, rel=0.05)
    scale = sum((0.35 + 0.25 * (k + 0.5) / 1000) ** 2 for k in range(1000)) / 1000
    assert core / disc == pytest.approx(scale, rel=0.05)


def test_the_object_is_brighter_than_what_is_around_it_at_every_site() -> None:
    for domain in load("ellipses").domains:
        grey = domain.x.double().mean(1)
        levels = [float(grey[domain.y == c].mean()) for c in range(3)]
        assert levels == sorted(levels)
        assert levels[2] - levels[0] > 20


@pytest.mark.parametrize("options", ["size=8", "count=1", "size=20.5"])
def test_options_out_of_range(options: str) -> None:
    with pytest.raises(UnseenError, match="ellipses"):
        load(f"ellipses({options})")


# --- folders ----------------------------------------------------------------------------------


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    pair(tmp_path, "b", MASK)
    pair(tmp_path, "a", MASK.T.copy())
    pair(tmp_path, "c", MASK, domain="south")
    (tmp_path / "north" / "notes.txt").write_text("passed over")
    data = read(tmp_path, classes=NAMES)
    assert data.names == ("north", "south")
    assert data.classes == tuple(NAMES)
    assert data.masks
    north = data["north"]
    assert north.y.tolist() == [MASK.T.tolist(), MASK.tolist()]  # by their names
    assert (north.x.shape, north.x.dtype) == ((2, 3, 4, 4), torch.uint8)
    assert read(tmp_path, classes=NAMES, grey=True)["north"].x.shape == (2, 1, 4, 4)


def test_an_archive_is_read_as_it_is(tmp_path: Path) -> None:
    pair(tmp_path / "tree", "a", MASK)
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "tree", "tree")
    data = load("masks", tmp_path, path="tree.tar", size=4, classes=NAMES)
    assert data["north"].y[0].tolist() == MASK.tolist()


def test_masks_are_resized_by_the_nearest_pixel(tmp_path: Path) -> None:
    pair(tmp_path, "a", MASK)
    assert (
        read(tmp_path, 8, classes=NAMES)["north"].y[0].tolist()
        == MASK.repeat(2, 0).repeat(2, 1).tolist()
    )
    assert read(tmp_path, 2, classes=NAMES)["north"].y[0].tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("white", [1, 255])
def test_binary_masks_are_0_and_255_or_0_and_1(tmp_path: Path, white: int) -> None:
    pair(tmp_path, "a", (MASK > 0).astype(np.uint8) * white)
    pair(tmp_path, "b", MASK * 0)
    data = read(tmp_path)
    assert data.classes == ("background", "foreground")
    assert data["north"].y.tolist() == [(MASK > 0).astype(int).tolist(), (MASK * 0).tolist()]


@pytest.mark.parametrize("mode", ["1", "P", "RGB", "L"])
def test_kinds_of_png(tmp_path: Path, mode: str) -> None:
    mask = (MASK > 0).astype(np.uint8) * 255
    if mode == "P":
        pair(tmp_path, "a", MASK)
        image = Image.fromarray(MASK)
        image.putpalette([7, 7, 7, 9, 0, 0, 0, 9, 0] + [0] * 759)
        image.save(tmp_path / "north" / "masks" / "a.png")
        assert read(tmp_path, classes=NAMES)["north"].y[0].tolist() == MASK.tolist()
        return
    pair(tmp_path, "a", mask, mode=mode)
    assert read(tmp_path)["north"].y[0].tolist() == (MASK > 0).astype(int).tolist()


def test_values_of_classes_may_be_named_and_some_ignored(tmp_path: Path) -> None:
    table = np.array([255, 128, 0], np.uint8)
    mask = table[MASK]
    mask[0, 0] = 7
    pair(tmp_path, "a", mask)
    data = read(tmp_path, classes=NAMES, values=[255, 128, 0], ignore=7)
    expected = MASK.astype(int)
    expected[0, 0] = IGNORED
    assert data["north"].y[0].tolist() == expected.tolist()


def test_units_stay_together(tmp_path: Path) -> None:
    for name in ("p1_a", "p1_b", "p2_a"):
        pair(tmp_path, name, MASK)
    units = read(tmp_path, classes=NAMES, unit="(p[0-9])_")["north"].units
    assert units is not None
    assert units.tolist() == [0, 0, 1]


# --- what is wrong with a folder --------------------------------------------------------------


def without_mask(root: Path) -> None:
    (root / "north" / "masks" / "b.png").unlink()


def without_image(root: Path) -> None:
    (root / "north" / "images" / "b.png").unlink()


def of_another_size(root: Path) -> None:
    Image.fromarray(MASK[:3]).save(root / "north" / "masks" / "b.png")


def with_another_value(root: Path) -> None:
    Image.fromarray(MASK + 2).save(root / "north" / "masks" / "b.png")


def lossy(root: Path) -> None:
    (root / "north" / "masks" / "b.png").rename(root / "north" / "masks" / "b.jpg")


def coloured(root: Path) -> None:
    colours = np.stack([MASK, MASK * 2, MASK], 2)
    Image.fromarray(colours).save(root / "north" / "masks" / "b.png")


def broken(root: Path) -> None:
    (root / "north" / "masks" / "b.png").write_bytes(b"no image")


def twice(root: Path) -> None:
    Image.fromarray(MASK).save(root / "north" / "masks" / "b.bmp")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_mask, r"no mask belongs to north/images/b\.png\. Put one of the same name into"),
        (without_image, r"no image belongs to north/masks/b\.png\. Put one"),
        (of_another_size, r"north/masks/b\.png is 4 by 3 pixels; its image is 4 by 4"),
        (with_another_value, r"north/masks/b\.png has \[3, 4\]\. Of the classes background, disc"),
        (lossy, r"north/masks/b\.jpg is in a format that changes values; save it as PNG"),
        (coloured, r"north/masks/b\.png \(mode RGB\) does not hold one value of 0 to 255"),
        (broken, r"the mask north/masks/b\.png cannot be read"),
        (twice, r"north/masks/b\.bmp and north/masks/b\.png are of one name"),
    ],
)
def test_a_fault_names_the_file(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    for name in ("a", "b"):
        pair(tmp_path, name, MASK)
    spoil(tmp_path)
    with pytest.raises(UnseenError, match=words):
        read(tmp_path, classes=NAMES)


def test_more_values_than_classes(tmp_path: Path) -> None:
    pair(tmp_path, "a", MASK)
    with pytest.raises(UnseenError, match=r"a\.png has \[2\]\..*0, 255 or 0, 1, in all.*Name clas"):
        read(tmp_path)
    with pytest.raises(UnseenError, match="or 255 for what does not count"):
        read(tmp_path, ignore=255)


def test_a_folder_without_masks(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    with pytest.raises(UnseenError, match=r"expected domain/images/x\.png and domain/masks/x\.png"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((("one",),), "two different names"),
        ((("a", "a"),), "two different names"),
        ((("a", "b"), (1,)), "each of the 2 classes"),
        ((("a", "b"), (0, 0)), "different whole numbers"),
        ((("a", "b"), (0, 300)), "different whole numbers"),
        ((("a", "b"), (0, 255), 255), "different whole numbers"),
    ],
)
def test_values_that_cannot_be(options: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UnseenError, match=words):
        Values(*options)


# --- masks of your own, in memory -------------------------------------------------------------


def made(y: torch.Tensor, **changes: Any) -> DataSet:
    x = torch.zeros(len(y), 1, 4, 4)
    data = DataSet("made", (Domain("a", x, y),), ("none", "some"), "", "", "", masks=True)
    return replace(data, **changes)


def test_masks_in_memory_are_checked() -> None:
    y = torch.zeros(2, 4, 4, dtype=torch.int64)
    y[0, 0] = IGNORED
    assert check(made(y)).kind == "masks"
    for data, words in (
        (made(y, masks=False), "does not say masks=True"),
        (made(y, classes=None), "two classes or more"),
        (made(y[:, :3]), r"int64 \[N, H, W\] was expected"),
        (made(y.float()), r"int64 \[N, H, W\] was expected"),
        (made(y + 2), r"mask values \[1, 2\] outside its 2 classes"),
        (made(y[:, 0, 0]), r"int64 \[N, H, W\] was expected"),
    ):
        with pytest.raises(UnseenError, match=words):
            check(data)


def test_a_check_says_what_the_pixels_are() -> None:
    """Of 16 pixels 8 are background, 3 disc, 1 core, 4 not counted; the other mask is empty."""
    y = torch.zeros(2, 4, 4, dtype=torch.int64)
    y[0].view(-1)[:3], y[0, 1, 0], y[0, 3] = 1, 2, IGNORED
    domain = Domain("a", torch.zeros(2, 1, 4, 4), y)
    data = DataSet("made", (domain,), ("none", "disc", "core"), "", "", "", masks=True)
    assert pixel_notes(data) == [
        "pixels of a: none 75.0%, disc 9.4%, core 3.1%, not counted 12.5%; 1 without an object"
    ]
    report = inspect(parse("ellipses(count=4)")[0], None)
    assert [domain.count for domain in report.domains] == [4, 4, 4, 4]
    assert sum("0 without an object" in note for note in report.notes) == 4
