"""Predictions for files: one line each, also for what could not be predicted."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Protocol, Self

import pyarrow
import pyarrow.parquet
from torch import Tensor

from unseen.core.record_lines import Record
from unseen.errors import UnseenError, choice
from unseen.serving.answer_options import PredictOptions
from unseen.serving.directory import Trained
from unseen.serving.policy import Answer, Policy, has_scores, policy_of, scored
from unseen.serving.reading.bounds import check_strict, spelt
from unseen.serving.reading.new_rows import Item, read, stacked
from unseen.serving.spreadsheet import as_text

#: format -> how names of its files end.
FORMATS = {"csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet",)}
#: What a record may have beside the columns of a csv file.
ENTRIES = ("input", "line", "row", "probabilities", "unseen categories")
#: How many rows of a Parquet file are in memory until they are written as one group.
GROUP = 10_000


@dataclass(frozen=True)
class Line:
    """One answer of a model, for an image or a row."""

    item: Item
    answer: Answer = field(default_factory=Answer)


#: Writes one line.
Write = Callable[[Line], object]


class Runtime(Protocol):
    """What computes outputs: the model itself, or an export of it."""

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs [N, C] for inputs [N, ...]."""
        ...


def predict(
    trained: Trained,
    paths: Sequence[Path],
    options: PredictOptions = PredictOptions(),
    *,
    policy: Policy | None = None,
    runtime: Runtime | None = None,
    batch: int | None = None,
) -> Iterator[Line]:
    """Yield one line for every image and row, in their order; see `new_rows.read`."""
    batches = marked(trained, paths, options, batch)
    yield from answered(trained, batches, policy or policy_of(trained, options), runtime)


def answered(
    trained: Trained,
    batches: Iterable[list[Item]],
    policy: Policy,
    runtime: Runtime | None = None,
) -> Iterator[Line]:
    """Yield one line for every item of the batches; see `predict`."""
    for items in batches:
        x = stacked(items)
        outputs = (runtime or trained).outputs(x) if x is not None else None
        ood = scored(trained, x, runtime is not None) if x is not None else None
        yield from answers(policy, items, outputs, ood)


def marked(
    trained: Trained, paths: Sequence[Path], options: PredictOptions, batch: int | None = None
) -> Iterator[list[Item]]:
    """Yield the items of the files as `new_rows.read` does, with what is far from training."""
    if options.strict:
        check_strict(trained.bounds)
    for items in read(trained.inputs, paths, batch, lenient=options.accept_unseen):
        yield trained.bounds.mark(items, options.strict)


def answers(
    policy: Policy, items: Iterable[Item], outputs: Tensor | None, ood: Tensor | None = None
) -> Iterator[Line]:
    """Yield a line for each item.

    Args:
        policy: How outputs become answers.
        items: What was predicted, or could not be.
        outputs: One row [C] for each item that has an input; None if there are none.
        ood: The out-of-distribution score of each of these rows [N].
    """
    finite = outputs.isfinite().all(dim=-1).tolist() if outputs is not None else []
    rows = zip(policy.answers(outputs, ood) if outputs is not None else (), finite, strict=True)
    for item in items:
        answer, sound = next(rows) if item.x is not None else (Answer(), True)
        if sound:
            yield Line(item, answer)
        else:
            yield Line(replace(item, x=None, error="the model's outputs are not finite"))


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

    def decisions(self, line: Line) -> list[tuple[str, Any]]:
        """Return what is answered beside the prediction, where it was asked for or is known."""
        answer, failed = line.answer, line.item.error is not None
        columns: list[tuple[str, Any]] = []
        if self.policy.least is not None:
            columns.append(("abstained", None if failed else _yes(answer.label is None)))
        if self.policy.coverage is not None and self.classes is not None:
            columns.append(("set", "|".join(answer.members) if answer.members else None))
        elif self.policy.coverage is not None:
            columns += zip(("low", "high"), answer.interval or (None, None), strict=True)
        columns += zip(self.survival, answer.survival or (None,) * len(self.survival), strict=True)
        return [*columns, *[("ood", answer.ood)] * self.ood]

    def cells(self, line: Line) -> list[tuple[str, Any]]:
        """Return each column with a line's value, None where it has none."""
        item, classes = line.item, self.classes or ()
        shares = line.answer.probabilities or [None] * len(classes)
        return [
            ("input", item.source),
            *[("line", item.line)] * self.rows,
            *((name, item.cells.get(name)) for name in self.keep),
            ("prediction", line.answer.label),
            *((f"p({name})", share) for name, share in zip(classes, shares, strict=True)),
            *self.decisions(line),
            ("error", item.error),
            ("unusual", spelt(item.unusual) or None),
        ]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.cells(Line(Item("")))]

    @property
    def numbers(self) -> list[str]:
        """The names of the columns that hold numbers, but for `line`."""
        several = {f"p({name})" for name in self.classes or ()}
        several |= {"low", "high", "ood", *self.survival}
        several |= {"prediction"} if self.classes is None else set()
        return [name for name in self.names if name in several]

    def record(self, line: Line) -> Record:
        item, failed = line.item, line.item.error is not None
        copied = {name: item.cells.get(name) for name in self.keep}
        answer = line.answer
        shares = dict(zip(self.classes or (), map(_short, answer.probabilities), strict=False))
        first = {"input": item.source} | ({"line": item.line} if item.line is not None else {})
        entries = {
            "error": item.error,
            "prediction": None if failed else _short(answer.label),
            "probabilities": shares if self.classes is not None and not failed else None,
            **{name: _short(value) for name, value in self.decisions(line)},
            **({"set": list(answer.members)} if answer.members is not None else {}),
            "unseen categories": list(item.unseen) or None,
            "unusual": dict(item.unusual) or None,
        }
        return first | copied | {name: x for name, x in entries.items() if x is not None}


@contextmanager
def _parquet(path: Path, columns: Columns) -> Iterator[Write]:
    """Open a Parquet file with the columns of the csv form; it takes its name when whole."""
    names = columns.names
    kinds = dict.fromkeys(names, pyarrow.string()) | dict.fromkeys(
        columns.numbers, pyarrow.float64()
    )
    kinds |= {"line": pyarrow.int64()} if columns.rows else {}
    schema = pyarrow.schema(list(kinds.items()))
    waiting: list[Record] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with pyarrow.parquet.ParquetWriter(part, schema) as file:

            def flush() -> None:
                file.write_table(pyarrow.Table.from_pylist(waiting, schema=schema))
                waiting.clear()

            def write(line: Line) -> None:
                waiting.append({name: _unicode(value) for name, value in columns.cells(line)})
                if len(waiting) >= GROUP:
                    flush()

            yield write
            flush()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path | None, form: str, columns: Columns) -> Iterator[Write]:
    """Open a file or stdout, and yield what writes lines there."""
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
        if form == "csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(map(as_text, columns.names))
            yield lambda line: writer.writerow([as_text(_short(x)) for _, x in columns.cells(line)])
        else:
            dump = partial(json.dumps, ensure_ascii=False)
            yield lambda line: file.write(dump(columns.record(line)) + "\n")


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


def _yes(value: bool) -> str:
    return "yes" if value else "no"


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
