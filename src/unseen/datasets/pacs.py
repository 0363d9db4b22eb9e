"""PACS: seven kinds of things as paintings, cartoons, photos and sketches."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read
from unseen.datasets.splits import Lists

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
LAYOUT = Layout(
    name="pacs",
    roots=(
        "kfold", "PACS", "PACS/kfold", "PACS/raw_images", "pacs", "raw_images",
        "PACS.tar", "PACS.tar.gz", "PACS_64.tar", "pacs_64/PACS_64.tar",
    ),
    domains={
        "art_painting": ("art", "A"), "cartoon": ("C",), "photo": ("P",), "sketch": ("S",),
    },
    classes=dict.fromkeys(CLASSES, ()),
    totals={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    cells={  # lines of the official lists *_test_kfold.txt, which hold all images
        "art_painting": dict(zip(CLASSES, (379, 255, 285, 184, 201, 295, 449), strict=True)),
        "cartoon": dict(zip(CLASSES, (389, 457, 346, 135, 324, 288, 405), strict=True)),
        "photo": dict(zip(CLASSES, (189, 202, 182, 186, 199, 280, 432), strict=True)),
        "sketch": dict(zip(CLASSES, (772, 740, 753, 608, 816, 80, 160), strict=True)),
    },
    lists=Lists(
        "{domain}_train_kfold.txt",
        "{domain}_crossval_kfold.txt",
        ("pacs_splits", "splits", "Train val splits and h5py files pre-read", "correct_txt_lists"),
        first=1,
    ),
    source="PACS (Li, Yang, Song, Hospedales, 2017), 9,991 images",
    licence="none stated; used for research",
    obtain=(
        "PACS is a folder kfold/{art_painting,cartoon,photo,sketch}/{class}; DomainBed's download "
        "script and the Hugging Face data set flwrlabs/pacs hold copies of it, the repository "
        "DeLightCMU/RSC the lists of its split."
    ),
    citation="""@inproceedings{li2017deeper,
  author = {Li, Da and Yang, Yongxin and Song, Yi-Zhe and Hospedales, Timothy M.},
  title = {Deeper, Broader and Artier Domain Generalization},
  booktitle = {International Conference on Computer Vision},
  pages = {5542--5550},
  year = {2017}
}""",
)  # fmt: skip


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
    split: Literal["official", "none"] = "official",
) -> DataSet:
    """PACS: 2,048 paintings, 1,670 photos, 2,344 cartoons, 3,929 sketches; uint8 [N, 3, S, S].

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the four domains.
        size: S in pixels; the papers resize to 224 × 224.
        crop: See `images.View`.
        split: "official" trains on the lists *_train_kfold.txt and validates on
            *_crossval_kfold.txt (FedDG-GA), whose labels begin at 1; "none" lets the study draw its
            validation rows (CSAC, DomainBed).
    """
    return read(LAYOUT, data_dir, path, View(size, crop=crop), split)


INFO = info_of_layout(
    load, "7 kinds of things, painted, as cartoons, photographed, sketched", LAYOUT
)
