"""Sketches: tiny synthetic files in the place of public data sets, and their marker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data import lung
from unseen.data.entry import Layout
from unseen.data.heart import CATEGORICAL, COLUMNS, HOSPITALS
from unseen.data.image_files.layout import LAYOUTS
from unseen.data.splits import Lists
from unseen.data.standin import MARKER

Sketches = Mapping[str, Callable[[Path], None]]
#: Of a benchmark: the side of an image in pixels, and the images of each class and domain, the last
#: of which is for validation where there is a split.
SIDE, COUNT = 12, 3
MARKER_TEXT = (
    "Everything in this folder is synthetic: drawn by rule, to stand in for the files of a data "
    "set in\ntrials of programs: {name}. Figures on it say nothing about the real data: tables of "
    "studies say so as long as this file lies here. Real data belong elsewhere.\n"
)


def write_stand_in(name: str, out: Path, sketches: Sketches | None = None) -> Path:
    """Write a data set's stand-in into a folder, which may hold other stand-ins, and return it.

    Args:
        name: The data set.
        out: The folder.
        sketches: Name -> what writes it; those of unseen's own data sets unless given.

    Note:
        The folder and every new folder in it get a marker, so that one is recognised when it is
        copied alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text(MARKER_TEXT.format(name="NAME"), "utf-8")
    before = {*out.iterdir()}
    (sketches or SKETCHES)[name](out)
    for folder in {*out.iterdir()} - before:
        (folder / MARKER).write_text(MARKER_TEXT.format(name=name), "utf-8")
    return out


def image_folders(layout: Layout, out: Path) -> None:
    """Write a benchmark into out/root: three images per class and domain.

    Note:
        A class is the place of a bright square, a domain the tint of the background: something can
        be learnt from it, and nothing about the real images. Lists and parts of the official split
        are written too. Where a layout says how many classes there are and not which, they are
        numbered.
    """
    labels = layout.labels or [f"class_{i:03d}" for i in range(layout.count or 0)]
    root = out / layout.root
    folders = {role: name for name, role in reversed([*layout.parts.items()])}
    parts = (".", ".")
    if "validation" in folders:
        parts = (folders["train"], folders["validation"])
    for d, domain in enumerate(layout.domains):
        for c, label in enumerate(labels):
            for i in range(COUNT):
                folder = root / domain / parts[i == COUNT - 1] / label
                folder.mkdir(parents=True, exist_ok=True)
                pixels = _pixels(f"{layout.name}/{domain}/{label}/{i}", d, c)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
        if layout.lists is not None:
            _lists(layout.lists, root, domain, labels)


def _pixels(purpose: str, domain: int, label: int) -> Tensor:
    generator = keyed(f"sketch/{purpose}")
    pixels = torch.randint(60, (SIDE, SIDE, 3), generator=generator)
    pixels[:, :, domain % 3] += 30 + 15 * domain
    row, column = label * 5 % (SIDE - 3), label * 3 % (SIDE - 3)
    pixels[row : row + 3, column : column + 3] += 90
    return pixels.clamp(max=255).to(torch.uint8)


def _lists(lists: Lists, root: Path, domain: str, classes: Sequence[str]) -> None:
    """Write the lists of a domain, whose last image of each class is for validation."""
    images = range(COUNT)
    for pattern, own in ((lists.train, images[:-1]), (lists.validation, images[-1:])):
        paths = [f"{domain}/{label}/{i}.png" for label in classes for i in own]
        labels = [(lists.first or 0) + c for c in range(len(classes)) for _ in own]
        path = root / lists.folders[0] / pattern.format(domain=domain)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pkl":
            path.write_bytes(pickle.dumps((paths, labels)))
        else:
            lines = (f"{name} {label}\n" for name, label in zip(paths, labels, strict=True))
            path.write_text("".join(lines), "utf-8")


def heart_rows(folder: Path) -> None:
    """Write UCI Heart Disease: 24 rows per hospital, drawn at random, some cells missing."""
    root = folder / "heart_disease"
    root.mkdir(parents=True, exist_ok=True)
    for name, file in HOSPITALS.items():
        draws = torch.randint(100, (24, len(COLUMNS)), generator=keyed(f"sketch/heart/{name}"))
        lines = []
        for i, row in enumerate(draws.tolist()):
            codes = [
                v % 3 + 1 if c in CATEGORICAL else v for c, v in zip(COLUMNS, row, strict=True)
            ]
            cells = ["?" if v < 10 else str(code) for code, v in zip(codes, row, strict=True)]
            lines.append(",".join([*cells[:-1], str(i % 3)]))
        (root / file).write_text("\n".join(lines) + "\n")


def lung_rows(folder: Path) -> None:
    """Write NCCTG lung cancer: 24 rows of each of four institutions, drawn at random."""
    root = folder / "lung"
    root.mkdir(parents=True, exist_ok=True)
    names = lung.FACTS.names["columns"]
    lines = [",".join(names)]
    for k in range(1, 5):
        draws = torch.rand(24, 9, generator=keyed(f"sketch/lung/{k}")).tolist()
        for time, status, age, sex, *rest in draws:
            scores = [int(3 * rest[0]), *(10 * int(5 + 6 * v) for v in rest[1:3])]
            other = ["NA" if rest[3] < 0.2 else int(2000 * rest[3]), int(40 * rest[4]) - 10]
            row = [k, 1 + int(900 * time), 1 + (status < 0.7), 40 + int(40 * age), 1 + (sex < 0.4)]
            lines.append(",".join(map(str, (*row, *scores, *other))))
    (root / lung.FILE).write_text("\n".join(lines) + "\n")


#: Name of a data set -> what writes its stand-in into a folder, without a marker.
SKETCHES: Sketches = {
    "heart-disease": heart_rows,
    **{name: partial(image_folders, layout) for name, layout in LAYOUTS.items()},
    "lung": lung_rows,
}
