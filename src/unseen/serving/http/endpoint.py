"""A model that answers requests: the answers of `unseen predict`, for rows, files and images."""

import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow.parquet

from unseen.core.templates import render
from unseen.errors import UnseenError, check_known, nearest
from unseen.serving.directory import Trained
from unseen.serving.policy import Policy
from unseen.serving.predict import Columns, Line, Runtime, answered, marked, writing
from unseen.serving.reading.inputs import TableInputs
from unseen.serving.reading.new_rows import Clock, Item, from_mappings
from unseen.version import __version__


def without(place: str, item: Item) -> Item:
    """Return an item whose texts do not tell where it lay while it was read."""
    error = item.error and item.error.replace(place, "")
    return replace(item, source=item.source.replace(place, ""), error=error)


class TooMuch(UnseenError):
    """A request above a limit."""


@dataclass(frozen=True)
class Service:
    """A model as it answers requests, one at a time.

    Attributes:
        trained: The model.
        policy: How outputs become answers.
        runtime: Computes the outputs instead of the model, such as its export.
        lenient: Whether rows with a category that no training site had are predicted.
        strict: Whether what is far from training is not.
        most_bytes: Of one request.
        most_rows: Or images, of one request.
    """

    trained: Trained
    policy: Policy
    runtime: Runtime | None = None
    lenient: bool = False
    strict: bool = False
    most_bytes: int = 32 * 2**20
    most_rows: int = 10_000
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def table(self) -> bool:
        """Whether the model takes rows, not images."""
        return isinstance(self.trained.inputs, TableInputs)

    def columns(self, keep: Sequence[str]) -> Columns:
        """Return the columns of the answers."""
        return Columns.of(self.trained, self.policy, keep, self.runtime is not None)

    def of_rows(self, rows: Iterable[Mapping[str, object]], keep: Sequence[str]) -> list[Line]:
        """Return a line for each row."""
        batches = from_mappings(self.trained.inputs, rows, None, self.lenient)
        return self._lines(self.trained.bounds.mark(items, self.strict) for items in batches)

    def of_file(self, content: bytes, name: str) -> list[Line]:
        """Return a line for each row of a csv file, or for each image of an archive.

        Args:
            content: The file, which lies in a folder of its own while it is read.
            name: What the lines call it.
        """
        with tempfile.TemporaryDirectory(prefix="unseen-") as place:
            path = Path(place) / name
            path.write_bytes(content)
            ways = (None, Clock(), self.lenient, self.strict)
            lines = self._lines(marked(self.trained, [path], *ways))
        return [replace(line, item=without(f"{place}/", line.item)) for line in lines]

    def _lines(self, batches: Iterable[Sequence[Item]]) -> list[Line]:
        with self.lock:  # a network's buffers and hooks are its own, not a request's
            return list(answered(self.trained, self._limited(batches), self.policy, self.runtime))

    def _limited(self, batches: Iterable[Sequence[Item]]) -> Iterator[Sequence[Item]]:
        count = 0
        for items in batches:
            count += len(items)
            if count > self.most_rows:
                raise TooMuch(f"one request may have {self.most_rows} rows or images.")
            yield items

    def answer(self, lines: Sequence[Line], keep: Sequence[str]) -> dict[str, Any]:
        """Return answers as JSON has them, in the order of the request."""
        check_copies_of(lines, keep)
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
        check_copies_of(lines, keep)
        with tempfile.TemporaryDirectory(prefix="unseen-") as place:
            path = Path(place) / "answers"
            with writing(path, form, self.columns(keep)) as write:
                for line in lines:
                    write(line)
            return path.read_bytes()

    def about(self) -> dict[str, Any]:
        """Return which model answers, and how."""
        spec, policy = self.trained.spec, self.policy
        limit = policy.limit
        return {
            "status": "ok", "model": spec["name"], "fingerprint": spec["fingerprint"],
            "unseen": __version__, "classes": self.trained.classes,
            "inputs": list(self.example()) or "images",
            "threshold": limit.value if limit is not None else None, "abstain": policy.least,
            "coverage": policy.coverage, "times": list(policy.at),
            "strict": self.strict, "accept unseen": self.lenient,
            "limits": {"bytes": self.most_bytes, "rows": self.most_rows},
        }  # fmt: skip

    def example(self) -> dict[str, object]:
        """Return a row that the model takes: means of training, first categories."""
        inputs = self.trained.inputs
        if not isinstance(inputs, TableInputs):
            return {}
        row: dict[str, object] = {}
        for name in inputs.schema.names:
            mean, _ = inputs.moments.get(name, (0.0, 0.0))
            levels = inputs.levels.get(name)
            text = "words" if name in inputs.schema.texts else float(f"{mean:.3g}")
            row[name] = levels[0] if levels else 0 if name in inputs.schema.flags else text
        return row


def check_copies_of(lines: Sequence[Line], keep: Sequence[str]) -> None:
    """Refuse a column to copy that no row of the request has."""
    columns = {name: None for line in lines for name in line.item.cells}
    for name in keep if columns else ():
        if name not in columns:
            raise nearest("column of the rows (for keep)", name, columns)


def rows_of_parquet(content: bytes, most: int) -> list[dict[str, object]]:
    """Return the rows of a Parquet file; refuse more than `most` before they are read."""
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > most:
            raise TooMuch(f"one request may have {most} rows; found {file.metadata.num_rows}.")
        rows: list[dict[str, object]] = file.read().to_pylist()
    except (OSError, ValueError) as error:
        if isinstance(error, UnseenError):
            raise
        raise UnseenError("the body is not a Parquet file.") from None
    return rows


def rows_of_json(content: bytes) -> tuple[list[dict[str, object]], list[str]]:
    """Return the rows of `{"rows": [{column: value}], "keep": [column]}`, and what to copy."""
    try:
        body = json.loads(content, object_pairs_hook=_once)
    except UnseenError:
        raise
    except (ValueError, RecursionError):
        raise UnseenError("the body is not JSON.") from None
    if isinstance(body, dict):
        check_known("key of the body", ("rows", "keep"), *body)
    rows = body.get("rows") if isinstance(body, dict) else None
    keep = body.get("keep", []) if isinstance(body, dict) else None
    plain = (str, int, float, type(None))
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and all(isinstance(v, plain) for v in row.values()) for row in rows
    ):
        raise UnseenError(
            'expected {"rows": [{column: text, number or null}, ...]}; found another form of JSON.'
        )
    if not isinstance(keep, list) or not all(isinstance(name, str) for name in keep):
        raise UnseenError("keep is a list of columns.")
    return rows, keep


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON that names nothing twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise UnseenError(f"an object of the body has {twice!r} more than once.")
    return content


def page(service: Service) -> str:
    """Return the page for people, which needs no other file and no network."""
    about, example = service.about(), service.example()
    return render(
        "unseen.serving", "endpoint.html.jinja",
        about=about, table=service.table, version=__version__, spec=service.trained.spec,
        notes=service.policy.notes(), example=json.dumps({"rows": [example]}, indent=1),
        columns=columns(service), names=list(example), fields=fields(service),
    )  # fmt: skip


def fields(service: Service) -> list[tuple[str, object, tuple[str, ...]]]:
    """Return each column's name, a value of it, and the values to choose from; none for numbers."""
    inputs = service.trained.inputs
    if not isinstance(inputs, TableInputs):
        return []
    return [
        (name, value, tuple(inputs.levels.get(name, ())))
        for name, value in service.example().items()
    ]


def columns(service: Service) -> list[tuple[str, str]]:
    """Return each column with what it takes, in words."""
    inputs = service.trained.inputs
    if not isinstance(inputs, TableInputs):
        return []
    words = []
    for name in inputs.schema.names:
        levels = ", ".join(inputs.levels.get(name, ()))
        kind = f"one of {levels}" if levels else "a number"
        kind = "0, 1, yes or no" if name in inputs.schema.flags else kind
        words.append((name, "text" if name in inputs.schema.texts else kind))
    return words
