"""What is known of a data set before its files are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from unseen.datasets.dataset import DataSet
from unseen.datasets.layout import Layout, sketch


@dataclass(frozen=True)
class Info:
    """A data set that can be asked for by name.

    Attributes:
        loader: (data_dir, *, options) -> DataSet.
        description: One line.
        source: Where the files come from.
        licence: On what terms.
        model: What a study takes that names no other.
        metrics: What a study records that names no others.
        totals: Examples per domain, for the loader's default options; this and the next two where a
            source states them or complete files were counted.
        cells: Examples per domain and class.
        classes: Examples per class over all domains.
        checksums: md5 of the files as distributed.
        sketch: Writes a tiny synthetic stand-in of the same layout into a folder.
        layout: Of images in folders, which can be imported.
        locate: Raises an error where a folder lacks the files.
        amounts: (data_dir, *, options) -> what is counted in the files, as (found, known).
        variants: (*, options) -> cells under other options, empty where they are not known.
    """

    loader: Callable[..., DataSet]
    description: str
    source: str
    licence: str
    model: str
    metrics: tuple[str, ...] = ("loss", "accuracy")
    totals: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    sketch: Callable[[Path], None] | None = None
    layout: Layout | None = None
    locate: Callable[[Path], object] | None = None
    amounts: Callable[..., Mapping[str, tuple[int, int]]] | None = None
    variants: Callable[..., Mapping[str, Mapping[str, int]]] | None = None


def info_of_layout(
    loader: Callable[..., DataSet], description: str, layout: Layout, model: str = "resnet18"
) -> Info:
    """Return the entry of a benchmark of images in folders."""
    return Info(
        loader, description, layout.source, layout.licence, model, totals=layout.totals,
        cells=layout.cells, sketch=partial(sketch, layout), layout=layout,
    )  # fmt: skip
