"""What `unseen data check` finds: counts and the known totals, files that cannot be read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from unseen.datasets import DataSet, Domain, Info, delimited, folder, load, overview
from unseen.datasets import info as info_of
from unseen.datasets.cache import attempt
from unseen.datasets.columns import repeated
from unseen.datasets.files import below
from unseen.datasets.images import View
from unseen.datasets.layout import Layout, distinct, official, survey
from unseen.datasets.standin import marker, noted
from unseen.errors import Unreadable, UnseenError
from unseen.expression import Call

#: Every image is decoded to find out whether that is possible; the size does not matter.
SMALL = View(8)
#: What is said of a regression's targets.
TARGETS = ("mean", "deviation", "least", "lower quartile", "median", "upper quartile", "most")
#: Options that choose no other examples than those that the totals count.
HARMLESS = frozenset({"path", "size", "crop", "grey"})


@dataclass(frozen=True)
class Found:
    """One domain: examples per class, the known totals, and train/validation of an official split.

    Attributes:
        name: The domain.
        counts: Class -> examples; for regression one entry without a name.
        total: Known examples of the domain, None where it is not known.
        split: Sizes of the official split, in words.
        known: Class -> known examples, where known.
        units: How many there are, where examples have one.
        targets: Of a regression, as `TARGETS` names them.
    """

    name: str
    counts: Mapping[str, int]
    total: int | None
    split: str
    known: Mapping[str, int] = field(default_factory=dict)
    units: int | None = None
    targets: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """Examples in the domain."""
        return sum(self.counts.values())

    @property
    def sound(self) -> bool:
        """Whether the domain's count is the known one, if there is one."""
        return self.total is None or self.total == self.count

    @property
    def wrong(self) -> list[str]:
        """The classes whose counts are not the known ones."""
        return _differing(self.counts, self.known)


@dataclass(frozen=True)
class Report:
    """All that was found.

    Attributes:
        name: The data set.
        info: Its entry.
        domains: What each holds.
        unreadable: Files that cannot be read, with the reason.
        files: Name -> "as distributed", "differs" or "not there".
        known: Class -> total over all domains, where known.
        amounts: What was counted in the files -> (found, known).
        splitless: Domain -> why its official split, which was asked for, cannot be used.
        stand_in: The marker of a synthetic stand-in, if it is one.
        notes: The data set's own remarks.
        refused: Why a study would not take it.
        columns: Of a table.
        doubts: Features of a table that seem to name units.
    """

    name: str
    info: Info
    domains: tuple[Found, ...]
    unreadable: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)
    amounts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    splitless: Mapping[str, str] = field(default_factory=dict)
    stand_in: Path | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""
    columns: tuple[overview.Column, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Class -> examples over all domains."""
        labels = dict.fromkeys(label for domain in self.domains for label in domain.counts)
        return {label: sum(d.counts.get(label, 0) for d in self.domains) for label in labels}

    @property
    def wrong(self) -> list[str]:
        """The classes whose counts over all domains are not the known ones."""
        return _differing(self.counts, self.known)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        right = all(domain.sound and not domain.wrong for domain in self.domains)
        files = not self.unreadable and "differs" not in self.files.values()
        amounts = all(found == known for found, known in self.amounts.values())
        fits = not (self.wrong or self.splitless or self.refused)
        return right and files and amounts and fits

    @property
    def compared(self) -> list[str]:
        """What there was to compare with."""
        kinds = {
            "examples per domain": any(domain.total is not None for domain in self.domains),
            "examples per domain and class": any(domain.known for domain in self.domains),
            "examples per class": bool(self.known),
            **dict.fromkeys(self.amounts, True),
            "checksums": any(state != "not there" for state in self.files.values()),
        }
        return [kind for kind, there in kinds.items() if there]


def inspect(call: Call, data_dir: str | Path | None) -> Report:
    """Look at every file of a data set; raise UnseenError where it cannot be found at all."""
    with noted() as places:
        found = _found(call, data_dir)
    return replace(found, stand_in=marker(places))


def _found(call: Call, data_dir: str | Path | None) -> Report:
    info = info_of(call.name)
    default = _defaults(info.loader)
    chosen = {key for key, value in call.arguments.items() if value != default.get(key)}
    usual = chosen <= HARMLESS
    checksums = info.checksums.items() if usual else ()  # others may read other files
    files = {name: _compare(data_dir, name, expected) for name, expected in checksums}
    if info.layout is not None:
        domains, unreadable, splitless = _images(info.layout, data_dir, call.arguments.get("path"))
        asked = call.arguments.get("split", default.get("split")) == "official"
        splitless = splitless if asked else {}
        return Report(call.name, info, domains, unreadable, files, splitless=splitless)
    if call.name == "table":
        return _table(call, data_dir, info)
    try:
        data = load(call.name, data_dir, **call.arguments)
    except Unreadable as error:
        if call.name == "folder":
            return _folder(call, data_dir, info)
        domains = tuple(
            Found(name, {"": count}, info.totals.get(name) if usual else None, "")
            for name, count in error.readable.items()
        )
        return Report(call.name, info, domains, error.faults, files)
    info = info if usual else replace(info, source=data.source)
    amounts = info.amounts(data_dir, **call.arguments) if info.amounts is not None else {}
    totals, cells = (info.totals, info.cells) if usual else _variant(info, call)
    found = [
        replace(_counted(data, d), total=totals.get(d.name), known=cells.get(d.name, {}))
        for d in data.domains
    ]
    classes = info.classes if usual else {}
    return Report(call.name, info, tuple(found), (), files, classes, amounts, notes=data.notes)


def _counted(data: DataSet, domain: Domain) -> Found:
    """The counts of a domain that was read."""
    numbers = Counter(domain.y.tolist()) if data.classes is not None else {}
    counts = {name: numbers.get(i, 0) for i, name in enumerate(data.classes or ())}
    held = 0 if domain.validation is None else len(domain.validation)
    split = f"{len(domain.y) - held:,} / {held:,}" if held else ""
    units = None if domain.units is None else len(domain.units.unique())
    targets: tuple[float, ...] = ()
    if data.classes is None:
        y = domain.y.double()
        ends = y.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)).tolist()
        targets = (float(y.mean()), float(y.std(correction=0)), *ends)
    return Found(
        domain.name, counts or {"": len(domain.y)}, None, split, units=units, targets=targets
    )


def _table(call: Call, data_dir: str | Path | None, info: Info) -> Report:
    """A user's table: its columns, and what a study would refuse as well as what can be counted."""
    options, refused = dict(call.arguments), ""
    try:
        data = load("table", data_dir, **options)
    except UnseenError as error:
        refused = str(error)
        lenient = {**options, "identifiers": "keep", "missing_label": "drop"}
        try:
            data = load("table", data_dir, **lenient)
        except UnseenError:
            raise error from None
        if "missing_label='drop'" in refused:  # which says what the first note says
            data = replace(data, notes=data.notes[1:])
    file = below(data_dir, str(options["path"]), "table")
    domain, label, unit = (options.get(key) for key in ("domain", "label", "unit"))
    needs = [str(name) for name in (domain, label, unit) if name is not None]
    reading = {key: options[key] for key in delimited.READING if key in options}
    sheet = delimited.opened(file, needs, **reading)  # type: ignore[arg-type]
    roles = {str(domain): "domain", str(label): "label"}
    for key, role in (("unit", "unit"), ("groups", "group"), ("drop", "dropped")):
        named = options.get(key) or ()
        roles |= dict.fromkeys([named] if isinstance(named, str) else named, role)  # type: ignore[call-overload]
    asked: Any = options.get("categorical")
    categorical = [asked] if isinstance(asked, str) else asked
    found = overview.columns(
        sheet, roles, str(domain), categorical, options.get("identifiers") != "keep"
    )
    domains = tuple(_counted(data, domain) for domain in data.domains)
    info = replace(info, source=data.source)
    doubts: tuple[str, ...] = ()
    if options.get("identifiers") != "keep":
        settled = {*roles, *(categorical or ())}
        doubts = tuple(repeated(sheet, [name for name in sheet.columns if name not in settled]))
    return Report(
        "table", info, domains, notes=data.notes, refused=refused, columns=found, doubts=doubts
    )


def _folder(call: Call, data_dir: str | Path | None, info: Info) -> Report:
    """A user's images of which some cannot be read: the others are counted."""
    options = {key: call.arguments[key] for key in ("path", "classes") if key in call.arguments}
    found = folder.survey(data_dir, **options)  # type: ignore[arg-type]
    domains, faults = [], []
    for name, files in found.images.items():
        counts = dict.fromkeys(found.classes, 0)
        labels = found.labels(name)
        for i, image in attempt(found.tree, files, SMALL):
            if isinstance(image, UnseenError):
                faults.append(str(image))
            else:
                counts[found.classes[labels[i]]] += 1
        domains.append(Found(name, counts, None, ""))
    source = f"images in {found.tree.root.resolve().name}"
    return Report("folder", replace(info, source=source), tuple(domains), tuple(faults))


def _variant(info: Info, call: Call) -> tuple[Mapping[str, int], Mapping[str, Mapping[str, int]]]:
    """Totals and cells under the options of a call, where they are known."""
    cells = info.variants(**call.arguments) if info.variants is not None else {}
    return {name: sum(own.values()) for name, own in cells.items()}, cells


def _defaults(loader: Callable[..., DataSet]) -> dict[str, object]:
    """Option -> what the loader takes where it is not given."""
    return {name: option.default for name, option in signature(loader).parameters.items()}


def _images(
    layout: Layout, data_dir: str | Path | None, path: object
) -> tuple[tuple[Found, ...], tuple[str, ...], dict[str, str]]:
    """The domains of a benchmark of images, the images that cannot be used, and the domains whose
    official split cannot be used, with the reason."""
    found = survey(layout, data_dir, None if path is None else str(path))
    domains, faults, splitless = [], [], {}
    for name, images in found.images.items():
        own, tree = distinct(layout, images), found.trees[name]
        try:
            listed, rows = official(layout, name, tree, images, found.classes)
            split = f"{len(listed) - len(rows):,} / {len(rows):,}"
        except UnseenError as error:
            split, splitless[name] = "", str(error)
        numbers = Counter(image.label for image in own)
        counts = {label: numbers.get(label, 0) for label in found.classes}
        known = layout.cells.get(name, {})
        domains.append(Found(name, counts, layout.totals.get(name), split, known))
        for _, image in attempt(tree, [image.file for image in own], SMALL):
            if isinstance(image, UnseenError):
                faults.append(str(image))
    return tuple(domains), tuple(faults), splitless


def _differing(counts: Mapping[str, int], known: Mapping[str, int]) -> list[str]:
    return [label for label, total in known.items() if counts.get(label, 0) != total]


def _compare(data_dir: str | Path | None, name: str, expected: str) -> str:
    """Whether a file, at most two folders below the data folder, is that of the checksum."""
    if data_dir is None:
        return "not there"
    found = [path for up in ("", "*/", "*/*/") for path in Path(data_dir).glob(f"{up}{name}")]
    if not found:
        return "not there"
    with found[0].open("rb") as file:
        same = hashlib.file_digest(file, "md5").hexdigest() == expected
    return "as distributed" if same else "differs"
