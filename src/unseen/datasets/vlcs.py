"""VLCS: five kinds of things in the photos of four older data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read

LAYOUT = Layout(
    name="vlcs",
    roots=("VLCS", "vlcs", "VLCS.tar", "VLCS.tar.gz", "vlcs.tar.gz"),
    domains={
        "Caltech101": ("CALTECH", "C"),
        "LabelMe": ("L",),
        "SUN09": ("SUN", "S"),
        "VOC2007": ("PASCAL", "VOC", "V", "P"),
    },
    classes={"bird": ("0",), "car": ("1",), "chair": ("2",), "dog": ("3",), "person": ("4",)},
    totals={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
    parts={"full": "all", "train": "train", "crossval": "validation", "test": "validation"},
    source="VLCS (Fang, Xu, Rockmore, 2013), 10,729 images of VOC2007, LabelMe, Caltech101, SUN09",
    licence="none stated; used for research; the four data sets have terms of their own",
    obtain=(
        "VLCS is a folder VLCS/{Caltech101,LabelMe,SUN09,VOC2007}/{class} (DomainBed's copy) or "
        "VLCS/{CALTECH,LABELME,SUN,PASCAL}/{full,train,crossval,test}/{0-4} (that of JiGen, RSC "
        "and CSAC); the files of the two copies differ."
    ),
    citation="""@inproceedings{fang2013unbiased,
  author = {Fang, Chen and Xu, Ye and Rockmore, Daniel N.},
  title = {Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images for
           Softening Bias},
  booktitle = {International Conference on Computer Vision},
  pages = {1657--1664},
  year = {2013}
}""",
)


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
    split: Literal["official", "none"] = "none",
) -> DataSet:
    """VLCS: Caltech101 1,415, LabelMe 2,656, SUN09 3,282, VOC2007 3,376 photos; uint8 [N, 3, S, S].

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels.
        crop: See `images.View`.
        split: "official", for the copy with folders train, crossval and test, validates on the
            latter two, 30 % of every domain (CSAC's 70/30); a target is tested on all of its
            images, where CSAC takes its test folder. "none" lets the study draw.
    """
    return read(LAYOUT, data_dir, path, View(size, crop=crop), split)


INFO = info_of_layout(load, "5 kinds of things in photos of four data sets", LAYOUT)
