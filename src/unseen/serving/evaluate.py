"""How good a model is on data with labels: metrics per domain, with intervals."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.client import Split, Stored
from unseen.core.metrics import check_metric, predicted
from unseen.datasets import info, load
from unseen.datasets.layout import folded
from unseen.datasets.sheet import identity
from unseen.errors import UnseenError, nearest
from unseen.expression import parse
from unseen.results.formats import markdown, plain
from unseen.serving.bounds import Tally
from unseen.serving.directory import Trained
from unseen.serving.inputs import Images, Table
from unseen.serving.intervals import Measured, measured
from unseen.serving.new_rows import IMAGES, Item, fitted, read, stacked
from unseen.serving.predict import Runtime


@dataclass(frozen=True)
class Labelled:
    """A batch of one domain: inputs [N, ...] and labels [N]."""

    domain: str
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Site:
    """A domain's result. role: what it was in training."""

    name: str
    role: str
    examples: int
    metrics: Mapping[str, Measured]


@dataclass(frozen=True)
class Evaluation:
    """All domains, and what could not be used."""

    sites: tuple[Site, ...]
    faults: tuple[Item, ...]
    notes: tuple[str, ...]

    def rows(self) -> list[list[tuple[str, str]]]:
        """A header and a row per domain, as `unseen.results.formats` prints them."""
        metrics = list(self.sites[0].metrics) if self.sites else []
        head = ["domain", "in training", "examples", *metrics]
        body = [
            [
                s.name,
                s.role,
                str(s.examples),
                *(s.metrics[m].text("accuracy" in m) for m in metrics),
            ]
            for s in self.sites
        ]
        return [[(text, "") for text in row] for row in (head, *body)]

    def text(self, form: str) -> str:
        """As text, Markdown, csv or JSON."""
        if form == "json":
            return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        if form == "csv":
            return self._csv()
        if form == "markdown":
            return markdown("", [self.rows()], self.notes)
        return plain("", [self.rows()], self.notes) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Unrounded."""
        return {
            "domains": [
                {
                    "domain": s.name, "in training": s.role, "examples": s.examples,
                    **{m: [v.value, v.low, v.high] for m, v in s.metrics.items()},
                }
                for s in self.sites
            ],
            "faults": [str(fault) for fault in self.faults],
            "notes": list(self.notes),
        }  # fmt: skip

    def _csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        metrics = list(self.sites[0].metrics) if self.sites else []
        ends = [f"{m}{end}" for m in metrics for end in ("", " low", " high")]
        writer.writerow(["domain", "in training", "examples", *ends])
        for s in self.sites:
            values = [v for m in metrics for v in _ends(s.metrics[m])]
            writer.writerow([s.name, s.role, s.examples, *values])
        return file.getvalue()


def _ends(found: Measured) -> list[float | str]:
    return ["" if v is None else v for v in (found.value, found.low, found.high)]


@dataclass(frozen=True)
class Asked:
    """What is to be evaluated.

    data: a csv file, a folder of images or the folder of the data set's files; None: the data set
    of training, where its files are known to be. label, domain: columns of a csv file.
    """

    data: Path | None = None
    domains: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    label: str | None = None
    domain: str | None = None
    batch: int | None = None


def evaluate(trained: Trained, asked: Asked, runtime: Runtime | None = None) -> Evaluation:
    """Metrics of every domain with 95% bootstrap intervals over its examples.

    runtime: what computes the outputs instead of the model; then the largest difference between
    the two is told.
    """
    classes = trained.classes
    names = asked.metrics or tuple(trained.spec["metrics"])
    for name in names:
        check_metric(name, len(classes) if classes is not None else None)
    faults: list[Item] = []
    outputs: dict[str, list[Tensor]] = {}
    labels: dict[str, list[Tensor]] = {}
    apart = 0.0
    there: dict[str, None] = {}
    seen = Seen(Tally(trained.bounds))
    for batch in labelled(trained, asked, faults, there, seen):
        found = (runtime or trained).outputs(batch.x)
        if runtime is not None:
            apart = max(apart, float((found - trained.outputs(batch.x)).abs().max()))
        outputs.setdefault(batch.domain, []).append(found)
        labels.setdefault(batch.domain, []).append(batch.y)
    check_domains(asked.domains, {**outputs, **there})
    sites = []
    for name in asked.domains or outputs:
        if name not in labels:  # met, and none of its examples could be used
            continue
        y = torch.cat(labels[name])
        values = measured(torch.cat(outputs[name]), y, names)
        sites.append(Site(name, role(trained, name), len(y), values))
    notes = [f"model {trained.name}, fingerprint {trained.spec['fingerprint']}"]
    if any("accuracy" in name for name in names):
        notes.append("accuracies in percent")
    notes.append("[...]: 95% bootstrap interval over the domain's examples, not over domains")
    if any(site.role == "trained on" for site in sites):
        notes.append("a domain that was trained on flatters the model: these are all its examples")
    notes += seen.lines()
    if below := beaten(trained, names, outputs, labels, asked.domains):
        notes.append(below)
    if runtime is not None:
        notes.append(f"outputs by {runtime}; largest difference from the model's own: {apart:.1e}")
    return Evaluation(tuple(sites), tuple(faults), tuple(notes))


@dataclass
class Seen:
    """What to know of the rows or images that are evaluated. unseen: rows with a category that no
    training site had; unlabelled: rows that are left out as in training."""

    tally: Tally
    unseen: int = 0
    unlabelled: int = 0

    def add(self, items: Iterable[Item]) -> None:
        """Count further ones, whose labels are known."""
        for item in self.tally.bounds.mark(list(items)):
            self.tally.add(item)
            self.unseen += bool(item.unseen)

    def lines(self) -> list[str]:
        """A line for each thing that there is to say."""
        lines = []
        if self.unlabelled:
            lines.append(f"rows left out, which have no label: {self.unlabelled}")
        if n := self.unseen:
            lines.append(f"rows with a category that no training site had, used without it: {n}")
        return lines + (self.tally.lines() if self.tally.read else [])


def _drops(trained: Trained) -> bool:
    """Whether training left out the rows without a label."""
    (call,) = parse(trained.spec["data"]["dataset"])
    return call.arguments.get("missing_label") == "drop"


def beaten(
    trained: Trained,
    metrics: Sequence[str],
    outputs: Mapping[str, Sequence[Tensor]],
    labels: Mapping[str, Sequence[Tensor]],
    domains: Sequence[str] | None,
) -> str:
    """The domains at which an answer that looks at no input is better, in a line; "" for none.

    The answer is the mean of the training labels, judged by rmse. A model of classes does not say
    how frequent they were in training: the answer is then the most frequent class of the domain's
    own examples, judged by accuracy, where it is not the only one.
    """
    below = []
    for name in domains or outputs:
        if name not in labels:
            continue
        found, y = torch.cat(list(outputs[name])).double(), torch.cat(list(labels[name]))
        if trained.classes is None and trained.scale is not None:
            errors = (found.squeeze(-1) - y.double(), trained.scale.mean - y.double())
            ours, theirs = (float(e.square().mean().sqrt()) for e in errors)
            if ours > theirs:
                what = f"{trained.scale.mean:.6g}, the mean of training's labels"
                below.append(f"{name} (rmse {ours:.4g}; always {what}: {theirs:.4g})")
        elif trained.classes is not None and "accuracy" in metrics and bool((y != y[0]).any()):
            counts = torch.bincount(y, minlength=len(trained.classes))
            best = int(counts.argmax())
            ours, theirs = (
                float((predicted(found) == y).double().mean()),
                int(counts[best]) / len(y),
            )
            if ours < theirs:
                what = f"{trained.classes[best]!r}, its most frequent class"
                below.append(f"{name} ({100 * ours:.1f}; always {what}: {100 * theirs:.1f})")
    by = "" if trained.classes is None else " in accuracy"
    return f"worse than a constant{by}: {'; '.join(below)}" if below else ""


def check_domains(asked: Sequence[str] | None, found: Mapping[str, object]) -> None:
    """Refuse domains that are not there."""
    for name in asked or ():
        if name not in found:
            raise nearest("domain of these data", name, found)


def role(trained: Trained, name: str) -> str:
    """What a domain of this name was in training."""
    task = trained.spec["sites"]
    if name in task["sources"]:
        return "trained on"
    return "held out" if name in (*task["targets"], *task["validation"]) else "not there"


def labelled(
    trained: Trained, asked: Asked, faults: list[Item], there: dict[str, None], seen: Seen
) -> Iterator[Labelled]:
    """Batches of one domain each. What cannot be used is added to `faults`, every domain that is
    met to `there`, and what to know of the rows of the domains that are asked for to `seen`."""
    inputs, data = trained.inputs, asked.data
    rows = data is not None and data.is_file()
    if isinstance(inputs, Images) and data is not None:
        yield from _by_folder(trained, data, asked, faults, there, seen)
    elif isinstance(inputs, Table) and rows:
        yield from _by_column(trained, inputs, asked, faults, there, seen)
    else:
        for batch in of_data_set(trained, data, asked.domains, asked.batch):
            if isinstance(inputs, Table):
                seen.add(Item(batch.domain, x=x) for x in batch.x)
            yield batch


def of_data_set(
    trained: Trained, folder: Path | None, domains: Sequence[str] | None, batch: int | None = None
) -> Iterator[Labelled]:
    """The data set that the model was trained on, read again; its domains in their order."""
    (call,) = parse(trained.spec["data"]["dataset"])
    found = folder or os.environ.get("UNSEEN_DATA")
    data = load(call.name, found, **call.arguments)
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


def _by_folder(
    trained: Trained,
    root: Path,
    asked: Asked,
    faults: list[Item],
    there: dict[str, None],
    seen: Seen,
) -> Iterator[Labelled]:
    """Images below root/domain/class, or below root/class, which is then one domain."""
    (call,) = parse(trained.spec["data"]["dataset"])
    layout, classes = info(call.name).layout, trained.classes or ()
    known = {folded(name): name for name in classes}
    for items in read(trained.inputs, [root], asked.batch):
        groups: dict[str, list[tuple[Item, int]]] = {}
        for item in items:
            folder = item.parts[-2] if len(item.parts) > 1 else ""
            label = known.get(folded(folder)) or (layout.label(folder) if layout else None)
            if item.error is None and label not in classes:
                what = f"its folder {folder!r} is not a class of the model ({', '.join(classes)})"
                item = Item(item.source, error=what)
            if item.x is None or label is None:
                faults.append(item)
                continue
            domain = item.parts[-3] if len(item.parts) > 2 else root.resolve().name
            groups.setdefault(domain, []).append((item, classes.index(label)))
        there |= dict.fromkeys(groups)
        for name, group in groups.items():
            seen.add(item for item, _ in group if asked.domains is None or name in asked.domains)
        yield from _batches(groups, asked.domains)


def _by_column(
    trained: Trained,
    inputs: Table,
    asked: Asked,
    faults: list[Item],
    there: dict[str, None],
    seen: Seen,
) -> Iterator[Labelled]:
    """Rows of a csv file with a column of labels and perhaps one of domains."""
    assert asked.data is not None
    label, domain = asked.label or inputs.label, asked.domain or inputs.domain
    if label is None:
        raise UnseenError("name the column that holds the labels: --label COLUMN.")
    classes = trained.classes
    codes = {identity(name): i for i, name in enumerate(classes or ())}
    if asked.data.is_file():
        inputs = fitted(replace(inputs, label=label), asked.data)
    drop = _drops(trained)
    for items in read(inputs, [asked.data], asked.batch, lenient=True):
        groups: dict[str, list[tuple[Item, float]]] = {}
        for item in items:
            if item.error is None and label not in item.cells:
                raise nearest(f"column of {asked.data} (for --label)", label, item.cells)
            value = None
            name = item.cells.get(domain or "") or asked.data.stem
            if drop and label in item.cells and item.cells[label].strip() in inputs.missing:
                there[name] = None
                seen.unlabelled += asked.domains is None or name in asked.domains
                continue
            if item.error is None:
                cell = item.cells[label]
                value = inputs.number(cell) if classes is None else codes.get(inputs.identity(cell))
                if value is None:
                    kind = "a number" if classes is None else f"a class of the model: {classes}"
                    what = f"its label {label} = {cell!r} is not {kind}"
                    item = Item(item.source, item.line, error=what)
            if item.x is None or value is None:
                faults.append(item)
                continue
            groups.setdefault(name, []).append((item, value))
        there |= dict.fromkeys(groups)
        shown = {n: g for n, g in groups.items() if asked.domains is None or n in asked.domains}
        seen.add(item for group in shown.values() for item, _ in group)
        for batch in _batches(shown, None):
            kind = torch.float32 if classes is None else torch.int64
            yield Labelled(batch.domain, batch.x, batch.y.to(kind))


def _batches(
    groups: Mapping[str, Sequence[tuple[Item, float]]], domains: Sequence[str] | None
) -> Iterator[Labelled]:
    for name, group in groups.items():
        x = stacked([item for item, _ in group])
        if x is not None and (domains is None or name in domains):
            yield Labelled(name, x, torch.tensor([value for _, value in group]))
