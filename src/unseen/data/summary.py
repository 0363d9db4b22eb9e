"""What `unseen data check` finds: counts and the known totals, files that cannot be read."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unseen.core.labels import IGNORED
from unseen.data import DataSet, Domain, Info, load
from unseen.data import info as info_of
from unseen.data.entry import Layout
from unseen.data.image_files import folder
from unseen.data.image_files.cache import attempt
from unseen.data.image_files.images import View
from unseen.data.image_files.layout import Survey, distinct, official
from unseen.data.image_files.layout import survey as layout_survey
from unseen.data.standin import marker, noted
from unseen.data.tables import delimited, table_files
from unseen.data.tables.columns import Column, columns
from unseen.data.tables.identifiers import repeated
from unseen.data.tables.remarks import of_categories
from unseen.data.tables.sheet import Sheet, UnfitCells, names_of
from unseen.data.tables.site_rows import too_few, too_small
from unseen.errors import Unreadable, UnseenError
from unseen.expression import Call

#: Every image is decoded to find out whether that is possible; the size does not matter.
SMALL = View(8)
#: What is said of a regression's targets.
TARGETS = ("mean", "deviation", "least", "lower quartile", "median", "upper quartile", "most")
#: What options of a wrong name, type or value raise where nobody checks them.
WRONG = UnseenError, TypeError, ValueError, AttributeError
#: Options of a table that name columns -> what these are.
ROLES = {
    "domain": "domain", "label": "label", "event": "event", "unit": "unit", "groups": "group",
    "drop": "dropped", "text": "text",
}  # fmt: skip
#: Options that choose no other examples than those that the totals count.
HARMLESS = frozenset({"path", "size", "crop", "grey"})


@dataclass(frozen=True)
class DomainCounts:
    """One domain: examples per class, the known totals, and train/validation of an official split.

    Attributes:
        name: The domain.
        counts: Class -> examples; for regression and masks one entry without a name.
        total: Known examples of the domain, None where it is not known.
        split: Sizes of the official split, in words.
        expected: Class -> known examples, where known.
        units: How many there are, where examples have one.
        targets: Of a regression, as `TARGETS` names them.
    """

    name: str
    counts: Mapping[str, int]
    total: int | None
    split: str
    expected: Mapping[str, int] = field(default_factory=dict)
    units: int | None = None
    targets: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def sound(self) -> bool:
        """Whether the domain's count is the known one, if there is one."""
        return self.total is None or self.total == self.count

    @property
    def wrong(self) -> list[str]:
        return _differing(self.counts, self.expected)


@dataclass(frozen=True)
class Report:
    """All that was found.

    Attributes:
        name: The data set.
        info: Its entry.
        domains: What each holds.
        unreadable: Files that cannot be read, with the reason.
        files: Name -> "as distributed", "differs" or "not there".
        expected: Class -> total over all domains, where known.
        amounts: What was counted in the files -> (found, known).
        splitless: Domain -> why its official split, which was asked for, cannot be used.
        stand_in: The marker of a synthetic stand-in, if it is one.
        notes: The data set's own remarks.
        refused: Why a study would not take it.
        columns: Of a table.
        doubts: Features of a table that seem to name units, people or days.
    """

    name: str
    info: Info
    domains: tuple[DomainCounts, ...]
    unreadable: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    amounts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    splitless: Mapping[str, str] = field(default_factory=dict)
    stand_in: Path | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""
    columns: tuple[Column, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        labels = dict.fromkeys(label for domain in self.domains for label in domain.counts)
        return {label: sum(d.counts.get(label, 0) for d in self.domains) for label in labels}

    @property
    def looked_for(self) -> str:
        """The class of a table's two that metrics of one class look for."""
        of_two = self.columns and len(self.counts) == 2
        numbers = any(domain.targets for domain in self.domains)
        return [*self.counts][1] if of_two and not numbers else ""

    @property
    def wrong(self) -> list[str]:
        return _differing(self.counts, self.expected)

    @property
    def sound(self) -> bool:
        right = all(domain.sound and not domain.wrong for domain in self.domains)
        files = not self.unreadable and "differs" not in self.files.values()
        amounts = all(count == expected for count, expected in self.amounts.values())
        fits = not (self.wrong or self.splitless or self.refused)
        return right and files and amounts and fits

    @property
    def compared(self) -> list[str]:
        kinds = {
            "examples per domain": any(domain.total is not None for domain in self.domains),
            "examples per domain and class": any(domain.expected for domain in self.domains),
            "examples per class": bool(self.expected),
            **dict.fromkeys(self.amounts, True),
            "checksums": any(state != "not there" for state in self.files.values()),
        }
        return [kind for kind, there in kinds.items() if there]


def inspect(call: Call, data_dir: str | Path | None) -> Report:
    """Look at every file of a data set; raise UnseenError where it cannot be found at all."""
    with noted() as places, table_files.reading_once():
        report = _report(call, data_dir)
    return replace(report, stand_in=marker(places))


def _report(call: Call, data_dir: str | Path | None) -> Report:
    info = info_of(call.name)
    defaults = {name: option.default for name, option in signature(info.loader).parameters.items()}
    options = {**defaults, **call.arguments}
    usual = {name for name in options if options[name] != defaults.get(name)} <= HARMLESS
    if not usual:  # other options may read other files
        info = replace(info, totals={}, cells={}, classes={}, checksums={})
    files = {name: _compare(data_dir, name, md5) for name, md5 in info.checksums.items()}
    report = Report(call.name, info, (), files=files)
    if info.layout is not None:
        survey = layout_survey(info.layout, data_dir, options.get("path"))
        return _images(report, survey, info.layout, options.get("split") == "official")
    try:
        if call.name == "table":
            return _table(report, data_dir, call.arguments)
        data = load(call.name, data_dir, **call.arguments)
    except Unreadable as error:
        if call.name == "folder":
            survey = folder.survey(data_dir, options.get("path", "."), options.get("classes"))
            report = replace(report, info=replace(info, source=folder.source_of(survey)))
            return _images(report, survey, None)
        counts = error.readable.items()
        domains = tuple(
            DomainCounts(name, {"": n}, info.totals.get(name), "") for name, n in counts
        )
        return replace(report, domains=domains, unreadable=error.faults)
    cells = info.variants(data, **call.arguments) if info.variants is not None else {}
    if cells or not usual:
        totals = {name: sum(own.values()) for name, own in cells.items()}
        info = replace(info, source=data.source, cells=cells, totals=totals)
    amounts = info.amounts(data_dir, **call.arguments) if info.amounts is not None else {}
    domains = tuple(_counted(data, domain, info) for domain in data.domains)
    return replace(
        report, info=info, domains=domains, expected=info.classes, amounts=amounts,
        notes=(*data.notes, *pixel_notes(data)),
    )  # fmt: skip


def pixel_notes(data: DataSet) -> list[str]:
    """Return for each domain of masks the classes' shares of its pixels, and what has no object."""
    notes = []
    for domain in data.domains if data.masks else ():
        y, names = domain.y, data.classes or ()
        shares = torch.bincount(y[y != IGNORED], minlength=len(names)) / max(1, y.numel())
        parts = [f"{name} {100 * x:.1f}%" for name, x in zip(names, shares.tolist(), strict=True)]
        rest = 1 - float(shares.sum())
        parts += [f"not counted {100 * rest:.1f}%"] if bool((y == IGNORED).any()) else []
        empty = int((y <= 0).all(2).all(1).sum())
        notes.append(f"pixels of {domain.name}: {', '.join(parts)}; {empty} without an object")
    return notes


def _counted(data: DataSet, domain: Domain, info: Info) -> DomainCounts:
    size = 0 if domain.validation is None else len(domain.validation)
    split = f"{len(domain.y) - size:,} / {size:,}" if size else ""
    units = None if domain.units is None else len(domain.units.unique())
    counts, targets = {"": len(domain.y)}, tuple[float, ...]()
    if data.masks:
        pass  # their pixels are in the notes
    elif data.classes is not None:
        numbers = domain.y.bincount(minlength=len(data.classes)).tolist()
        counts = dict(zip(data.classes, numbers, strict=True))
    else:
        y = domain.y.double()
        if data.times is not None:
            counts = {"event": int(y[:, 1].sum()), "censored": int((y[:, 1] == 0).sum())}
            y = y[:, 0]
        ends = y.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)).tolist()
        targets = (float(y.mean()), float(y.std(correction=0)), *ends)
    total, expected = info.totals.get(domain.name), info.cells.get(domain.name, {})
    return DomainCounts(domain.name, counts, total, split, expected, units, targets)


def _table(report: Report, data_dir: str | Path | None, options: Mapping[str, Any]) -> Report:
    """A user's table: its columns, and what a study would refuse as well as what can be counted."""
    keep = options.get("identifiers") == "keep"
    sheet = sheet_of(data_dir, options)
    roles: dict[str, str] = {}
    for key, role in ROLES.items():
        roles |= dict.fromkeys(names_of(options.get(key) or ()), role)
    categorical = names_of(options.get("categorical") or ())
    try:
        data = load("table", data_dir, **options)
        refused = too_small(data) or too_few(data)
    except UnseenError as error:
        refused = str(error)
        countable = _counted_all_the_same(sheet, options, error)
        if countable is None:
            summary = columns(sheet, roles, options["domain"], categorical, not keep)
            return replace(report, refused=refused, columns=summary)
        data = countable
        if "missing_label='drop'" in refused:  # which says what the first note says
            data = replace(data, notes=data.notes[1:])
    sheet = _rows_of(sheet, options["domain"], data)
    unsettled = [name for name in sheet.columns if name not in {*roles, *categorical}]
    report = replace(report, info=replace(report.info, source=data.source), refused=refused)
    domains = tuple(_counted(data, domain, report.info) for domain in data.domains)
    levels = data.schema.categories if data.schema is not None else {}
    doubts = () if keep else (*repeated(sheet, unsettled), *of_categories(sheet, [*levels]))
    summary = columns(sheet, roles, options["domain"], categorical, not keep)
    return replace(
        report,
        domains=domains,
        notes=data.notes,
        columns=summary,
        doubts=tuple(dict.fromkeys(doubts)),
    )


def _counted_all_the_same(
    sheet: Sheet, options: Mapping[str, Any], error: UnseenError
) -> DataSet | None:
    """Return a table that a study refuses, or None where its cells make no data set."""
    others = {k: v for k, v in options.items() if k not in (*table_files.READING, "path")}
    lenient = {**others, "identifiers": "keep", "missing_label": "drop"}
    last: Exception = error
    for whole in (True, False):  # with all remarks if that is possible
        try:
            return delimited.assemble(replace(sheet, whole=whole), **lenient)
        except WRONG as fault:
            last = fault
    if isinstance(last, UnfitCells):
        return None
    raise error from None


def sheet_of(data_dir: str | Path | None, options: Mapping[str, Any]) -> Sheet:
    """Return the sheet of a table by its options."""
    needs = [options[k] for k in ("domain", "label", "event", "unit") if options.get(k) is not None]
    reading = {key: options[key] for key in table_files.READING if key in options}
    return table_files.sheet_of(data_dir, options["path"], needs, reading)


def _rows_of(sheet: Sheet, domain: str, data: DataSet) -> Sheet:
    """The rows of the sites that are read, and those that name none."""
    names, codes = sheet.column(domain).levels
    stays = np.array([*(name in data.names for name in names), True])
    return sheet if stays.all() else sheet.take(np.flatnonzero(stays[codes]))


def _images(report: Report, survey: Survey, layout: Layout | None, strict: bool = False) -> Report:
    """The domains of a benchmark and its official splits, or a user's images that can be read.

    Args:
        report: What is known already.
        survey: The images.
        layout: Of a benchmark.
        strict: Whether its official split was asked for.
    """
    about = layout or report.info
    domains, splitless = [], {}
    unreadable: list[str] = []
    for name, images in survey.images.items():
        own, tree, split = images, survey.trees[name], ""
        if layout is not None:
            own = distinct(layout, images)
            try:
                listed, rows = official(layout, name, tree, images, survey.classes)
                split = f"{len(listed) - len(rows):,} / {len(rows):,}"
            except UnseenError as error:
                splitless[name] = str(error)
        attempts = attempt(tree, [image.file for image in own], SMALL)
        faults = {i: str(fault) for i, fault in attempts if isinstance(fault, UnseenError)}
        passed_over = faults if layout is None else {}
        labels = Counter(image.label for i, image in enumerate(own) if i not in passed_over)
        counts = {label: labels[label] for label in survey.classes}
        expected, total = about.cells.get(name, {}), about.totals.get(name)
        domains.append(DomainCounts(name, counts, total, split, expected))
        unreadable += faults.values()
    return replace(
        report, domains=tuple(domains), unreadable=tuple(unreadable),
        splitless=splitless if strict else {},
    )  # fmt: skip


def _differing(counts: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    return [label for label, total in expected.items() if counts.get(label, 0) != total]


def _compare(data_dir: str | Path | None, name: str, expected: str) -> str:
    folders = ("", "*/", "*/*/") if data_dir is not None else ()
    paths = [path for up in folders for path in Path(data_dir or ".").glob(f"{up}{name}")]
    if not paths:
        return "not there"
    with paths[0].open("rb") as file:
        same = hashlib.file_digest(file, "md5").hexdigest() == expected
    return "as distributed" if same else "differs"
