"""Data with labels, as batches of a model's inputs: the data set of training, images, csv rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.client import Split, Stored
from unseen.datasets import info, load
from unseen.datasets.layout import folded
from unseen.datasets.sheet import identity
from unseen.errors import UnseenError, nearest
from unseen.expression import parse
from unseen.serving.bounds import Tally
from unseen.serving.directory import Trained
from unseen.serving.inputs import Images, Table
from unseen.serving.new_rows import IMAGES, Item, fitted, read, stacked


@dataclass(frozen=True)
class Request:
    """What is to be evaluated.

    Attributes:
        data: A csv file, a folder of images or the folder of the data set's files; None: the data
            set of training, where its files are known to be.
        domains: Only these.
        metrics: Instead of those of training.
        label: The csv file's column of labels.
        domain: The csv file's column of domains.
        batch: Inputs per pass.
    """

    data: Path | None = None
    domains: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    label: str | None = None
    domain: str | None = None
    batch: int | None = None

    def includes(self, domain: str) -> bool:
        """Return whether a domain is to be evaluated."""
        return self.domains is None or domain in self.domains


@dataclass(frozen=True)
class Labelled:
    """A batch of one domain: inputs [N, ...] and labels [N]."""

    domain: str
    x: Tensor
    y: Tensor


@dataclass
class LabelledData:
    """The data of a request, read batch by batch, and what was noticed on the way.

    Attributes:
        trained: The model.
        request: What to read.
        faults: What could not be used.
        domains: Every domain that was met.
        tally: Counts inputs far from training, of the domains that are evaluated.
        unseen: Number of rows with a category that no training site had.
        unlabelled: Number of rows that are left out as in training.
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
        """Return a line for each thing that was noticed about the rows or images."""
        lines = []
        if self.unlabelled:
            lines.append(f"rows left out, which have no label: {self.unlabelled}")
        if n := self.unseen:
            lines.append(f"rows with a category that no training site had, used without it: {n}")
        return lines + (self.tally.lines() if self.tally.read else [])

    def batches(self) -> Iterator[Labelled]:
        """Yield batches of one domain each."""
        inputs, data = self.trained.inputs, self.request.data
        if isinstance(inputs, Images) and data is not None:
            yield from self._by_folder(data)
        elif isinstance(inputs, Table) and data is not None and data.is_file():
            yield from self._by_column(inputs, data)
        else:
            request = self.request
            for batch in of_data_set(self.trained, data, request.domains, request.batch):
                if isinstance(inputs, Table):
                    self._count(Item(batch.domain, x=x) for x in batch.x)
                yield batch

    def _by_folder(self, root: Path) -> Iterator[Labelled]:
        """Images below root/domain/class, or below root/class, which is then one domain."""
        layout = info(parse(self.trained.spec["data"]["dataset"])[0].name).layout
        classes = self.trained.classes or ()
        names = {folded(name): name for name in classes}
        for items in read(self.trained.inputs, [root], self.request.batch):
            groups: dict[str, list[tuple[Item, float]]] = {}
            for item in items:
                folder = item.parts[-2] if len(item.parts) > 1 else ""
                label = names.get(folded(folder)) or (layout.label(folder) if layout else None)
                if item.error is None and label not in classes:
                    classes_text = ", ".join(classes)
                    what = f"its folder {folder!r} is not a class of the model ({classes_text})"
                    item = Item(item.source, error=what)
                if item.x is None or label is None:
                    self.faults.append(item)
                    continue
                domain = item.parts[-3] if len(item.parts) > 2 else root.resolve().name
                groups.setdefault(domain, []).append((item, classes.index(label)))
            yield from self._grouped(groups, torch.int64)

    def _by_column(self, inputs: Table, path: Path) -> Iterator[Labelled]:
        """Rows of a csv file with a column of labels and perhaps one of domains."""
        label = self.request.label or inputs.label
        if label is None:
            raise UnseenError("name the column that holds the labels: --label COLUMN.")
        domain, classes = self.request.domain or inputs.domain or "", self.trained.classes
        codes = {identity(name): i for i, name in enumerate(classes or ())}
        inputs = fitted(replace(inputs, label=label), path)
        drop = _drops_unlabelled(self.trained)
        for items in read(inputs, [path], self.request.batch, lenient=True):
            groups: dict[str, list[tuple[Item, float]]] = {}
            for item in items:
                if item.error is None and label not in item.cells:
                    raise nearest(f"column of {path} (for --label)", label, item.cells)
                value: float | None = None
                name, cell = item.cells.get(domain) or path.stem, item.cells.get(label, "")
                if drop and label in item.cells and cell.strip() in inputs.missing:
                    self.domains[name] = None
                    self.unlabelled += self.request.includes(name)
                    continue
                if item.error is None:
                    number = inputs.dialect.number
                    value = number(cell) if classes is None else codes.get(inputs.identity(cell))
                    if value is None:
                        kind = "a number" if classes is None else f"a class of the model: {classes}"
                        what = f"its label {label} = {cell!r} is not {kind}"
                        item = Item(item.source, item.line, error=what)
                if item.x is None or value is None:
                    self.faults.append(item)
                    continue
                groups.setdefault(name, []).append((item, value))
            yield from self._grouped(groups, torch.float32 if classes is None else torch.int64)

    def _grouped(
        self, groups: Mapping[str, Sequence[tuple[Item, float]]], kind: torch.dtype
    ) -> Iterator[Labelled]:
        """The items of the domains that are asked for as batches."""
        self.domains |= dict.fromkeys(groups)
        for name, group in groups.items():
            if not self.request.includes(name):
                continue
            items = [item for item, _ in group]
            self._count(items)
            x = stacked(items)
            if x is not None:
                yield Labelled(name, x, torch.tensor([value for _, value in group]).to(kind))

    def _count(self, items: Iterable[Item]) -> None:
        for item in self.trained.bounds.mark(list(items)):
            self.tally.add(item)
            self.unseen += bool(item.unseen)


def _drops_unlabelled(trained: Trained) -> bool:
    """Whether training left out the rows without a label."""
    (call,) = parse(trained.spec["data"]["dataset"])
    return call.arguments.get("missing_label") == "drop"


def check_domains(wanted: Sequence[str] | None, domains: Mapping[str, object]) -> None:
    """Refuse domains that are not there."""
    for name in wanted or ():
        if name not in domains:
            raise nearest("domain of these data", name, domains)


def of_data_set(
    trained: Trained, folder: Path | None, domains: Sequence[str] | None, batch: int | None = None
) -> Iterator[Labelled]:
    """Read the data set of training again and yield batches, its domains in their order.

    Args:
        trained: The model.
        folder: The data folder (default: where UNSEEN_DATA says).
        domains: Only these.
        batch: Inputs per batch.
    """
    (call,) = parse(trained.spec["data"]["dataset"])
    data = load(call.name, folder or os.environ.get("UNSEEN_DATA"), **call.arguments)
    if data.classes != trained.classes:
        raise UnseenError(
            f"the data have the classes {data.classes}; the model's are {trained.classes}."
        )
    check_domains(domains, dict.fromkeys(data.names))
    inputs = trained.inputs
    for domain in data.domains:
        if domains is not None and domain.name not in domains:
            continue
        x: Tensor | Stored = domain.x if domain.digest is None else Stored.of(domain.x)
        if isinstance(inputs, Table) and data.schema is not None:
            x = inputs.recode(data.schema, domain.x)
        if tuple(x.shape[1:]) != inputs.shape:
            raise UnseenError(
                f"the data's inputs are of shape {list(x.shape[1:])}; the model takes "
                f"{list(inputs.shape)}."
            )
        split = Split(x, domain.y)
        size = batch or IMAGES
        for i in range(0, len(split), size):
            yield Labelled(domain.name, *split.batch(slice(i, i + size)))
