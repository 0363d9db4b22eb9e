"""What the WILDS sets have in common: image files, a table about them, domains of both."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.entry import Facts
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.images import File, Tree, View
from unseen.data.tables.dialect import number as spelt
from unseen.data.tables.table_files import stream
from unseen.errors import Unreadable, UnseenError, number

#: The domains that pool what WILDS keeps for selection and for the test.
VALIDATION, TEST = "ood-validation", "ood-test"


@dataclass(frozen=True, slots=True)
class Example:
    """One image.

    Attributes:
        path: Below the root.
        label: Its class, or the target of a regression.
        validates: Whether it belongs to the official validation split.
        meta: Metadata column -> code.
    """

    path: str
    label: float
    validates: bool = False
    meta: Mapping[str, int] = field(default_factory=dict)


def table(facts: Facts, name: str, data_dir: str | Path | None) -> Path:
    """Return the table of the images, with its columns; an error says where it was looked for."""
    path = facts.find(data_dir, name)
    next(stream(path, facts.names["columns"]), None)
    return path


def data_set(
    facts: Facts,
    root: Path,
    pairs: Iterable[tuple[str, Example]],
    view: View,
    levels: Mapping[str, tuple[str, ...]],
    limit: int | None = None,
    regression: bool = False,
) -> DataSet:
    """Return the data set of these images, decoded once.

    Args:
        facts: What is known of it.
        root: The folder of the images.
        pairs: Domains and their examples.
        view: What becomes of every image.
        levels: Metadata column -> names of its codes.
        limit: The most images of each domain, drawn by name.
        regression: Whether labels are numbers, and the view's bytes spell float32.

    Returns:
        The clients in alphabetic order, then the pooled domains; rows in their order. Where no
        image or every image of a domain validates, the study draws the validation split.
    """
    if limit is not None:
        number("limit", limit, 2, whole=True)
    examples: dict[str, list[Example]] = {}
    for name, example in pairs:
        examples.setdefault(name, []).append(example)
    if not examples:
        raise UnseenError(f"the metadata in {root} name no image that could be used.")
    names = sorted(examples, key=lambda name: (name == TEST, name == VALIDATION, name))
    by_domain = {name: _sample(root, name, examples[name], limit) for name in names}
    owners = [name for name, own in by_domain.items() for _ in own]
    try:
        files = _files(root, [example.path for own in by_domain.values() for example in own])
        pixels, digest = decoded(Tree(root), files, view)
    except Unreadable as error:
        good = (name for i, name in enumerate(owners) if i not in error.places)
        error.readable = dict.fromkeys(by_domain, 0) | Counter(good)
        raise
    kind, dtype = (torch.float32,) * 2 if regression else (torch.int64, torch.uint8)
    domains, start = [], 0
    for name, own in by_domain.items():
        end = start + len(own)
        validates = torch.tensor([example.validates for example in own])
        y = torch.tensor([example.label for example in own]).to(kind)
        rows = validates.nonzero().flatten() if 0 < int(validates.sum()) < len(own) else None
        meta = {column: torch.tensor([e.meta[column] for e in own]) for column in own[0].meta}
        x, part = pixels[start:end].view(dtype), f"{digest} {start}:{end}"
        domains.append(Domain(name, x, y, rows, meta, part))
        start = end
    return facts.data(domains, None if regression else facts.labels, levels=levels)


def real(cell: str, column: str, path: Path) -> float:
    """Return the finite number in a cell."""
    value = spelt(cell)
    if value is None or not math.isfinite(value):
        raise UnseenError(f"{path} has {cell!r} in {column!r}, which is not a finite number.")
    return value


def _sample(
    root: Path, name: str, examples: Sequence[Example], limit: int | None
) -> Sequence[Example]:
    if limit is None or len(examples) <= limit:
        return examples
    order = torch.randperm(len(examples), generator=keyed(f"wilds/{root.name}/{name}"))
    return [examples[i] for i in sorted(order[:limit].tolist())]


def _files(root: Path, paths: Sequence[str]) -> list[File]:
    files, missing = [], {}
    for i, path in enumerate(paths):
        try:
            status = (root / path).stat()
            files.append(File(path, status.st_size, status.st_mtime_ns))
        except OSError:
            missing[i] = f"the image {path} is not in {root}: unpack all, or remove its row."
    if missing:
        raise Unreadable(missing.values(), len(paths), places=missing)
    return files
