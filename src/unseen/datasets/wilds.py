"""What the WILDS sets have in common: image files, a table about them, domains of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from unseen.core.exchange import keyed
from unseen.datasets.cache import decoded
from unseen.datasets.dataset import Domain
from unseen.datasets.images import File, Tree, View
from unseen.errors import Unreadable, UnseenError, number

#: The domains that pool what WILDS keeps for selection and for the test.
VALIDATION, TEST = "ood-validation", "ood-test"
CITATION = """@inproceedings{koh2021wilds,
  author = {Koh, Pang Wei and Sagawa, Shiori and Marklund, Henrik and Xie, Sang Michael and
            Zhang, Marvin and Balsubramani, Akshay and Hu, Weihua and Yasunaga, Michihiro and
            Phillips, Richard Lanas and Gao, Irena and others},
  title = {{WILDS}: A Benchmark of in-the-Wild Distribution Shifts},
  booktitle = {International Conference on Machine Learning},
  pages = {5637--5664},
  year = {2021}
}"""


@dataclass(frozen=True, slots=True)
class Example:
    """One image: its path below the root, its label, whether it is held back for validation."""

    path: str
    label: float
    held: bool = False
    meta: Mapping[str, int] = field(default_factory=dict)


def domains(
    root: Path,
    examples: Mapping[str, Sequence[Example]],
    view: View,
    *,
    limit: int | None = None,
    dtype: torch.dtype = torch.uint8,
    regression: bool = False,
) -> tuple[Domain, ...]:
    """Return domains of these images, decoded once.

    Clients are in alphabetic order, then the pooled domains; rows in the order given. Where no
    image or every image of a domain is held back, the study draws the validation split.

    Args:
        root: The folder of the images.
        examples: Domain -> its examples.
        view: What becomes of every image.
        limit: The most images of each domain, drawn by name.
        dtype: The type that the view's bytes spell.
        regression: Whether labels are numbers.
    """
    if limit is not None:
        number("limit", limit, 2, whole=True)
    if not examples:
        raise UnseenError(f"the metadata in {root} name no image that could be used.")
    examples = {name: _drawn(root, name, examples[name], limit) for name in ordered(examples)}
    owners = [name for name, group in examples.items() for _ in group]
    try:
        files = _files(root, [example.path for group in examples.values() for example in group])
        pixels, digest = decoded(Tree(root), files, view)
    except Unreadable as error:
        good = (name for i, name in enumerate(owners) if i not in error.places)
        error.readable = dict.fromkeys(examples, 0) | Counter(good)
        raise
    kind, result, start = torch.float32 if regression else torch.int64, [], 0
    for name, group in examples.items():
        end = start + len(group)
        held = torch.tensor([example.held for example in group])
        result.append(
            Domain(
                name,
                pixels[start:end].view(dtype),
                torch.tensor([example.label for example in group]).to(kind),
                held.nonzero().flatten() if 0 < int(held.sum()) < len(held) else None,
                {column: torch.tensor([e.meta[column] for e in group]) for column in group[0].meta},
                f"{digest} {start}:{end}",
            )
        )
        start = end
    return tuple(result)


def ordered(names: Iterable[str]) -> list[str]:
    """Return the names of the clients in alphabetic order, then the pooled domains."""
    last = (VALIDATION, TEST)
    return sorted(names, key=lambda name: (last.index(name) + 1 if name in last else 0, name))


def whole(cell: str, column: str, path: Path) -> int:
    """Return the whole number in a cell, also where it was written as 3.0."""
    value = real(cell, column, path)
    if value != int(value):
        raise UnseenError(f"{path} has {cell!r} in {column!r}, which is not a whole number.")
    return int(value)


def real(cell: str, column: str, path: Path) -> float:
    """Return the finite number in a cell."""
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise UnseenError(f"{path} has {cell!r} in {column!r}, which is not a finite number.")
    return value


def _drawn(
    root: Path, name: str, examples: Sequence[Example], limit: int | None
) -> Sequence[Example]:
    if limit is None or len(examples) <= limit:
        return examples
    order = torch.randperm(len(examples), generator=keyed(f"wilds/{root.name}/{name}"))
    return [examples[i] for i in sorted(order[:limit].tolist())]


def _files(root: Path, paths: Sequence[str]) -> list[File]:
    found, missing = [], {}
    for i, path in enumerate(paths):
        try:
            status = (root / path).stat()
        except OSError:
            missing[i] = (
                f"the image {path} is named by the metadata in {root} and is not there: unpack the "
                "whole archive, or remove its row."
            )
            continue
        found.append(File(path, status.st_size, status.st_mtime_ns))
    if missing:
        raise Unreadable(missing.values(), len(paths), places=missing)
    return found
