"""Images decoded once: what is kept, what is found again, and what is left behind by a failure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unseen.data import load
from unseen.data.image_files import cache
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import Tree, View
from unseen.errors import UnseenError
from unseen.studies.execution.setting import digest_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images, and an empty cache."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for i in range(6):
        file = tmp_path / "tree" / "ab"[i % 2] / "c" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (9, 14, 3), dtype=np.uint8)).save(file)
    return tmp_path / "tree"


def opened(folder: Path, view: View) -> tuple[torch.Tensor, str]:
    tree = Tree(folder)
    return decoded(tree, tree.files(), view)


def entries(folder: Path) -> list[str]:
    place = folder.parent / "cache"
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_what_was_decoded_is_opened_and_not_decoded_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, digest = opened(folder, View(8))
    assert first.shape == (6, 3, 8, 8) and first.dtype == torch.uint8
    assert "6 images once, 3x8x8: 1.2 kB in" in capsys.readouterr().err  # 6 · 3 · 8 · 8 = 1,152
    image = Image.open(folder / "a" / "c" / "0.png").resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(first[0].permute(1, 2, 0).numpy(), np.asarray(image))

    def never(*_: object) -> None:
        raise AssertionError("decoded a second time")

    monkeypatch.setattr(View, "__call__", never)
    second, again = opened(folder, View(8))
    assert torch.equal(first, second) and digest == again
    assert capsys.readouterr().err == ""


def test_the_array_stays_on_disk_and_is_not_changed_by_who_uses_it(folder: Path) -> None:
    x, _ = opened(folder, View(8))
    before = x.clone()
    x[0] = 0
    assert torch.equal(opened(folder, View(8))[0], before)


def test_another_view_and_a_changed_file_are_decoded_anew(folder: Path) -> None:
    _, digest = opened(folder, View(8))
    assert opened(folder, View(8, grey=True))[1] != digest
    assert opened(folder, View(8, crop="centre"))[1] != digest
    assert len(entries(folder)) == 3
    file = folder / "a" / "c" / "0.png"
    Image.new("RGB", (9, 14), (1, 2, 3)).save(file)
    os.utime(file, ns=(1, 1))
    assert opened(folder, View(8))[1] != digest
    assert len(entries(folder)) == 4


def test_the_middle_square_is_what_a_centre_crop_shows(folder: Path) -> None:
    file = folder / "a" / "c" / "0.png"
    x, _ = opened(folder, View(9, crop="centre"))
    wide = Image.open(file)
    cut = wide.resize((9, 9), Image.Resampling.BILINEAR, (2.5, 0, 11.5, 9))
    assert np.array_equal(x[0].permute(1, 2, 0).numpy(), np.asarray(cut))


def test_the_digest_is_of_the_pixels_wherever_they_lie(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, digest = opened(folder, View(8))
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    assert opened(copy, View(8))[1] == digest
    monkeypatch.setenv("UNSEEN_CACHE", "off")
    kept = entries(folder)
    assert opened(folder, View(8))[1] == digest
    assert entries(folder) == kept


def test_a_folder_beside_the_data_or_the_users_own_holds_the_arrays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSEEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "home"))
    assert cache.place(folder) == folder.parent / "home" / "unseen"
    (folder / ".unseen-cache").mkdir()
    assert cache.place(folder) == folder / ".unseen-cache"
    opened(folder, View(8))
    assert len(opened(folder, View(8))[0]) == 6  # the cache itself is no data


def test_all_images_that_cannot_be_read_are_named_and_nothing_is_left(folder: Path) -> None:
    (folder / "a" / "c" / "2.png").write_bytes(b"<html>")
    (folder / "b" / "c" / "5.png").write_bytes(b"")
    with pytest.raises(UnseenError) as caught:
        opened(folder, View(8))
    assert "2 of 6 images" in str(caught.value)
    assert "a/c/2.png" in str(caught.value) and "b/c/5.png" in str(caught.value)
    assert entries(folder) == []


def test_an_image_that_went_away_is_named(folder: Path) -> None:
    (folder / "a" / "c" / "7.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(UnseenError, match=r"a/c/7\.png is gone from"):
        opened(folder, View(8))
    (folder / "a" / "c" / "7.png").unlink()
    files = Tree(folder).files()
    archive = Path(shutil.make_archive(str(folder.parent / "a"), "tar", folder))
    absent = [*files, files[0].__class__("a/c/9.png", 1, 1)]
    with pytest.raises(UnseenError, match=r"a/c/9\.png is gone from"):
        decoded(Tree(archive), absent, View(8))


def test_a_damaged_array_is_refused(folder: Path) -> None:
    opened(folder, View(8))
    (name,) = entries(folder)
    array = folder.parent / "cache" / name / "images.npy"
    array.write_bytes(array.read_bytes()[:100])
    with pytest.raises(UnseenError, match="damaged"):
        opened(folder, View(8))


def test_a_place_that_cannot_hold_the_array_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UnseenError, match=r"take 1\.2 kB and .* has 1\.0 kB left"):
        opened(folder, View(8))
    monkeypatch.setenv("UNSEEN_CACHE", str(folder / "a" / "c" / "0.png"))
    with pytest.raises(UnseenError, match="UNSEEN_CACHE"):
        opened(folder, View(8))


def test_a_data_sets_digest_follows_the_pixels_without_reading_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load("folder(size=8)", folder)
    before = digest_of(data)
    assert data.domains[0].digest is not None
    data.domains[0].x[0] = 0  # a copy in memory, which the digest does not look at
    assert digest_of(data) == before
    monkeypatch.setenv("UNSEEN_CACHE", "off")
    assert digest_of(load("folder(size=8)", folder)) == before
    assert digest_of(load("folder(size=7)", folder)) != before
