"""Classes and labels of a data set of one's own: what cannot be learnt is refused on reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import unseen
from unseen.data import load
from unseen.data.dataset import DataSet, Domain, check
from unseen.errors import UnseenError

X = torch.eye(4)
CODES, NUMBERS = torch.tensor([0, 1, 0, 1]), torch.tensor([0.5, 1.5, 2.5, 3.5])


def made(classes: tuple[str, ...] | None, y: Tensor) -> DataSet:
    return DataSet("mine", (Domain("a", X, y), Domain("b", X, y)), classes, "", "", "")


def one_class(folder: Path | None) -> DataSet:
    """A loader of one's own."""
    return made(("no",), torch.zeros(4, dtype=torch.int64))


def one_at_each_site(folder: Path | None) -> DataSet:
    """A loader of two classes, of which a site may have one alone."""
    alone = (Domain("a", X, CODES * 0), Domain("b", X, CODES * 0 + 1))
    return replace(made(("no", "yes"), CODES), domains=alone)


def test_one_class_alone_is_nothing_to_learn() -> None:
    with pytest.raises(UnseenError, match="'mine' has one class, 'no': there is nothing to learn"):
        load(f"{__name__}:one_class")
    with pytest.raises(UnseenError, match="there is nothing to learn"):
        unseen.Study(dataset=one_class, methods=["fedavg"], rounds=1, seeds=1).run()
    assert load(f"{__name__}:one_at_each_site").classes == ("no", "yes")


def test_one_folder_of_images_is_refused_by_a_study_and_read_at_a_site(tmp_path: Path) -> None:
    for site in "ab":
        (tmp_path / site / "no").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / site / "no" / "1.png")
    folder = f"folder(path={str(tmp_path)!r}, size=8)"
    with pytest.raises(UnseenError, match="there is nothing to learn"):
        unseen.Study(dataset=folder, model="bn-cnn", methods=["fedavg"], rounds=1).run()
    assert load("folder", tmp_path, size=8).classes == ("no",)  # as one site of a federation may be


def test_classes_need_different_names() -> None:
    with pytest.raises(UnseenError, match=r"'mine' has more than one class called 'no'.*[Rr]ename"):
        check(made(("no", "yes", "no"), CODES))


@pytest.mark.parametrize(
    ("classes", "y"),
    [(("no", "yes"), CODES), (None, NUMBERS)],
)
def test_labels_are_one_for_each_example(classes: tuple[str, ...] | None, y: Tensor) -> None:
    assert check(made(classes, y)).classes == classes
    with pytest.raises(UnseenError, match="domain 'a' of data set 'mine'") as caught:
        check(made(classes, y[:, None]))
    assert "labels of shape [4, 1]; [4] was expected" in str(caught.value)
    assert "y.squeeze(1)" in str(caught.value)
    with pytest.raises(UnseenError, match=r"shape \[4, 3\]; \[4\] was expected"):
        check(made(classes, y[:, None].expand(4, 3)))


def test_times_and_masks_have_shapes_of_their_own() -> None:
    pairs = torch.stack([NUMBERS, CODES.float()], dim=1)
    assert check(replace(made(None, pairs), times=("days", "died"))).kind == "times"
    images = Domain("a", torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64))
    masks = replace(made(("ground", "disc"), CODES), domains=(images,), masks=True)
    assert check(masks).kind == "masks"
