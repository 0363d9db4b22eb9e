"""Files of predictions: one line each, also for what could not be predicted."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from types import NoneType
from typing import IO, Any, Self

import pyarrow
import pyarrow.parquet

from unseen.errors import UnseenError, choice
from unseen.serving.directory import Trained
from unseen.serving.policy import Policy, has_scores
from unseen.serving.predictions import (
    Line,
    Lines,
    Runtime,
    answered,
    marked,
    predict,
    predictions,
)
from unseen.serving.reading.batch import Batch
from unseen.serving.reading.bounds import spelt
from unseen.serving.reading.new_rows import ROWS
from unseen.serving.spreadsheet import as_text

__all__ = [
    "Columns", "Line", "Lines", "Runtime", "answered", "form_of", "marked", "predict",
    "predictions", "writing",
]  # fmt: skip
#: format -> how names of its files end.
FORMATS = {"csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet",)}
#: What a record may have beside the columns of a csv file.
ENTRIES = ("input", "line", "row", "probabilities", "unseen categories")
#: Writes one line, or those of a batch.
Write = Callable[[Line | Lines], object]


@dataclass(frozen=True)
class Columns:
    """The columns of a file of predictions.

    Attributes:
        classes: The model's classes; None for numbers.
        rows: Whether inputs are rows of csv files, which have line numbers.
        keep: Columns of the csv input to copy, such as that of an identifier.
        policy: How outputs became answers.
        ood: Whether rows have an out-of-distribution score.
    """

    classes: Sequence[str] | None
    rows: bool
    keep: Sequence[str] = ()
    policy: Policy = field(default_factory=lambda: Policy(None))
    ood: bool = False

    @classmethod
    def of(
        cls,
        trained: Trained,
        policy: Policy,
        keep: Sequence[str],
        exported: bool,
    ) -> Self:
        """Return the columns of a model's predictions; see the attributes. Masks have none."""
        if trained.masks:
            raise UnseenError(
                "this model predicts masks, which are images and no columns.",
                remedy="Take the command: unseen predict MODEL_DIR IMAGES --out FOLDER.",
            )
        rows = trained.spec["input"]["kind"] == "table"
        ood = has_scores(trained, exported)
        columns = cls(trained.classes, rows, keep, policy, ood)
        if clashes := [
            name for name in keep if name in {*replace(columns, keep=()).names, *ENTRIES}
        ]:
            raise UnseenError(
                f"--keep {clashes[0]}: the predictions have an entry of this name.",
                remedy="Rename the column in the file, or leave it out.",
            )
        return columns

    @cached_property
    def survival(self) -> tuple[str, ...]:
        """The columns of a model of times: S(t) for each time that is asked for."""
        return tuple(f"S({t:.6g})" for t in self.policy.at)

    def decisions(self, lines: Lines) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield what is answered beside the prediction, where it was asked for or is results."""
        answers, errors, asked = lines.answers, lines.batch.errors, self.policy.coverage is not None
        if self.policy.least is not None:
            words = ["no" if answer.label is not None else "yes" for answer in answers]
            yield "abstained", [None if i in errors else own for i, own in enumerate(words)]
        if asked and self.classes is not None:
            yield "set", ["|".join(a.members) if a.members else None for a in answers]
        elif asked:
            ends = [answer.interval or (None, None) for answer in answers]
            yield from (("low", [low for low, _ in ends]), ("high", [high for _, high in ends]))
        for j, name in enumerate(self.survival):
            yield name, [answer.survival[j] if answer.survival else None for answer in answers]
        if self.ood:
            yield "ood", [answer.ood for answer in answers]

    def table(self, lines: Lines) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield each column with the values of a batch, None where there is none."""
        batch, answers, classes = lines.batch, lines.answers, self.classes or ()
        places = range(len(batch))
        yield "input", batch.sources
        if self.rows:
            yield "line", batch.lines
        yield from ((name, batch.texts(name)) for name in self.keep)
        yield "prediction", [answer.label for answer in answers]
        for k, name in enumerate(classes):
            yield f"p({name})", [a.probabilities[k] if a.probabilities else None for a in answers]
        yield from self.decisions(lines)
        yield "error", [batch.errors.get(i) for i in places]
        unusual = {i: spelt(own) or None for i, own in batch.unusual.items()}
        yield "unusual", [unusual.get(i) for i in places]

    @cached_property
    def names(self) -> list[str]:
        return [name for name, _ in self.table(Lines(Batch((), ())))]

    @property
    def numbers(self) -> list[str]:
        """The names of the columns that hold numbers, but for `line`."""
        several = {f"p({name})" for name in self.classes or ()}
        several |= {"low", "high", "ood", *self.survival}
        several |= {"prediction"} if self.classes is None else set()
        return [name for name in self.names if name in several]

    def record(self, line: Line) -> dict[str, Any]:
        return next(self.records(Lines.of([line])))

    def records(self, lines: Lines) -> Iterator[dict[str, Any]]:
        """Yield each line as JSON has it."""
        names = [name for name, _ in self.decisions(lines)]
        decisions = zip(*(values for _, values in self.decisions(lines)), strict=True)
        for line, decided in zip(lines, decisions if names else repeat(()), strict=False):
            item, answer, failed = line.item, line.answer, line.item.error is not None
            shares = dict(zip(self.classes or (), map(_short, answer.probabilities), strict=False))
            first = {"input": item.source} | ({"line": item.line} if item.line is not None else {})
            entries = {
                "error": item.error,
                "prediction": None if failed else _short(answer.label),
                "probabilities": shares if self.classes is not None and not failed else None,
                **dict(zip(names, map(_short, decided), strict=True)),
                **({"set": list(answer.members)} if answer.members is not None else {}),
                "unseen categories": list(item.unseen) or None,
                "unusual": dict(item.unusual) or None,
            }
            copied = {name: item.cells.get(name) for name in self.keep}
            yield first | copied | {name: x for name, x in entries.items() if x is not None}


@contextmanager
def _parquet(path: Path, columns: Columns) -> Iterator[Write]:
    """Open a Parquet file with the columns of the csv form; it takes its name when whole."""
    kinds = dict.fromkeys(columns.names, pyarrow.string())
    kinds |= dict.fromkeys(columns.numbers, pyarrow.float64())
    kinds |= {"line": pyarrow.int64()} if columns.rows else {}
    schema = pyarrow.schema(list(kinds.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with pyarrow.parquet.ParquetWriter(part, schema) as file:

            def write(lines: Lines) -> None:
                own = {name: _each(_unicode, values) for name, values in columns.table(lines)}
                arrays = [pyarrow.array(own[name], kind) for name, kind in kinds.items()]
                file.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

            with _by_batch(write) as write_lines:
                yield write_lines
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path | None, form: str, columns: Columns) -> Iterator[Write]:
    """Open a file or stdout, and yield what writes lines there, one by one or those of a batch.

    Args:
        out: The file; None for stdout.
        form: As `form_of` returns it.
        columns: What is written of a line.
    """
    if form == "parquet" and out is not None:
        with _parquet(out, columns) as write:
            yield write
        return
    with ExitStack() as stack:
        file: IO[str] = sys.stdout
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            context = out.open("w", encoding="utf-8", errors="surrogateescape", newline="")
            file = stack.enter_context(context)
        writer = csv.writer(file, lineterminator="\n")
        if form == "csv":
            writer.writerow(map(as_text, columns.names))

        def write_csv(lines: Lines) -> None:
            values = (_csv_cells(values) for _, values in columns.table(lines))
            writer.writerows(zip(*values, strict=True))

        def write_json(lines: Lines) -> None:
            for record in columns.records(lines):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

        yield stack.enter_context(_by_batch(write_csv if form == "csv" else write_json))


@contextmanager
def _by_batch(write: Callable[[Lines], None]) -> Iterator[Write]:
    """Yield what writes lines of either kind, those that come one by one some at a time."""
    waiting = list[Line]()

    def flush() -> None:
        if waiting:
            write(Lines.of(waiting))
            waiting.clear()

    def write_either(lines: Line | Lines) -> None:
        if isinstance(lines, Line):
            waiting.append(lines)
        if isinstance(lines, Lines) or len(waiting) >= ROWS:
            flush()
        if isinstance(lines, Lines):
            write(lines)

    yield write_either
    flush()


def form_of(form: str | None, out: Path | None) -> str:
    """Return the form asked for, or the one of the file's name, or csv; refuse a contradiction."""
    if form is not None:
        choice("--format", form, tuple(FORMATS))
    suffix = out.suffix.lower() if out is not None else ""
    own = next((name for name, ends in FORMATS.items() if suffix in ends), None)
    if suffix and (own is None or form not in (None, own)):
        endings = ", ".join(end for ends in FORMATS.values() for end in ends)
        why = f"its name says {own}, --format {form}" if own else f"it may end in {endings}"
        raise UnseenError(f"--out {out} cannot be written: {why}.", remedy="Choose another name.")
    form = form or own or "csv"
    if form == "parquet" and out is None:
        raise UnseenError(
            "Parquet is not text for stdout:", remedy="name a file, --out FILE.parquet."
        )
    return form


def _each(function: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[Any]:
    """Return a function of each value, computed once of every text that repeats."""
    kinds = {*map(type, values)}
    if kinds <= {str, NoneType}:
        results = {value: function(value) for value in {*values}}
        return [*map(results.__getitem__, values)]
    return [*map(function, values)] if float in kinds else values


def _csv_cells(values: Sequence[Any]) -> Sequence[Any]:
    return _each(_short if float in {*map(type, values)} else as_text, values)


def _short(value: Any) -> Any:
    """Return a number with nine digits, which distinguish any two float32; other values as is.

    Numbers of a million and more keep all digits: their spread may be far below their size.
    """
    return float(f"{value:.9g}") if isinstance(value, float) and abs(value) < 1e6 else value


def _unicode(value: Any) -> Any:
    """Return text as Unicode, which the name of a file need not be; other values as is."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
