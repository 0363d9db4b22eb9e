"""What sites agree on: classes of images that not every site has."""

from __future__ import annotations

import pytest
import torch

from unseen.datasets import DataSet, Domain
from unseen.errors import UnseenError
from unseen.federation.flower.terms import Facts, Terms


def site(name: str, classes: tuple[str, ...], kind: str = "folder") -> DataSet:
    x = torch.zeros(len(classes), 3, 4, 4, dtype=torch.uint8)
    return DataSet(kind, (Domain(name, x, torch.arange(len(classes))),), classes, "", "", "")


def test_a_folder_may_lack_a_class_that_another_site_has() -> None:
    sites = [site("north", ("cat", "owl")), site("south", ("cat", "dog"))]
    terms = Terms.agree([Facts.of(data, "train", "", {}) for data in sites])
    assert terms.classes == ("cat", "dog", "owl")
    assert [terms.coded(data).domains[0].y.tolist() for data in sites] == [[0, 2], [0, 1]]


def test_classes_that_are_listed_keep_their_order() -> None:
    sites = [site(name, ("owl", "cat")) for name in ("north", "south")]
    assert Terms.agree([Facts.of(d, "train", "", {}) for d in sites]).classes == ("owl", "cat")


def test_other_data_sets_have_one_list_of_classes() -> None:
    sites = [site("north", ("cat", "owl"), "pacs"), site("south", ("cat",), "pacs")]
    with pytest.raises(UnseenError, match="do not fit together: classes"):
        Terms.agree([Facts.of(data, "train", "", {}) for data in sites])
