"""Data with labels, as batches of a model's inputs: the data set of training, images, csv rows."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.client import Split, Stored
from unseen.core.labels import exact_numbers
from unseen.data import info, load
from unseen.data.dataset import DataSet
from unseen.data.entry import folded
from unseen.data.tables.cells import identity
from unseen.data.tables.sheet import codes_of
from unseen.errors import UnseenError, check_known, nearest
from unseen.expression import Call, parse
from unseen.serving.directory import Trained
from unseen.serving.reading.bounds import Tally
from unseen.serving.reading.inputs import ImageInputs, TableInputs
from unseen.serving.reading.new_rows import IMAGES, Item, read, stacked
from unseen.serving.reading.row_columns import fitted

#: A class, a number, or a time and an event.
Value = float | tuple[float, float]


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
                    self._count(Item(batch.domain, x=x) for x in batch.x)
                yield batch

    def _by_folder(self, root: Path) -> Iterator[Labelled]:
        """Yield images below root/domain/class, or below root/class, which is then one domain."""
        layout = info(self._training.name).layout
        classes = self.trained.classes or ()
        alike = Counter(map(folded, classes))
        names = {folded(name): name for name in classes if alike[folded(name)] == 1}

        def answer(item: Item) -> tuple[str, float | str]:
            folder = item.parts[-2] if len(item.parts) > 1 else ""
            label = folder if folder in classes else names.get(folded(folder))
            label = label or (layout.label(folder) if layout else None)
            domain = item.parts[-3] if len(item.parts) > 2 else root.resolve().name
            if label in classes:
                return domain, classes.index(label)
            fault = f"its folder {folder!r} is not a class of the model ({', '.join(classes)})"
            return domain, fault

        return self._answered(read(self.trained.inputs, [root], self.request.batch), answer)

    def _by_column(self, inputs: TableInputs, path: Path) -> Iterator[Labelled]:
        label, times = self.request.label or inputs.label, self.trained.times
        if label is None:
            raise UnseenError(
                "no column is known to hold the labels.",
                remedy="Name it by label (--label COLUMN).",
            )
        event = ""
        if times is not None:
            label, _, event = label.partition(",")
            event = event.strip() or times.event
        domain, classes = self.request.domain or inputs.domain or "", self.trained.classes
        codes = codes_of(classes or ())
        sites: dict[object, str] = {
            identity(s): s for part in self.trained.spec["sites"].values() for s in part
        }
        inputs = fitted(replace(inputs, label=label), path)
        drop = self._training.arguments.get("missing_label") == "drop"
        place = self.request.called or path

        @cache
        def site_of(name: str) -> str:
            return sites.setdefault(inputs.identity(name), name)  # 3.0 is the site 3

        @cache
        def class_of(cell: str) -> int | None:
            return codes.get(inputs.identity(cell))

        def answer(item: Item) -> tuple[str, Value | str | None]:
            if self.request.domain and item.cells:
                check_known(f"column of {place} (for the site)", item.cells, domain)
            name, cell = item.cells.get(domain) or path.stem, item.cells.get(label, "")
            name = site_of(name)
            if drop and label in item.cells and inputs.is_missing(cell.strip()):
                return name, None
            if item.error is not None:
                return name, item.error
            if label not in item.cells:
                raise nearest(f"column of {place} (for label)", label, item.cells)
            number = inputs.dialect.finite
            if times is not None:
                if event not in item.cells:
                    raise nearest(f"column of {place} (for label TIME,EVENT)", event, item.cells)
                pair = times.cell(cell, inputs.dialect.plain(item.cells[event]), number)
                return name, pair or self._fault_of_times(item, label, event, inputs.is_missing)
            value = number(cell) if classes is None else class_of(cell)
            if value is None and inputs.is_missing(cell.strip()):
                return name, f"its label {label} is missing"
            kind = "a finite number" if classes is None else f"a class of the model: {classes}"
            return name, f"its label {label} = {cell!r} is not {kind}" if value is None else value

        return self._answered(read(inputs, [path], self.request.batch, lenient=True), answer)

    @staticmethod
    def _fault_of_times(item: Item, time: str, event: str, missing: Callable[[str], bool]) -> str:
        cells = {column: item.cells[column] for column in (time, event)}
        for column, cell in cells.items():
            if missing(cell.strip()):
                return f"its label {column} is missing"
        spelt = " and ".join(f"{column} = {cell!r}" for column, cell in cells.items())
        return f"{spelt} are not a time ≥ 0 with an event of 0 or 1"

    @property
    def _training(self) -> Call:
        (call,) = parse(self.trained.spec["data"]["dataset"])
        return call

    def _answered(
        self,
        batches: Iterable[Iterable[Item]],
        answer: Callable[[Item], tuple[str, Value | str | None]],
    ) -> Iterator[Labelled]:
        """Yield the items of the domains that are asked for, one batch per domain and list.

        Args:
            batches: The items, in lists.
            answer: Returns an item's domain, and its label or why it has none; None where it is
                left out as in training.
        """
        for batch in batches:
            groups: dict[str, list[tuple[Item, Value]]] = defaultdict(list)
            for item in batch:
                domain, value = answer(item)
                if item.error is None:  # else nothing may say which domain it is of
                    self.domains[domain] = None
                if not self.request.includes(domain):
                    continue
                if value is None:
                    self.unlabelled += 1
                elif item.x is None:
                    self.faults.append(item)
                elif isinstance(value, str):
                    self.faults.append(Item(item.source, item.line, error=value))
                else:
                    groups[domain].append((item, value))
            self._count(item for own in groups.values() for item, _ in own)
            for name in groups:
                items, values = zip(*groups[name], strict=True)
                if (x := stacked(items)) is not None:
                    groups_of = {c: _cells(items, c) for c in self.request.groups}
                    y = labels_of(self.trained, self._labels(values))
                    yield Labelled(name, x, y, groups_of, self._units(items))

    def _labels(self, values: Sequence[Value]) -> Tensor:
        """Return labels in the precision that their distance from 0 needs."""
        if self.trained.classes is not None:
            return torch.tensor(values).long()
        if self.trained.scale is None:
            return exact_numbers(values)
        kind = torch.float64 if self.trained.scale.far else torch.float32
        return torch.tensor(values, dtype=kind)

    def _units(self, items: Sequence[Item]) -> tuple[str, ...]:
        """Return whose rows these are, where training had a column of units that is here, too."""
        column = self._training.arguments.get("unit")
        there = isinstance(column, str) and column in items[0].cells
        return _cells(items, str(column)) if there else ()

    def _count(self, items: Iterable[Item]) -> None:
        for item in self.trained.bounds.mark(list(items)):
            self.tally.add(item)
            self.unseen += bool(item.unseen)


def labels_of(trained: Trained, y: Tensor) -> Tensor:
    """Return labels as metrics read them: times in units of intervals, if the model has such."""
    return trained.times.labels(y) if trained.times is not None else y


def _cells(items: Sequence[Item], column: str) -> tuple[str, ...]:
    if column not in items[0].cells:
        raise nearest("column (for groups)", column, items[0].cells)
    return tuple(item.cells[column].strip() for item in items)


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
