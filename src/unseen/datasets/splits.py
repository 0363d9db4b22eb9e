"""Official splits, as lists of files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unseen.datasets.pickles import UNREADABLE, ArrayUnpickler
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.datasets.images import Image

#: Class and name without suffix -> the label on its line, where there is one.
Listed = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Lists:
    """Files with one image per line, `domain/class/image.jpg 1`, for training and validation.

    Suffixes are not compared: copies that were converted keep the old ones in their lists.

    Attributes:
        train: Name of the list for training, with {domain}; a name in .pkl is a pair (paths,
            labels) that is read without running anything.
        validation: Name of the list for validation.
        folders: Where they lie, next to the domains or in the folder above.
        first: The number of the first class, by which labels are checked; None: they are not, an
            image's class is its folder in any case.
        only: Leave out images that are in no list, which are otherwise an error.
    """

    train: str
    validation: str
    folders: tuple[str, ...]
    first: int | None = None
    only: bool = False

    def apply(
        self, domain: str, root: Path, images: Sequence[Image], classes: Sequence[str]
    ) -> tuple[list[Image], Tensor]:
        """Return the domain's images that are listed, and the rows that are for validation."""
        train, held = (
            self._read(name.format(domain=domain), root) for name in (self.train, self.validation)
        )
        keys = {image.key for image in images}
        listed = train | held
        if self.first is not None:
            labels = {label: str(i + self.first) for i, label in enumerate(classes)}
            for (label, name), number in listed.items():
                if number != labels.get(label):
                    raise UnseenError(
                        f"the list of {domain} gives {label}/{name} the number {number}; class "
                        f"{label!r} has {labels.get(label)}, counted from {self.first}."
                    )
        absent = sorted(key for key in listed if key not in keys and key[0] in classes)
        if absent:
            raise UnseenError(
                f"{len(absent)} images of the split of {domain!r} are not there, the first "
                f"{absent[0][0]}/{absent[0][1]}. Look for a complete copy, or take split='none'."
            )
        free = sorted(key for key in keys if key not in listed)
        if free and not self.only:
            raise UnseenError(
                f"{len(free)} images of {domain!r} are in no list of its split, the first "
                f"{free[0][0]}/{free[0][1]}. Take split='none', or remove them."
            )
        images_listed = [image for image in images if image.key in listed]
        rows = [row for row, image in enumerate(images_listed) if image.key in held]
        return images_listed, torch.tensor(rows, dtype=torch.int64)

    def _read(self, name: str, root: Path) -> Listed:
        above = root.parent if root.is_file() else root
        places = [base / f for base in (above, above.parent) for f in (".", *self.folders)]
        for folder in places:
            path = folder / name
            if path.is_file():
                return from_pickle(path) if path.suffix == ".pkl" else from_text(path)
        usual = ", ".join(self.folders)
        raise UnseenError(
            f"the official split needs the list {name}, next to the domains or in a folder "
            f"{usual} there or one above; {root} has none. Take split='none', and the study draws "
            "its validation rows."
        )


def from_text(path: Path) -> Listed:
    """Read lines of a path, a blank and a label."""
    labels: Listed = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if len(PurePosixPath(name).parts) < 2 or not label.isdigit():
            raise UnseenError(
                f"line {number} of {path} is {line!r}; expected class/image and a number."
            )
        labels[_key(name)] = label
    return labels


def from_pickle(path: Path) -> Listed:
    """Read a pair of paths and labels; only lists, numbers, strings and arrays are read."""
    try:
        paths, labels = ArrayUnpickler(io.BytesIO(path.read_bytes())).load()
        return {_key(str(p)): str(k) for p, k in zip(paths, labels, strict=True)}
    except (*UNREADABLE, pickle.UnpicklingError) as error:
        raise UnseenError(f"{path} is not a pair of paths and labels: {error}.") from error


def _key(name: str) -> tuple[str, str]:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return parts[-2], parts[-1].rpartition(".")[0]
