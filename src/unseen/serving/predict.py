"""Predictions for files: one line each, also for what could not be predicted."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from torch import Tensor

from unseen.core.metrics import predicted
from unseen.errors import UnseenError, choice
from unseen.serving.bounds import check_strict, spelt
from unseen.serving.clock import Clock
from unseen.serving.directory import Trained, probabilities
from unseen.serving.new_rows import Item, Line, read, stacked
from unseen.serving.parquet import ParquetWriter, needed

#: format -> how names of its files end.
FORMATS = {"csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet",)}


class Runtime(Protocol):
    """What computes outputs: the model itself, or an export of it."""

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs [N, C] for inputs [N, ...]."""
        ...


def predict(
    trained: Trained,
    paths: Sequence[Path],
    runtime: Runtime | None = None,
    batch: int | None = None,
    clock: Clock | None = None,
    lenient: bool = False,
    strict: bool = False,
) -> Iterator[Line]:
    """Yield one line for every image and row, in their order; see `new_rows.read`.

    An item far from what training saw says so in `Line.item.unusual`.

    Args:
        trained: The model.
        paths: The files.
        runtime: Computes the outputs instead of the model.
        batch: Inputs per pass.
        clock: Counts the time of each phase.
        lenient: Use rows with a category that no training site had.
        strict: Do not predict what is far from what training saw.
    """
    clock, runtime = clock or Clock(), runtime or trained
    if strict:
        check_strict(trained.bounds)
    for batch_items in read(trained.inputs, paths, batch, clock, lenient):
        with clock.phase("bounds"):
            items = trained.bounds.mark(batch_items, strict)
        with clock.phase("model"):
            x = stacked(items)
            outputs = runtime.outputs(x) if x is not None else None
        with clock.phase("answers"):
            lines = list(answers(trained.classes, items, outputs))
        yield from lines


def answers(
    classes: Sequence[str] | None, items: Sequence[Item], outputs: Tensor | None
) -> Iterator[Line]:
    """Yield the items with what the outputs, one row for each that has an input, say of them."""
    rows = iter(_labelled(classes, outputs) if outputs is not None else ())
    for item in items:
        if item.x is None:
            yield Line(item)
        else:
            label, shares, finite = next(rows)
            fault = "the model's outputs are not finite"
            yield (
                Line(item, label, shares) if finite else Line(replace(item, x=None, error=fault))
            )


def _labelled(
    classes: Sequence[str] | None, outputs: Tensor
) -> list[tuple[str | float, tuple[float, ...], bool]]:
    finite = outputs.isfinite().all(dim=-1).tolist()
    if classes is None:
        return [(v, (), f) for v, f in zip(outputs.squeeze(-1).tolist(), finite, strict=True)]
    shares = probabilities(outputs.double()).tolist()
    rows = zip(predicted(outputs).tolist(), shares, finite, strict=True)
    return [(classes[k], tuple(row), f) for k, row, f in rows]


@dataclass
class Writer:
    """Writes lines as csv or as JSON lines.

    Attributes:
        file: Where to.
        form: "csv" or "jsonl".
        classes: The model's, None for numbers.
        rows: Whether inputs are rows of csv files, which have line numbers.
        keep: Columns of the csv input to copy, such as that of an identifier.
    """

    file: IO[str]
    form: str
    classes: Sequence[str] | None
    rows: bool
    keep: Sequence[str] = ()

    def __post_init__(self) -> None:
        choice("--format", self.form, ("csv", "jsonl"))
        self.csv = csv.writer(self.file, lineterminator="\n")
        if self.form == "csv":
            at = ["input", "line"] if self.rows else ["input"]
            shares = [f"p({name})" for name in self.classes or ()]
            self.csv.writerow([*at, *self.keep, "prediction", *shares, "error", "unusual"])

    def write(self, line: Line) -> None:
        """Write one line; numbers with nine digits, which distinguish any two float32."""
        item, answer = line.item, line.label
        if self.form == "csv":
            at: list[Any] = [item.source, item.line] if self.rows else [item.source]
            shares: list[Any] = [_short(p) for p in line.probabilities]
            shares = shares or [""] * len(self.classes or ())
            label = "" if answer is None else answer if isinstance(answer, str) else _short(answer)
            copied = [item.cells.get(name, "") for name in self.keep]
            ends = item.error or "", spelt(item.unusual)
            self.csv.writerow([*at, *copied, label, *shares, *ends])
            return
        record: dict[str, Any] = {"input": item.source}
        record |= {"line": item.line} if item.line is not None else {}
        record |= {name: item.cells.get(name) for name in self.keep}
        if item.error is not None:
            record["error"] = item.error
        else:
            record["prediction"] = answer if isinstance(answer, str) else _short(answer or 0.0)
            if self.classes is not None:
                shares = [_short(p) for p in line.probabilities]
                record["probabilities"] = dict(zip(self.classes, shares, strict=True))
        if item.unseen:
            record["unseen categories"] = list(item.unseen)
        if item.unusual:
            record["unusual"] = dict(item.unusual)
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")


@contextmanager
def opened(out: Path | None) -> Iterator[IO[str]]:
    """Open the file to write to, or stdout."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
            sys.stdout.reconfigure(errors="surrogateescape")
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield file


@contextmanager
def writing(
    out: Path | None, form: str, classes: Sequence[str] | None, rows: bool, keep: Sequence[str] = ()
) -> Iterator[Writer | ParquetWriter]:
    """Open what writes lines to a file or to stdout."""
    if form == "parquet" and out is not None:
        with ParquetWriter(out, classes, rows, keep) as table:
            yield table
        return
    with opened(out) as file:
        yield Writer(file, form, classes, rows, keep)


def form_of(chosen: str | None, out: Path | None) -> str:
    """Return the form asked for, or the one of the file's name, or csv; refuse a contradiction."""
    if chosen is not None:
        choice("--format", chosen, tuple(FORMATS))
    suffix = out.suffix.lower() if out is not None else ""
    named = next((chosen for chosen, ends in FORMATS.items() if suffix in ends), None)
    if suffix and (named is None or chosen not in (None, named)):
        ends = ", ".join(end for chosen in FORMATS for end in FORMATS[chosen])
        why = f"its name says {named}, --format {chosen}" if named else f"it may end in {ends}"
        raise UnseenError(f"--out {out} cannot be written: {why}. Choose another name.")
    chosen = chosen or named or "csv"
    if chosen == "parquet":
        if out is None:
            raise UnseenError("Parquet is not text for stdout: name a file, --out FILE.parquet.")
        needed()
    return chosen


def check_kept(trained: Trained, keep: Sequence[str]) -> None:
    """Refuse columns to copy where the inputs are images."""
    if keep and trained.spec["input"]["kind"] != "table":
        raise UnseenError("--keep copies columns of a csv file; this model takes images.")


def _short(value: float) -> float:
    return float(f"{value:.9g}")
