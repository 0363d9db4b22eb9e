"""Benchmarks of images: their stand-ins, their spellings, their splits, and the real PACS."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.sketches import SKETCHES, image_folders

from unseen.data import datasets, layout, load
from unseen.data.entry import folded
from unseen.data.image_files.images import View
from unseen.data.image_files.layout import read
from unseen.errors import UnseenError

LAYOUTS = [name for name, info in datasets().items() if info.layout and name != "domainnet"]
#: Known totals as the papers and the released benchmarks print them.
PRINTED = {
    "pacs": 9_991,
    "vlcs": 10_729,
    "office-home": 15_588,
    "terra-incognita": 24_330,
    "domainnet": 586_575,
    "digits-dg": 24_000,
}


def standin(name: str, folder: Path) -> Path:
    SKETCHES[name](folder)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_stand_in_is_read_like_the_real_one(name: str, tmp_path: Path) -> None:
    layout = datasets()[name].layout
    assert layout is not None
    data = load(name, standin(name, tmp_path), size=16)
    assert data.names == tuple(layout.domains) and data.classes == layout.labels
    for domain in data.domains:
        assert domain.x.shape == (3 * len(layout.labels), 3, 16, 16)
        assert domain.y.bincount().tolist() == [3] * len(layout.labels)
        assert domain.digest
    assert data.source and data.licence and data.citation.startswith("@")


def test_totals_are_those_that_are_printed() -> None:
    for name, total in PRINTED.items():
        assert sum(datasets()[name].totals.values()) == total, name


def test_a_split_by_folders_goes_by_the_folder_and_not_by_names(tmp_path: Path) -> None:
    standin("digits-dg", tmp_path)
    before = load("digits-dg", tmp_path, size=8, split="official")
    for path in sorted(tmp_path.rglob("val/*/2.png")):
        path.rename(path.with_name("1.png"))  # train holds a 1.png of each class too
    after = load("digits-dg", tmp_path, size=8, split="official")
    for a, b in zip(before.domains, after.domains, strict=True):
        assert a.validation is not None and b.validation is not None
        assert len(b.validation) == 10 and torch.equal(a.validation, b.validation)
        assert torch.equal(a.x, b.x)


def test_a_data_set_of_many_classes_takes_their_names_from_its_folders(tmp_path: Path) -> None:
    small = replace(layout.LAYOUTS["domainnet"], count=4)
    image_folders(small, tmp_path)
    data = read(small, tmp_path, None, View(8))
    assert data.classes == ("class_000", "class_001", "class_002", "class_003")
    held = read(small, tmp_path, None, View(8), "official")["real"].validation
    assert held is not None and held.tolist() == [2, 5, 8, 11]
    with pytest.raises(UnseenError, match="345 classes; found 4 class folders"):
        load("domainnet", tmp_path, size=8)


@pytest.mark.parametrize("name", ["pacs", "vlcs", "digits-dg"])
def test_an_official_split_holds_back_its_own_rows(name: str, tmp_path: Path) -> None:
    data = load(name, standin(name, tmp_path), size=8, split="official")
    for domain in data.domains:
        assert domain.validation is not None
        assert domain.y[domain.validation].tolist() == list(range(len(data.classes or ())))
    assert load(name, tmp_path, size=8, split="none").domains[0].validation is None


def test_folders_may_be_spelt_as_other_copies_spell_them(tmp_path: Path) -> None:
    standin("vlcs", tmp_path)
    before = load("vlcs", tmp_path, size=8)
    root = tmp_path / "VLCS"
    for old, new in zip(before.names, ("CALTECH", "LABELME", "SUN", "PASCAL"), strict=True):
        own = root / new
        for number, label in enumerate(before.classes or ()):
            for part in ("train", "crossval"):
                shutil.copytree(
                    root / old / part / label, own / "full" / str(number), dirs_exist_ok=True
                )
        shutil.copytree(root / old / "crossval" / "bird", own / "test" / "0")
        shutil.rmtree(root / old)
    after = load("vlcs", tmp_path, size=8, split="official")
    for a, b in zip(before.domains, after.domains, strict=True):
        assert a.name == b.name and sorted(a.y.tolist()) == b.y.tolist()
        assert b.validation is not None and b.validation.tolist() == [2]  # the third bird
    assert folded("Real World") == folded("RealWorld") == folded("real_world")


def test_an_archive_gives_the_same_as_its_folder(tmp_path: Path) -> None:
    before = load("pacs", standin("pacs", tmp_path), size=8)
    (tmp_path / "other").mkdir()
    with tarfile.open(tmp_path / "other" / "PACS.tar", "w") as archive:
        archive.add(tmp_path / "kfold", arcname="PACS")
    shutil.copytree(tmp_path / "kfold" / "pacs_splits", tmp_path / "other" / "pacs_splits")
    after = load("pacs", tmp_path / "other", size=8)
    for a, b in zip(before.domains, after.domains, strict=True):
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.digest == b.digest
        assert a.validation is not None and b.validation is not None
        assert torch.equal(a.validation, b.validation)


def test_two_distributions_beside_each_other_make_one_data_set(tmp_path: Path) -> None:
    standin("office-home", tmp_path)
    caltech = tmp_path / "office_caltech_10"
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for label in ("back_pack", "laptop_computer", "projector"):
            shutil.copytree(
                tmp_path / "OfficeHomeDataset_10072016" / "Art" / "Mug", caltech / domain / label
            )
    data = load("office-caltech-home", tmp_path, size=8)
    sizes = {domain.name: domain.y.bincount().tolist() for domain in data.domains}
    assert sizes["Amazon"] == sizes["Webcam"] == sizes["Caltech"] == [3, 0, 0, 0, 3]
    assert sizes["Real_World"] == [3] * 8 and len(sizes) == 7


def test_fedbns_lists_choose_and_split_the_ten_classes(tmp_path: Path) -> None:
    lists = standin("domainnet10", tmp_path) / "domain_net" / "splits"
    for domain in layout.LAYOUTS["domainnet"].domains:
        for part, number in (("train", 0), ("test", 2)):
            names = [
                f"DomainNet/{domain}/{label}/{number}.jpg"
                for label in layout.LAYOUTS["domainnet10"].labels
            ]
            pair = (np.array(names), np.array(layout.LAYOUTS["domainnet10"].labels))
            (lists / f"{domain}_{part}.pkl").write_bytes(pickle.dumps(pair))
    data = load("domainnet10", tmp_path, size=8, split="official")
    for domain in data.domains:
        assert domain.y.tolist() == [label for label in range(10) for _ in range(2)]
        assert domain.validation is not None and domain.validation.tolist() == list(range(1, 20, 2))
    list_ = lists / "real_test.pkl"
    list_.write_bytes(pickle.dumps(Path("x")))
    with pytest.raises(UnseenError, match="not a pair of paths and labels"):
        load("domainnet10", tmp_path, size=8, split="official")


def test_what_is_missing_or_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="UNSEEN_DATA"):
        load("pacs")
    with pytest.raises(UnseenError, match=r"lacks the domain folder art_painting.*kfold"):
        load("pacs", tmp_path)
    root = standin("pacs", tmp_path) / "kfold"
    (root / "sketch").rename(root / "scetch")
    with pytest.raises(UnseenError, match="lacks the domain folder sketch"):
        load("pacs", tmp_path)
    (root / "scetch").rename(root / "sketch")
    (root / "photo" / "dog").rename(root / "photo" / "dgo")
    with pytest.raises(UnseenError, match="'dgo'; did you mean 'dog'"):
        load("pacs", tmp_path)


def test_lists_that_do_not_fit_the_images_are_refused(tmp_path: Path) -> None:
    root = standin("pacs", tmp_path) / "kfold"
    held = root / "pacs_splits" / "photo_crossval_kfold.txt"
    lines = held.read_text()
    held.write_text(lines.replace("dog/2.png 1", "dog/2.png 0"))
    with pytest.raises(UnseenError, match=r"photo gives dog/2 the number 0; its class has 1"):
        load("pacs", tmp_path, size=8)
    held.write_text(lines + "photo/dog/9.png 1\n")
    with pytest.raises(UnseenError, match=r"1 images of the split of 'photo'.*dog/9"):
        load("pacs", tmp_path, size=8)
    held.write_text(lines.replace("photo/dog/2.png 1\n", ""))
    with pytest.raises(UnseenError, match=r"1 images of 'photo' are in no list.*dog/2"):
        load("pacs", tmp_path, size=8)
    held.write_text("dog 1\n")
    with pytest.raises(UnseenError, match="line 1 of"):
        load("pacs", tmp_path, size=8)
    held.unlink()
    with pytest.raises(UnseenError, match=r"photo_crossval_kfold\.txt.*split='none'"):
        load("pacs", tmp_path, size=8)
    assert len(load("pacs", tmp_path, size=8, split="none")["photo"].y) == 21


def test_the_real_pacs_and_its_official_split(real_data: Path) -> None:
    data = load("pacs", real_data, size=8)
    assert data.names == ("art_painting", "cartoon", "photo", "sketch")
    assert [len(d.y) for d in data.domains] == [2048, 2344, 1670, 3929]
    held = [d.validation for d in data.domains if d.validation is not None]
    assert [len(rows) for rows in held] == [208, 237, 171, 398]
