"""HAM10000, read from a stand-in of the folders that it is distributed in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from paper_sketches import SKETCHES
from PIL import Image

from unseen.data import load, summary
from unseen.data.dataset import DataSet
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen_papers.data import skin

TABLE = "HAM10000/HAM10000_metadata"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", "off")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SKETCHES["ham10000"](tmp_path)
    return tmp_path


def small(folder: Path) -> DataSet:
    return load("ham10000", folder, size=8)


def test_published_counts_add_up() -> None:
    """Tschandl et al. 2018, Table 1 and Data Records: 10,015 images, 6,705 of them nevi."""
    assert sum(skin.FACTS.totals.values()) == 10_015
    by_class = {c: sum(own[c] for own in skin.FACTS.cells.values()) for c in skin.FACTS.labels}
    assert by_class == {
        "akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142,
    }  # fmt: skip


def test_every_image_is_at_its_collection_with_its_label_and_lesion(folder: Path) -> None:
    data = small(folder)
    assert data.names == skin.COLLECTIONS and data.classes == skin.FACTS.labels
    header, *lines = (folder / TABLE).read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    lesions: dict[int, set[str]] = {}
    for domain in data.domains:
        own = [row for row in rows if row["dataset"] == domain.name]
        assert [data.classes[y] for y in domain.y.tolist()] == [row["dx"] for row in own]
        assert domain.x.shape == (len(own), 3, 8, 8) and domain.units is not None
        for code, row in zip(domain.units.tolist(), own, strict=True):
            lesions.setdefault(code, set()).add(row["lesion_id"])
        (file,) = folder.rglob(f"{own[5]['image_id']}.jpg")
        with Image.open(file) as image:
            pixels = image.resize((8, 8), Image.Resampling.BILINEAR).tobytes()
        assert bytes(domain.x[5].permute(1, 2, 0).flatten().tolist()) == pixels
    assert all(len(names) == 1 for names in lesions.values())
    assert len(lesions) == len({row["lesion_id"] for row in rows}) < len(rows)


def test_the_middle_can_be_cut_out(folder: Path) -> None:
    plain, cut = small(folder), load("ham10000", folder, size=8, crop="centre")
    assert not torch.equal(plain.domains[0].x, cut.domains[0].x)


def test_a_lesion_of_two_collections_is_said(folder: Path) -> None:
    assert not small(folder).notes
    table = folder / TABLE
    table.write_text(table.read_text().replace("HAM_0000001", "HAM_0000000"))
    assert "'lesion_id' occur at more than one site" in small(folder).notes[0]


def test_a_table_without_the_collection_is_refused(folder: Path) -> None:
    table = folder / TABLE
    text = table.read_text()
    table.write_text("\n".join(line.rpartition(",")[0] for line in text.splitlines()))
    with pytest.raises(UnseenError, match="unknown column of .* 'dataset'"):
        small(folder)
    table.write_text(text.replace("vienna_dias", "vienna_slides"))
    with pytest.raises(UnseenError, match="found 'vienna_slides'"):
        small(folder)
    table.write_text("\n".join(line for line in text.splitlines() if "vienna" not in line))
    with pytest.raises(UnseenError, match="names no image of 'vienna_dias'"):
        small(folder)
    table.unlink()
    with pytest.raises(UnseenError, match="HAM10000_metadata.* 10.7910/DVN/DBW86T"):
        small(folder)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_an_unreadable_image_is_named_and_the_others_are_counted(damage: str, folder: Path) -> None:
    one = next(folder.rglob("ISIC_0000009.jpg"))
    if damage == "missing":
        one.unlink()
    else:
        one.write_bytes(b"nothing")
    with pytest.raises(UnseenError, match="ISIC_0000009"):
        small(folder)
    found = summary.inspect(parse("ham10000")[0], folder)
    assert len(found.unreadable) == 1 and "ISIC_0000009" in found.unreadable[0]
    assert {domain.name: domain.count for domain in found.domains} == {
        name: 21 - (name == "vidir_modern") for name in skin.COLLECTIONS
    }
