"""A model behind HTTP: the answers of `unseen predict`, for rows, files and images."""

import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pyarrow.parquet
from pydantic import BaseModel, ConfigDict, ValidationError

from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.errors import UnseenError, nearest
from unseen.serving.answer_options import PredictOptions
from unseen.serving.directory import Trained
from unseen.serving.policy import Policy
from unseen.serving.predict import Columns, Line, Runtime, answered, marked, writing
from unseen.serving.reading.inputs import TableInputs
from unseen.serving.reading.new_rows import Item, from_mappings
from unseen.version import __version__


class TooMuch(UnseenError):
    """A request above a limit."""


class RowsBody(BaseModel):
    """The body of a request as JSON: rows, and the columns to copy into the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: list[dict[str, bool | int | float | str | None]]
    keep: list[str] = []


class Field(NamedTuple):
    """A column that the model takes: its name, a value, its categories, and what it takes."""

    name: str
    value: str | float
    levels: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Service:
    """A model as it answers requests, one at a time.

    Attributes:
        trained: The model.
        policy: How outputs become answers.
        runtime: Computes the outputs instead of the model, such as its export.
        options: Which inputs get an answer.
        most_bytes: Of one request.
        most_rows: Or images, of one request.
    """

    trained: Trained
    policy: Policy
    runtime: Runtime | None = None
    options: PredictOptions = field(default_factory=PredictOptions)
    most_bytes: int = 32 * 2**20
    most_rows: int = 10_000
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def table(self) -> bool:
        """Whether the model takes rows, not images."""
        return isinstance(self.trained.inputs, TableInputs)

    @property
    def fields(self) -> list[Field]:
        """The columns that the model takes; none for images."""
        inputs, fields = self.trained.inputs, list[Field]()
        if not isinstance(inputs, TableInputs):
            return fields
        for name in inputs.schema.names:
            levels = tuple(inputs.levels.get(name, ()))
            if name in inputs.schema.texts:
                fields.append(Field(name, "words", (), "text"))
            elif name in inputs.schema.flags:
                fields.append(Field(name, 0, (), "0, 1, yes or no"))
            elif levels:
                fields.append(Field(name, levels[0], levels, f"one of {', '.join(levels)}"))
            else:
                mean, _ = inputs.moments.get(name, (0.0, 0.0))
                fields.append(Field(name, float(f"{mean:.3g}"), (), "a number"))
        return fields

    @property
    def example(self) -> dict[str, object]:
        """A row that the model takes: means of training, first categories."""
        return {field.name: field.value for field in self.fields}

    def columns(self, keep: Sequence[str]) -> Columns:
        """Return the columns of the answers."""
        return Columns.of(self.trained, self.policy, keep, self.runtime is not None)

    def of_rows(self, rows: Iterable[Mapping[str, object]], keep: Sequence[str]) -> list[Line]:
        """Return a line for each row."""
        options, bounds = self.options, self.trained.bounds
        batches = from_mappings(self.trained.inputs, rows, None, options.accept_unseen)
        return self._lines((bounds.mark(items, options.strict) for items in batches), keep)

    def of_file(self, content: bytes, name: str, keep: Sequence[str] = ()) -> list[Line]:
        """Return a line for each row of a csv file, or for each image of an archive."""
        with tempfile.TemporaryDirectory(prefix="unseen-") as place:
            path = Path(place) / name
            path.write_bytes(content)
            lines = self._lines(marked(self.trained, [path], self.options), keep)
        return [replace(line, item=without(f"{place}/", line.item)) for line in lines]

    def _lines(self, batches: Iterable[Sequence[Item]], keep: Sequence[str]) -> list[Line]:
        with self.lock:  # a network's buffers and hooks are its own, not a request's
            limited = self._limited(batches)
            lines = list(answered(self.trained, limited, self.policy, self.runtime))
        columns = {name: None for line in lines for name in line.item.cells}
        for name in keep if columns else ():
            if name not in columns:
                raise nearest("column of the rows (for keep)", name, columns)
        return lines

    def _limited(self, batches: Iterable[Sequence[Item]]) -> Iterator[Sequence[Item]]:
        count = 0
        for items in batches:
            count += len(items)
            if count > self.most_rows:
                raise TooMuch(f"one request may have {self.most_rows} rows or images.")
            yield items

    def answer(self, lines: Sequence[Line], keep: Sequence[str]) -> Record:
        """Return answers as JSON has them, in the order of the request."""
        columns = self.columns(keep)
        records = [columns.record(line) for line in lines]
        for i, record in enumerate(records):
            record.pop("input")
            record.pop("line", None)
            record["row"] = i
        failed = sum(line.item.error is not None for line in lines)
        counts = {"answered": len(lines) - failed, "not answered": failed}
        return {"predictions": records, **counts, "notes": self.policy.notes()}

    def file_of(self, lines: Sequence[Line], form: str, keep: Sequence[str]) -> bytes:
        """Return answers as the file that `unseen predict --out` writes."""
        with tempfile.TemporaryDirectory(prefix="unseen-") as place:
            path = Path(place) / "answers"
            with writing(path, form, self.columns(keep)) as write:
                for line in lines:
                    write(line)
            return path.read_bytes()

    def about(self) -> Record:
        """Return which model answers, and how."""
        spec, policy = self.trained.spec, self.policy
        return {
            "status": "ok",
            "model": spec["name"],
            "fingerprint": spec["fingerprint"],
            "unseen": __version__,
            "classes": self.trained.classes,
            "inputs": list(self.example) or "images",
            "threshold": policy.limit.value if policy.limit is not None else None,
            "abstain": policy.least,
            "coverage": policy.coverage,
            "times": list(policy.at),
            "strict": self.options.strict,
            "accept unseen": self.options.accept_unseen,
            "limits": {"bytes": self.most_bytes, "rows": self.most_rows},
        }

    def page(self) -> str:
        """Return the page for people, which needs no other file and no network."""
        return render(
            "unseen.serving",
            "endpoint.html.jinja",
            about=self.about(),
            table=self.table,
            version=__version__,
            spec=self.trained.spec,
            notes=self.policy.notes(),
            fields=self.fields,
            example=json.dumps({"rows": [self.example]}, indent=1),
        )


def without(place: str, item: Item) -> Item:
    """Return an item whose texts do not tell where it lay while it was read."""
    error = item.error and item.error.replace(place, "")
    return replace(item, source=item.source.replace(place, ""), error=error)


def rows_of_parquet(content: bytes, most: int) -> list[dict[str, object]]:
    """Return the rows of a Parquet file; refuse more than `most` before they are read."""
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > most:
            raise TooMuch(f"one request may have {most} rows; found {file.metadata.num_rows}.")
        rows: list[dict[str, object]] = file.read().to_pylist()
    except UnseenError:
        raise
    except (OSError, ValueError):
        raise UnseenError("the body is not a Parquet file.") from None
    return rows


def rows_of_json(content: bytes) -> RowsBody:
    """Return the rows of `{"rows": [{column: value}], "keep": [column]}`, and what to copy."""
    try:
        return RowsBody.model_validate(json.loads(content, object_pairs_hook=_once))
    except UnseenError:
        raise
    except ValidationError as error:
        fault = error.errors()[0]
        raise UnseenError(
            'expected {"rows": [{column: text, number or null}, ...]}; found at '
            f"{'.'.join(map(str, fault['loc'])) or 'the top'}: {fault['msg']}."
        ) from None
    except (ValueError, RecursionError):
        raise UnseenError("the body is not JSON.") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON that names nothing twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise UnseenError(f"an object of the body has {twice!r} more than once.")
    return content
