"""Digits-DG: handwritten, coloured, photographed and printed digits, from folders."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unseen.datasets.dataset import DataSet
from unseen.datasets.entry import info_of_layout
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, read

DIGITS = tuple(map(str, range(10)))
LAYOUT = Layout(
    name="digits-dg",
    roots=("digits_dg", "Digits-DG", "DigitsDG", "digits", "digits_dg.tar.gz"),
    domains={
        "mnist": ("mt",),
        "mnist_m": ("mm", "MNIST-M"),
        "svhn": ("sv",),
        "syn": ("sy", "synth", "SynthDigits", "synthetic_digits"),
    },
    classes=dict.fromkeys(DIGITS, ()),
    totals=dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), 6000),
    cells=dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), dict.fromkeys(DIGITS, 600)),
    parts={"train": "train", "val": "validation"},
    source="Digits-DG (Zhou et al., 2020): MNIST, MNIST-M, SVHN, SYN, 600 images per class each",
    licence="none stated; MNIST is CC BY-SA 3.0, SVHN for non-commercial use",
    obtain=(
        "Digits-DG is a folder digits_dg/{mnist,mnist_m,svhn,syn}/{train,val}/{0-9}; the "
        "repository KaiyangZhou/Dassl.pytorch says where a copy is. Folders without train and val "
        "are read as well."
    ),
    citation="""@inproceedings{zhou2020deep,
  author = {Zhou, Kaiyang and Yang, Yongxin and Hospedales, Timothy and Xiang, Tao},
  title = {Deep Domain-Adversarial Image Generation for Domain Generalisation},
  booktitle = {AAAI Conference on Artificial Intelligence},
  pages = {13025--13032},
  year = {2020}
}""",
)


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path | None = None,
    size: int = 32,
    split: Literal["official", "none"] = "none",
) -> DataSet:
    """Digits of four sources, 6,000 images each: uint8 [N, 3, S, S], ten classes.

    Args:
        data_dir: The data folder.
        path: The folder or tar archive that holds the domains.
        size: S in pixels, 32 as distributed.
        split: "official" validates on the folders val, a fifth of every domain; "none" lets the
            study draw.
    """
    return read(LAYOUT, data_dir, path, View(size), split)


INFO = info_of_layout(load, "digits of four sources, 6,000 each", LAYOUT, "mnist-cnn")
