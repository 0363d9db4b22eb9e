"""Predictions for files: one line each, also for what could not be predicted."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from torch import Tensor

from unseen.deploy.clock import Clock
from unseen.deploy.directory import Trained, probabilities
from unseen.deploy.rows import Item, read, stacked
from unseen.errors import UnseenError, choice
from unseen.metrics import predicted

FORMATS = ("csv", "jsonl")


class Runtime(Protocol):
    """What computes outputs: the model itself, or an export of it."""

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs [N, C] for inputs [N, ...]."""
        ...


@dataclass(frozen=True)
class Line:
    """One answer. label: the class, or the number; probabilities: by class."""

    item: Item
    label: str | float | None = None
    probabilities: tuple[float, ...] = ()


def predict(
    trained: Trained,
    paths: Sequence[Path],
    runtime: Runtime | None = None,
    batch: int | None = None,
    clock: Clock | None = None,
    lenient: bool = False,
) -> Iterator[Line]:
    """One line for every image and row, in their order; see `rows.read`."""
    clock, runtime = clock or Clock(), runtime or trained
    for items in read(trained.inputs, paths, batch, clock, lenient):
        with clock.phase("model"):
            x = stacked(items)
            outputs = runtime.outputs(x) if x is not None else None
        with clock.phase("answers"):
            lines = list(answers(trained.classes, items, outputs))
        yield from lines


def answers(
    classes: Sequence[str] | None, items: Sequence[Item], outputs: Tensor | None
) -> Iterator[Line]:
    """The items with what the outputs, one row for each that has an input, say of them."""
    rows = iter(_told(classes, outputs) if outputs is not None else ())
    for item in items:
        if item.x is None:
            yield Line(item)
        else:
            label, shares, finite = next(rows)
            fault = "the model's outputs are not finite"
            yield (
                Line(item, label, shares)
                if finite
                else Line(Item(item.source, item.line, error=fault, cells=item.cells))
            )


def _told(
    classes: Sequence[str] | None, outputs: Tensor
) -> list[tuple[str | float, tuple[float, ...], bool]]:
    finite = outputs.isfinite().all(dim=-1).tolist()
    if classes is None:
        return [(v, (), f) for v, f in zip(outputs.squeeze(-1).tolist(), finite, strict=True)]
    shares = probabilities(outputs.double()).tolist()
    found = zip(predicted(outputs).tolist(), shares, finite, strict=True)
    return [(classes[k], tuple(row), f) for k, row, f in found]


@dataclass
class Writer:
    """Writes lines as csv or as JSON lines.

    keep: columns of the csv input to copy, such as that of an identifier.
    """

    file: IO[str]
    form: str
    classes: Sequence[str] | None
    rows: bool
    keep: Sequence[str] = ()

    def __post_init__(self) -> None:
        choice("--format", self.form, FORMATS)
        self.csv = csv.writer(self.file, lineterminator="\n")
        if self.form == "csv":
            at = ["input", "line"] if self.rows else ["input"]
            shares = [f"p({name})" for name in self.classes or ()]
            self.csv.writerow([*at, *self.keep, "prediction", *shares, "error"])

    def write(self, line: Line) -> None:
        """One line; numbers with nine significant digits, which tell any two float32 apart."""
        item, found = line.item, line.label
        if self.form == "csv":
            at: list[Any] = [item.source, item.line] if self.rows else [item.source]
            shares: list[Any] = [_short(p) for p in line.probabilities]
            shares = shares or [""] * len(self.classes or ())
            label = "" if found is None else found if isinstance(found, str) else _short(found)
            copied = [item.cells.get(name, "") for name in self.keep]
            self.csv.writerow([*at, *copied, label, *shares, item.error or ""])
            return
        told: dict[str, Any] = {"input": item.source}
        told |= {"line": item.line} if item.line is not None else {}
        told |= {name: item.cells.get(name) for name in self.keep}
        if item.error is not None:
            told["error"] = item.error
        else:
            told["prediction"] = found if isinstance(found, str) else _short(found or 0.0)
            if self.classes is not None:
                shares = [_short(p) for p in line.probabilities]
                told["probabilities"] = dict(zip(self.classes, shares, strict=True))
        if item.unseen:
            told["unseen categories"] = list(item.unseen)
        self.file.write(json.dumps(told, ensure_ascii=False) + "\n")


@contextmanager
def opened(out: Path | None) -> Iterator[IO[str]]:
    """The file to write to, or stdout."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
            sys.stdout.reconfigure(errors="surrogateescape")
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield file


def form_of(asked: str | None, out: Path | None) -> str:
    """The form asked for, or that of the file's name, or csv."""
    if asked is not None:
        choice("--format", asked, FORMATS)
        return asked
    return "jsonl" if out is not None and out.suffix in (".jsonl", ".ndjson", ".json") else "csv"


def check_kept(trained: Trained, keep: Sequence[str]) -> None:
    """Refuse columns to copy where the inputs are images."""
    if keep and trained.spec["input"]["kind"] != "table":
        raise UnseenError("--keep copies columns of a csv file; this model takes images.")


def _short(value: float) -> float:
    return float(f"{value:.9g}")
