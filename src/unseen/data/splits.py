"""Official splits, as lists of files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unseen.data.pickles import UNREADABLE, ArrayUnpickler
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.data.image_files.images import Image

#: Class and name without suffix -> the label on its line.
Labels = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Lists:
    """Files with one image per line, `domain/class/image.jpg 1`, for training and validation.

    Attributes:
        train: Name of the list for training, with {domain}; a name in .pkl is a pair (paths,
            labels) that is read without running anything.
        validation: Name of the list for validation.
        folders: Where they lie, next to the domains or in the folder above.
        first: The number of the first class, by which labels are checked; None: they are not, an
            image's class is its folder in any case.
        only: Leave out images that are in no list, which are otherwise an error.

    Note:
        Suffixes are not compared: copies that were converted keep the old ones in their lists.
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
        train = self._read(self.train.format(domain=domain), root)
        validation = self._read(self.validation.format(domain=domain), root)
        every = train | validation
        if self.first is not None:
            numbers = {label: str(i + self.first) for i, label in enumerate(classes)}
            for (label, name), number in every.items():
                if number != numbers.get(label):
                    numbered = f"the list of {domain} gives {label}/{name} the number {number}"
                    raise UnseenError(f"{numbered}; its class has {numbers.get(label)}.")
        keys = {image.key for image in images}
        if absent := sorted(key for key in every if key not in keys and key[0] in classes):
            first = "/".join(absent[0])
            what = f"{len(absent)} images of the split of {domain!r} are not there, first {first}."
            raise UnseenError(what, remedy="Find a complete copy, or take split='none'.")
        if not self.only and (unlisted := sorted(keys - every.keys())):
            first = "/".join(unlisted[0])
            what = f"{len(unlisted)} images of {domain!r} are in no list of it, first {first}."
            raise UnseenError(what, remedy="Take split='none', or remove them.")
        images_listed = [image for image in images if image.key in every]
        rows = [row for row, image in enumerate(images_listed) if image.key in validation]
        return images_listed, torch.tensor(rows, dtype=torch.int64)

    def _read(self, name: str, root: Path) -> Labels:
        above = root.parent if root.is_file() else root
        bases = (above, above.parent)
        places = [base / folder / name for base in bases for folder in (".", *self.folders)]
        path = next(filter(Path.is_file, places), None)
        if path is None:
            raise UnseenError(
                f"the official split needs the list {name} in {root} or {', '.join(self.folders)}.",
                remedy="Take split='none', and the study draws its validation rows.",
            )
        return from_pickle(path) if path.suffix == ".pkl" else from_text(path)


def from_text(path: Path) -> Labels:
    """Read lines of a path, a blank and a label."""
    labels: Labels = {}
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


def from_pickle(path: Path) -> Labels:
    """Read a pair of paths and labels; only lists, numbers, strings and arrays are read."""
    try:
        paths, labels = ArrayUnpickler(io.BytesIO(path.read_bytes())).load()
        return {_key(str(p)): str(k) for p, k in zip(paths, labels, strict=True)}
    except UNREADABLE as error:
        raise UnseenError(f"{path} is not a pair of paths and labels: {error}.") from error


def _key(name: str) -> tuple[str, str]:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return parts[-2], parts[-1].rpartition(".")[0]
