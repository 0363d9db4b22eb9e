"""DomainNet: six ways to draw 345 things, and the ten of them that FedBN and FedDG-GA take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read
from unseen.datasets.splits import Lists

LAYOUT = Layout(
    name="domainnet",
    roots=("domain_net", "DomainNet", "domainnet", "DomainNet.tar"),
    domains={
        "clipart": ("clip",),
        "infograph": ("info",),
        "painting": ("paint",),
        "quickdraw": ("quick",),
        "real": (),
        "sketch": (),
    },
    classes=345,
    totals={
        "clipart": 48_129,
        "infograph": 51_605,
        "painting": 72_266,
        "quickdraw": 172_500,
        "real": 172_947,
        "sketch": 69_128,
    },
    lists=Lists("{domain}_train.txt", "{domain}_test.txt", ("splits",), only=True),
    source="DomainNet (Peng et al., 2019), cleaned version, 586,575 images of 345 classes",
    licence="fair-use notice of its authors; non-commercial research",
    obtain=(
        "DomainNet is a folder {clipart,infograph,painting,quickdraw,real,sketch}/{class}, six zip "
        "files on ai.bu.edu/M3SDA (the cleaned version), with lists {domain}_train.txt and "
        "{domain}_test.txt."
    ),
    citation="""@inproceedings{peng2019moment,
  author = {Peng, Xingchao and Bai, Qinxun and Xia, Xide and Huang, Zijun and Saenko, Kate and
            Wang, Bo},
  title = {Moment Matching for Multi-Source Domain Adaptation},
  booktitle = {International Conference on Computer Vision},
  pages = {1406--1415},
  year = {2019}
}""",
)
TEN = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
    "wine_glass", "zebra",
)  # fmt: skip
LAYOUT_10 = replace(
    LAYOUT,
    name="domainnet10",
    classes=dict.fromkeys(TEN, ()),
    totals={},
    lists=Lists("{domain}_train.pkl", "{domain}_test.pkl", ("splits", "lists"), only=True),
    source="DomainNet (Peng et al., 2019), the ten classes of FedBN (Li et al., 2021)",
    subset=True,
)


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop: Literal["none", "centre"] = "none",
    split: Literal["official", "none"] = "none",
) -> DataSet:
    """DomainNet with all 345 classes: 586,575 images in six domains; uint8 [N, 3, S, S].

    At 224 pixels 88 GB on disk; 64 pixels take 7.2 GB. Classes are in the order of their folders'
    names, capitals first.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels.
        crop: See `images.View`.
        split: "official" takes the images that are in the lists *_train.txt and *_test.txt, and
            validates on the latter; "none" takes all and lets the study draw (DomainBed).
    """
    return read(LAYOUT, data_dir, path, View(size, crop=crop), split)


def load_ten(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 256,
    crop: Literal["none", "centre"] = "none",
    split: Literal["official", "none"] = "none",
) -> DataSet:
    """The 10-class subset of DomainNet (FedBN): what FedDG-GA calls DomainNet; uint8 [N, 3, S, S].

    It is read from the folders of the whole or of FedBN's copy.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels; FedBN resizes to 256.
        crop: See `images.View`.
        split: "official" takes FedBN's lists *_train.pkl and *_test.pkl, pairs of paths and labels
            from which nothing is run, and validates on the latter; "none" takes all images of the
            ten classes.
    """
    return read(LAYOUT_10, data_dir, path, View(size, crop=crop), split)


INFO = info_of_layout(load, "345 things in six styles", LAYOUT)
INFO_10 = info_of_layout(
    load_ten, "10 things in six styles, FedBN's subset", LAYOUT_10, "alexnet-bn"
)
