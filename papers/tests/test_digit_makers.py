"""Digits of four collections: files as distributed, written small, and one file of arrays."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from paper_sketches import SKETCHES

from unseen.data import load
from unseen.data.summary import inspect
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen_papers.data.digit_makers import numbers, pixels, resized

MAKERS = ("mnist", "usps", "semeion", "optdigits")


def test_the_export_is_what_is_known_of_it(real_data: Path) -> None:
    report = inspect(parse("sites/digit-makers")[0], real_data)
    assert report.sound and "examples per domain and class" in report.compared
    data = load("sites/digit-makers", real_data)
    assert data.names == MAKERS
    assert all(d.x.shape == (1500, 1, 16, 16) and d.x.dtype == torch.uint8 for d in data.domains)


def test_files_as_distributed_are_read_and_drawn_from(tmp_path: Path) -> None:
    """MNIST's four files are those of the synthetic stand-in."""
    SKETCHES["rotated-mnist"](tmp_path)
    usps = [f"{i % 10}.0000 {' '.join(['-1.000'] * 255)} 1.000\n" for i in range(20)]
    (tmp_path / "zip.train.gz").write_bytes(gzip.compress("".join(usps).encode()))
    (tmp_path / "zip.test").write_text("".join(usps))
    flags = ["1 " + "0 " * 9, "0 " * 9 + "1 "]
    semeion = [f"{'1.0000 ' * 256}{flags[i % 2]}\n" for i in range(4)]
    (tmp_path / "semeion.data").write_text("".join(semeion))
    for name in ("tra", "tes"):
        (tmp_path / f"optdigits.{name}").write_text(",".join(["16"] * 64) + ",7\n")
    data = load("sites/digit-makers", tmp_path)
    assert data.names == MAKERS and not data.notes
    assert [len(domain.y) for domain in data.domains] == [1500, 40, 4, 2]
    assert data["usps"].x[0, 0, 15].tolist() == [0] * 15 + [255]
    assert data["usps"].y.bincount().tolist() == [4] * 10
    assert bool((data["semeion"].x == 255).all()) and set(data["semeion"].y.tolist()) == {0, 9}
    assert bool((data["optdigits"].x == 255).all()) and data["optdigits"].y.tolist() == [7, 7]
    report = inspect(parse("sites/digit-makers")[0], tmp_path)
    assert [domain.sound for domain in report.domains] == [True, False, False, False]


def test_resizing_keeps_the_mean_and_rounds() -> None:
    """Bilinear weights, smoothed where an image shrinks, average a plane to itself."""
    ramp = torch.arange(28.0).expand(1, 28, 28) * 9
    small = resized(ramp).double()
    assert abs(float(small.mean() - ramp.mean())) < 0.5
    assert bool((small[0].diff(dim=1) > 0).all()) and bool((small[0].diff(dim=0) == 0).all())
    assert torch.equal(resized(torch.full((1, 16, 16), 3.6)), torch.full((1, 16, 16), 4).byte())


def test_what_is_not_such_a_file(tmp_path: Path) -> None:
    (tmp_path / "semeion.data").write_text("1 2 x\n")
    with pytest.raises(UnseenError, match=r"semeion\.data is not a table of numbers"):
        numbers(tmp_path / "semeion.data")
    with pytest.raises(UnseenError, match="rows of usps have 257 numbers; found 3"):
        pixels("usps", torch.zeros(2, 3))
    (tmp_path / "digit_makers.npz").write_bytes(b"nothing")
    with pytest.raises(UnseenError, match="does not hold arrays x, y and site"):
        load("sites/digit-makers", tmp_path)
    np.savez(tmp_path / "digit_makers.npz", x=np.zeros((2, 8, 8)), y=np.zeros(2), site=["a", "b"])
    with pytest.raises(UnseenError, match=r"must hold x uint8 \[N, 16, 16\]"):
        load("sites/digit-makers", tmp_path)
    with pytest.raises(UnseenError, match="needs the file train-images-idx3-ubyte.gz"):
        load("sites/digit-makers", tmp_path / "absent")
