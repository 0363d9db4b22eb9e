"""Data with labels, as batches of a model's inputs: the data set of training, images, csv rows."""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.core.client import Split, Stored
from unseen.core.labels import exact_numbers
from unseen.data import info, load
from unseen.data.dataset import DataSet
from unseen.data.entry import folded
from unseen.data.tables.cells import identity
from unseen.errors import UnseenError, check_known, nearest
from unseen.expression import Call, parse
from unseen.serving.directory import Trained
from unseen.serving.reading.batch import Batch, Item
from unseen.serving.reading.bounds import Tally
from unseen.serving.reading.inputs import ImageInputs, TableInputs
from unseen.serving.reading.new_rows import IMAGES, ROWS, read
from unseen.serving.reading.row_files import fitted
from unseen.serving.reading.row_labels import LabelColumns, Labels, Sites, sites_of


@dataclass(frozen=True)
class Request:
    """What is to be evaluated.

    Attributes:
        data: A csv file, a folder of images or the folder of the data set's files; None for the
            data set of training, where UNSEEN_DATA says.
        domains: The domains to evaluate; None for all.
        metrics: The metrics; None for those of training.
        label: The csv file's column of labels; None for that of training. Of times until an event
            two columns with a comma, that of the time and that of the event.
        domain: The csv file's column of domains; None for that of training.
        batch: Inputs per pass; None for the default.
        groups: Columns of subgroups: of the csv file, or of the data set's metadata.
        called: What errors call the data; their path by default.
    """

    data: Path | None = None
    domains: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    label: str | None = None
    domain: str | None = None
    batch: int | None = None
    groups: tuple[str, ...] = ()
    called: str = ""

    def includes(self, domain: str) -> bool:
        return self.domains is None or domain in self.domains


@dataclass(frozen=True)
class Labelled:
    """A batch of one domain: inputs [N, ...], labels [N], each row's subgroups and its unit."""

    domain: str
    x: Tensor
    y: Tensor
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    units: tuple[str | int, ...] = ()


@dataclass
class LabelledData:
    """The data of a request, read batch by batch, and remarks on them.

    Attributes:
        trained: The model.
        request: What to read.
        faults: What could not be used.
        domains: Every domain of the data.
        tally: Counts inputs far from training, in the domains that are evaluated.
        unseen: How many rows have a category that no training site had.
        unlabelled: How many rows are left out, as in training.
    """

    trained: Trained
    request: Request
    faults: list[Item] = field(default_factory=list)
    domains: dict[str, None] = field(default_factory=dict)
    unseen: int = 0
    unlabelled: int = 0

    def __post_init__(self) -> None:
        self.tally = Tally(self.trained.bounds)

    def lines(self) -> list[str]:
        lines = []
        if self.unlabelled:
            lines.append(f"rows left out, which have no label: {self.unlabelled}")
        if n := self.unseen:
            lines.append(f"rows with a category that no training site had, used without it: {n}")
        return lines + (self.tally.lines() if self.tally.read else [])

    def batches(self) -> Iterator[Labelled]:
        inputs, data = self.trained.inputs, self.request.data
        if isinstance(inputs, ImageInputs) and data is not None and not self.trained.masks:
            yield from self._by_folder(data)
        elif isinstance(inputs, TableInputs) and data is not None and data.is_file():
            yield from self._by_column(inputs, data)
        else:
            for batch in of_data_set(self.trained, data, self.request):
                if isinstance(inputs, TableInputs):
                    self._count(
                        Batch([batch.domain] * len(batch.x), [], batch.x), np.arange(len(batch.x))
                    )
                yield batch

    def _by_folder(self, root: Path) -> Iterator[Labelled]:
        """Yield images below root/domain/class, or below root/class, which is then one domain."""
        layout = info(self._training.name).layout
        classes = self.trained.classes or ()
        alike = Counter(map(folded, classes))
        names = {folded(name): name for name in classes if alike[folded(name)] == 1}

        def label_of(item: Item) -> int | str:
            folder = item.parts[-2] if len(item.parts) > 1 else ""
            label = folder if folder in classes else names.get(folded(folder))
            label = label or (layout.label(folder) if layout else None)
            if label in classes:
                return classes.index(label)
            return f"its folder {folder!r} is not a class of the model ({', '.join(classes)})"

        for batch in read(self.trained.inputs, [root], self.request.batch):
            folders = [i.parts[-3] if len(i.parts) > 2 else root.resolve().name for i in batch]
            sites = tuple(dict.fromkeys(folders))
            labels = [*map(label_of, batch)]
            values = np.array([-1 if isinstance(own, str) else own for own in labels])
            faults = {i: own for i, own in enumerate(labels) if isinstance(own, str)}
            codes = np.array([*map(sites.index, folders)])
            yield from self._answered(batch, (sites, codes), Labels(values, faults))

    def _by_column(self, inputs: TableInputs, path: Path) -> Iterator[Labelled]:
        columns, domain = self._columns(inputs, path), self.request.domain
        inputs = fitted(replace(inputs, label=columns.label), path)
        spellings: dict[object, str] = {
            identity(s): s for part in self.trained.spec["sites"].values() for s in part
        }
        for batch in read(inputs, [path], self.request.batch, lenient=True):
            if domain and batch.columns:
                check_known(f"column of {columns.place} (for the site)", batch.columns, domain)
            sites = sites_of(inputs, batch, domain or inputs.domain or "", path.stem, spellings)
            yield from self._answered(batch, sites, columns.read(inputs, batch))

    def _columns(self, inputs: TableInputs, path: Path) -> LabelColumns:
        """Return where a file's labels are."""
        label, event = self.request.label or inputs.label, ""
        if label is None:
            raise UnseenError(
                "no column is spellings to hold the labels.",
                remedy="Name it by label (--label COLUMN).",
            )
        if self.trained.times is not None:
            label, _, event = label.partition(",")
            event = event.strip() or self.trained.times.event
        drop = self._training.arguments.get("missing_label") == "drop"
        place = self.request.called or str(path)
        return LabelColumns(label, event, self.trained.classes, drop, place)

    @property
    def _training(self) -> Call:
        (call,) = parse(self.trained.spec["data"]["dataset"])
        return call

    def _answered(self, batch: Batch, sites: Sites, labels: Labels) -> Iterator[Labelled]:
        """Yield what has a label at the sites that are asked for, one batch per site and pass.

        Args:
            batch: The images or rows.
            sites: Where they are from.
            labels: Their labels.
        """
        names, codes = sites
        wrong, unlabelled = np.zeros((2, len(batch)), dtype=bool)
        wrong[[*batch.errors]], unlabelled[[*labels.faults]] = True, True
        # What has an error may lack its site as well.
        self.domains |= {names[code]: None for code in _in_order(codes[~wrong])}
        asked = np.array([*map(self.request.includes, names)])[codes]
        if labels.left is not None:
            self.unlabelled += int((asked & labels.left).sum())
            asked &= ~labels.left
        for i in np.flatnonzero(asked & (wrong | unlabelled)).tolist():
            own = Item(batch.sources[i], batch.lines[i], error=labels.faults.get(i))
            self.faults.append(batch[i] if wrong[i] else own)
        used = asked & ~wrong & ~unlabelled
        self._count(batch, np.flatnonzero(used).tolist())
        x, size = batch.inputs, self.request.batch or ROWS
        if x is None or not used.any():
            return
        groups, units = {c: _cells(batch, c) for c in self.request.groups}, self._units(batch)
        for start in range(0, len(batch), size):
            places = start + np.flatnonzero(used[start : start + size])
            for code in _in_order(codes[places]):
                own = places[codes[places] == code]
                yield Labelled(
                    names[code],
                    x[torch.from_numpy(batch.rows[own])],
                    labels_of(self.trained, self._labels(labels.values[own])),
                    {column: tuple(cells[i] for i in own) for column, cells in groups.items()},
                    tuple(units[i] for i in own) if units else (),
                )

    def _labels(self, values: NDArray[np.float64]) -> Tensor:
        """Return labels in the precision that their distance from 0 needs."""
        if self.trained.classes is not None:
            return torch.from_numpy(values).long()
        if self.trained.scale is None:
            return exact_numbers(values)
        kind = torch.float64 if self.trained.scale.far else torch.float32
        return torch.from_numpy(values).to(kind)

    def _units(self, batch: Batch) -> list[str]:
        """Return whose rows these are, where training had a column of units that is here, too."""
        column = self._training.arguments.get("unit")
        return _cells(batch, str(column)) if column in batch.columns else []

    def _count(self, batch: Batch, places: Collection[int]) -> None:
        self.tally.count(self.trained.bounds.mark(batch), places)
        self.unseen += len(batch.unseen.keys() & {*places})


def _in_order(codes: NDArray[np.int64]) -> list[int]:
    """Return the different codes in the order in which they occur."""
    different, first = np.unique(codes, return_index=True)
    return [int(code) for code in different[np.argsort(first)]]


def labels_of(trained: Trained, y: Tensor) -> Tensor:
    """Return labels as metrics read them: times in units of intervals, if the model has such."""
    return trained.times.labels(y) if trained.times is not None else y


def _cells(batch: Batch, column: str) -> list[str]:
    if column not in batch.columns:
        raise nearest("column (for groups)", column, batch.columns)
    return [*batch.columns[column]]


def check_domains(names: Sequence[str] | None, domains: Mapping[str, object]) -> None:
    """Refuse domains that are not there."""
    for name in names or ():
        if name not in domains:
            raise nearest("domain of these data", name, domains)


def of_data_set(trained: Trained, folder: Path | None, request: Request) -> Iterator[Labelled]:
    """Read the data set of training again and yield batches, its domains in their order.

    Args:
        trained: The model.
        folder: The data folder (default: where UNSEEN_DATA says).
        request: The domains to read, the inputs per batch and the columns of subgroups.
    """
    data = _training_data(trained, folder)
    if (data.times is None) != (trained.times is None):
        raise UnseenError("the data and the model differ in whether labels are times.")
    if data.classes != trained.classes:
        raise UnseenError(
            f"the data have the classes {data.classes}; the model's are {trained.classes}."
        )
    check_domains(request.domains, dict.fromkeys(data.names))
    check_known("column of the data set's groups", data.levels, *request.groups)
    inputs = trained.inputs
    for domain in filter(lambda domain: request.includes(domain.name), data.domains):
        x: Tensor | Stored = domain.x if domain.digest is None else Stored.of(domain.x)
        if isinstance(inputs, TableInputs) and data.schema is not None:
            x = inputs.recode(data.schema, domain.x)
        if tuple(x.shape[1:]) != inputs.shape:
            raise UnseenError(
                f"the model takes {list(inputs.shape)}; the data have {list(x.shape[1:])}."
            )
        split, size = Split(x, domain.y), request.batch or IMAGES
        names = {c: _names(domain.meta[c], data.levels[c]) for c in request.groups}
        for i in range(0, len(split), size):
            some = slice(i, i + size)
            groups = {column: cells[some] for column, cells in names.items()}
            inputs_of, y = split.batch(some)
            units = () if domain.units is None else tuple(domain.units[some].tolist())
            yield Labelled(domain.name, inputs_of, labels_of(trained, y), groups, units)


def _training_data(trained: Trained, folder: Path | None) -> DataSet:
    (call,) = parse(trained.spec["data"]["dataset"])
    if call.name == "masks" and folder is not None:
        path = str(call.arguments.get("path", "."))
        other = Path(path).is_absolute() or not (folder / path).exists()  # not of training
        return load(call.name, folder, **{**call.arguments, "path": "." if other else path})
    return load(call.name, folder or os.environ.get("UNSEEN_DATA"), **call.arguments)


def _names(codes: Tensor, levels: Sequence[str]) -> tuple[str, ...]:
    return tuple(levels[code] if code >= 0 else "" for code in codes.tolist())
