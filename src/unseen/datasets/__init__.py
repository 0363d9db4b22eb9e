"""Data sets: files on disk become named domains in memory.

>>> "rotated-digits" in DATASETS
True
>>> data = load("rotated-digits")
>>> data.names, [len(domain.y) for domain in data.domains]
(('0', '15', '30', '45', '60', '75'), [300, 300, 300, 299, 299, 299])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from unseen.datasets import (
    camelyon,
    cifar,
    coloured,
    delimited,
    digits,
    digitsdg,
    domainnet,
    eicu,
    fmow,
    folder,
    heart,
    mnist,
    office,
    pacs,
    poverty,
    sketches,
    terra,
    vlcs,
)
from unseen.datasets.check import check
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.layout import Layout
from unseen.datasets.standin import marker, note, noted
from unseen.errors import UnseenError
from unseen.expression import Call, fold, named, own_part, parse, resolve

__all__ = ["DATASETS", "DataSet", "Domain", "Info", "check", "info", "load"]


@dataclass(frozen=True)
class Info:
    """A data set that can be asked for by name.

    loader: (data_dir, *, options) -> DataSet. description: one line. source, licence: of the files.
    model, metrics: what a study uses that names no others. totals: examples per domain; cells: per
    domain and class; classes: per class over all domains; each where a source states them or
    complete files were counted, and for the loader's default options. checksums: md5 of the files
    as distributed. sketch: writes a tiny synthetic stand-in of the same layout into a folder.
    layout: of images in folders, which can be imported. amounts: (data_dir, *, options) -> what is
    counted in the files, as (found, known). variants: (*, options) -> cells under other options,
    empty where they are not known. locate: raises an error where a folder lacks the files.
    """

    loader: Callable[..., DataSet]
    description: str
    source: str
    licence: str
    model: str
    metrics: tuple[str, ...]
    totals: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    sketch: Callable[[Path], None] | None = None
    layout: Layout | None = None
    locate: Callable[[Path], object] | None = None
    amounts: Callable[..., Mapping[str, tuple[int, int]]] | None = None
    variants: Callable[..., Mapping[str, Mapping[str, int]]] | None = None


def _images(
    loader: Callable[..., DataSet], description: str, layout: Layout, model: str = "resnet18"
) -> Info:
    """A benchmark of images in folders."""
    return Info(
        loader,
        description,
        layout.source,
        layout.licence,
        model,
        ("loss", "accuracy"),
        layout.totals,
        layout.cells,
        sketch=partial(sketches.tree, layout),
        layout=layout,
    )


DATASETS: dict[str, Info] = {
    "rotated-digits": Info(
        digits.load,
        "1,797 handwritten digits of 8 x 8 pixels, six disjoint angles; no files needed",
        digits.SOURCE,
        digits.LICENCE,
        "mlp(widths=[64])",
        ("loss", "accuracy"),
        digits.TOTALS,
        classes=digits.CLASSES,
    ),
    "rotated-mnist": Info(
        mnist.load,
        "MNIST at six angles: 70,000 disjoint digits (domainbed) or 1,000 at each (ghifary)",
        mnist.SOURCE,
        mnist.LICENCE,
        "mnist-cnn",
        ("loss", "accuracy"),
        mnist.TOTALS,
        classes=mnist.CLASSES,
        checksums=mnist.CHECKSUMS,
        sketch=mnist.sketch,
        locate=mnist.locate_either,
        variants=mnist.variants,
    ),
    "color-mnist": Info(
        coloured.load,
        "digits below 5 or not, with a misleading colour; five clients and one shifted target",
        coloured.SOURCE,
        mnist.LICENCE,
        "mlp(widths=[390, 390])",
        ("loss", "accuracy", "auroc"),
        coloured.TOTALS,
        checksums=mnist.CHECKSUMS,
        sketch=mnist.sketch,
        locate=partial(mnist.locate, dataset="color-mnist"),
    ),
    "rotated-cifar10": Info(
        cifar.load,
        "CIFAR-10 at nine angles in three clients; all angles in the target",
        cifar.SOURCE,
        cifar.LICENCE,
        "fedilc-cnn",
        ("loss", "accuracy"),
        cifar.TOTALS,
        classes=cifar.PER_CLASS,
        checksums=cifar.CHECKSUMS,
        sketch=cifar.sketch,
        locate=cifar.locate,
    ),
    "heart-disease": Info(
        heart.load,
        "920 patients of four hospitals, 13 findings with gaps, diagnosis yes or no",
        heart.SOURCE,
        heart.LICENCE,
        "mlp(widths=[32])",
        ("loss", "accuracy", "balanced-accuracy", "auroc", "auprc"),
        heart.TOTALS,
        heart.CELLS,
        sketch=heart.sketch,
        locate=heart.locate,
    ),
    "pacs": _images(
        pacs.load, "7 kinds of things, painted, as cartoons, photographed, sketched", pacs.LAYOUT
    ),
    "vlcs": _images(vlcs.load, "5 kinds of things in photos of four data sets", vlcs.LAYOUT),
    "office-home": _images(office.load, "65 things of the office in four styles", office.LAYOUT),
    "office-caltech-home": _images(
        office.load_caltech_home, "8 things of the office in seven domains", office.CALTECH_HOME
    ),
    "terra-incognita": _images(
        terra.load, "9 animals or nothing before four camera traps", terra.LAYOUT
    ),
    "domainnet": _images(domainnet.load, "345 things in six styles", domainnet.LAYOUT),
    "domainnet10": _images(
        domainnet.load_ten,
        "10 things in six styles, FedBN's subset",
        domainnet.LAYOUT_10,
        "alexnet-bn",
    ),
    "digits-dg": _images(
        digitsdg.load, "digits of four sources, 6,000 each", digitsdg.LAYOUT, "mnist-cnn"
    ),
    "camelyon17": Info(
        camelyon.load,
        "tumour or not in 455,954 patches of lymph nodes, five hospitals (WILDS)",
        camelyon.SOURCE,
        camelyon.LICENCE,
        "densenet121",
        ("loss", "accuracy"),
        camelyon.TOTALS,
        camelyon.CELLS,
        sketch=camelyon.sketch,
        locate=camelyon.locate,
    ),
    "povertymap": Info(
        poverty.load,
        "wealth of 19,669 African villages from 8 bands, 23 countries x urban or rural (WILDS)",
        poverty.SOURCE,
        poverty.LICENCE,
        "resnet18",
        ("loss", "pearson"),
        poverty.TOTALS,
        sketch=poverty.sketch,
        locate=poverty.locate,
    ),
    "fmow": Info(
        fmow.load,
        "62 uses of land on satellite images by year or region (WILDS)",
        fmow.SOURCE,
        fmow.LICENCE,
        "densenet121",
        ("loss", "accuracy"),
        fmow.TOTALS,
        sketch=fmow.sketch,
        locate=fmow.locate,
    ),
    "eicu": Info(
        eicu.load,
        "death in hospital from drugs in intensive care; regions or hospitals, demo or full",
        eicu.SOURCE,
        eicu.LICENCE,
        "mlp(widths=[64])",
        ("loss", "accuracy", "auroc", "auprc"),
        eicu.TOTALS,
        eicu.CELLS,
        sketch=eicu.sketch,
        locate=eicu.locate,
        amounts=eicu.amounts,
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


def info(name: str) -> Info:
    """The entry of that name; for a user's own loader, `module:function`, what serves any data.

    >>> info("pacs").model, info("random:Random").metrics
    ('resnet18', ('loss', 'accuracy'))
    """
    if ":" in name:
        loader = cast("Callable[..., DataSet]", own_part("data set", name))
        told = "your own loader", "your files", "yours"
        return Info(loader, *told, "mlp(widths=[64])", ("loss", "accuracy"))
    return named("data set", fold(name), DATASETS)


def _call(text: str) -> Call:
    """The one data set that an expression names; a bare name may be spelt in any way."""
    if "(" not in text:
        return Call(text)
    calls = parse(text)
    if len(calls) > 1:
        raise UnseenError(f"expected one data set; found {len(calls)}, joined by +, in {text!r}.")
    return calls[0]


def load(name: str, data_dir: str | Path | None = None, **options: object) -> DataSet:
    """The data set of that name in DATASETS, checked; `options` are its loader's own.

    name: or `module:function` for your own loader, (data_dir, *, options) -> DataSet; with options
    in brackets, as studies name data sets, or without. data_dir:
    the folder that holds the files. Raises UnseenError for a name or an option that does not
    exist (with the nearest one that does), for files that are not there (with where they were
    looked for and how to get them) and for data that is not sound. Files of a synthetic stand-in
    are known by the marker beside them.
    """
    call = _call(name)
    loaders = {known: info.loader for known, info in DATASETS.items()}
    options = {**call.arguments, **options}
    plain = {key: str(o) if isinstance(o, Path) else o for key, o in options.items()}
    with noted() as places:
        if ":" in call.name and data_dir is not None:
            note(Path(data_dir))  # your own loader may find its files in its own way
        data = resolve("data set", Call(call.name, plain), loaders, (data_dir,), own=True)
    if not isinstance(data, DataSet):
        raise UnseenError(
            f"data set {name!r} must be an unseen.datasets.DataSet; its loader returned "
            f"{type(data).__name__}."
        )
    return check(replace(data, stand_in=data.stand_in or marker(places) is not None))
