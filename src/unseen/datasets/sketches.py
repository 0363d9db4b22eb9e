"""Synthetic stand-ins of benchmarks: the same folders and names, tiny images drawn by rule."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unseen.core.exchange import keyed

if TYPE_CHECKING:
    from unseen.datasets.layout import Layout

SIDE = 12
#: Images of each class and domain; the last is for validation where there is a split.
COUNT = 3


def tree(layout: Layout, out: Path) -> None:
    """Write a stand-in of the layout into out/root: three images per class and domain.

    A class is the place of a bright square, a domain the tint of the background: something can be
    learnt from it, and nothing about the real images. Lists and parts of the official split are
    written too. Where a layout says how many classes there are and not which, they are numbered.
    """
    from PIL import Image

    if isinstance(layout.classes, int):
        classes = [f"class_{i:03d}" for i in range(layout.classes)]
    else:
        classes = list(layout.classes)
    root = out / next(name for name in layout.roots if not name.endswith((".tar", ".gz")))
    parts = _parts(layout)
    for d, domain in enumerate(layout.domains):
        names = []
        for c, label in enumerate(classes):
            for i in range(COUNT):
                pixels = draw(f"{layout.name}/{domain}/{label}/{i}", d, c)
                part = parts[-1] if i == COUNT - 1 else parts[0]
                folder = root / domain / part / label
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
            names.append([f"{domain}/{label}/{i}.png" for i in range(COUNT)])
        _lists(layout, root, domain, names)


def draw(purpose: str, domain: int, label: int) -> Tensor:
    """Draw one image, uint8 [SIDE, SIDE, 3]: noise on a tinted ground, a square by the class."""
    generator = keyed(f"sketch/{purpose}")
    pixels = torch.randint(60, (SIDE, SIDE, 3), generator=generator)
    pixels[:, :, domain % 3] += 30 + 15 * domain
    row, column = label * 5 % (SIDE - 3), label * 3 % (SIDE - 3)
    pixels[row : row + 3, column : column + 3] += 90
    return pixels.clamp(max=255).to(torch.uint8)


def _parts(layout: Layout) -> list[str]:
    """The folders between domain and class: none, or that of training and that of validation."""
    folders = {role: name for name, role in reversed(list(layout.parts.items()))}
    return [folders["train"], folders["validation"]] if "validation" in folders else ["."]


def _lists(layout: Layout, root: Path, domain: str, names: list[list[str]]) -> None:
    """The lists of the official split: lines, or a pickled pair of paths and labels."""
    lists = layout.lists
    if lists is None:
        return
    folder = root / lists.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    first = lists.first or 0
    for pattern, own in ((lists.train, slice(None, -1)), (lists.validation, slice(-1, None))):
        pairs = [(name, first + c) for c, files in enumerate(names) for name in files[own]]
        path = folder / pattern.format(domain=domain)
        if path.suffix == ".pkl":
            path.write_bytes(pickle.dumps(tuple(map(list, zip(*pairs, strict=True)))))
        else:
            path.write_text("".join(f"{name} {label}\n" for name, label in pairs), "utf-8")
