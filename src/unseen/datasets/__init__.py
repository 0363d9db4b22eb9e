"""Data sets: files on disk become named domains in memory.

>>> sorted(DATASETS)  # doctest: +NORMALIZE_WHITESPACE
['color-mnist', 'folder', 'heart-disease', 'rotated-digits', 'rotated-mnist', 'table']
>>> data = load("rotated-digits")
>>> data.names, [len(domain.y) for domain in data.domains]
(('0', '15', '30', '45', '60', '75'), [300, 300, 300, 299, 299, 299])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unseen.datasets import coloured, delimited, digits, folder, heart, mnist
from unseen.datasets.base import DataSet, Domain
from unseen.datasets.check import check
from unseen.expression import Call, resolve

__all__ = ["DATASETS", "DataSet", "Domain", "Info", "check", "load"]


@dataclass(frozen=True)
class Info:
    """A data set that can be asked for by name.

    loader: (data_dir, *, options) -> DataSet. description: one line. source, licence: of the files.
    model, metrics: what a study uses that names no others.
    """

    loader: Callable[..., DataSet]
    description: str
    source: str
    licence: str
    model: str
    metrics: tuple[str, ...]


DATASETS: dict[str, Info] = {
    "rotated-digits": Info(
        digits.load,
        "1,797 handwritten digits of 8 x 8 pixels, six disjoint angles; no files needed",
        digits.SOURCE,
        digits.LICENCE,
        "mlp(widths=[64])",
        ("loss", "accuracy"),
    ),
    "rotated-mnist": Info(
        mnist.load,
        "MNIST at six angles: 70,000 disjoint digits (domainbed) or 1,000 at each (ghifary)",
        mnist.SOURCE,
        mnist.LICENCE,
        "mnist-cnn",
        ("loss", "accuracy"),
    ),
    "color-mnist": Info(
        coloured.load,
        "digits below 5 or not, with a misleading colour; five clients and one shifted target",
        coloured.SOURCE,
        mnist.LICENCE,
        "mlp(widths=[390, 390])",
        ("loss", "accuracy", "auroc"),
    ),
    "heart-disease": Info(
        heart.load,
        "920 patients of four hospitals, 13 findings with gaps, diagnosis yes or no",
        heart.SOURCE,
        heart.LICENCE,
        "mlp(widths=[32])",
        ("loss", "accuracy", "balanced-accuracy", "auroc", "auprc"),
    ),
    "folder": Info(
        folder.load,
        "your own images: domain/class/image, in a folder or a tar archive",
        "your files",
        "yours",
        "bn-cnn",
        ("loss", "accuracy"),
    ),
    "table": Info(
        delimited.load,
        "your own csv file: a domain column, a label column, features with gaps",
        "your file",
        "yours",
        "mlp(widths=[32])",
        ("loss", "accuracy"),
    ),
}


def load(name: str, data_dir: str | Path | None = None, **options: object) -> DataSet:
    """The data set of that name in DATASETS, checked; `options` are its loader's own.

    data_dir: the folder that holds the files. Raises UnseenError for a name or an option that
    does not exist (with the nearest one that does), for files that are not there (with where they
    were looked for and how to get them) and for data that is not sound.
    """
    loaders = {known: info.loader for known, info in DATASETS.items()}
    plain = {key: str(o) if isinstance(o, Path) else o for key, o in options.items()}
    data = resolve("data set", Call(name, plain), loaders, (data_dir,))
    assert isinstance(data, DataSet)
    return check(data)
