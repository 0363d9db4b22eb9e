"""Predictions as a Parquet file, by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from unseen.errors import UnseenError
from unseen.serving.bounds import spelt

if TYPE_CHECKING:
    from unseen.serving.new_rows import Line

#: Rows of one group, which lie in memory until they are written.
GROUP = 10_000


def needed() -> Any:
    """Import pyarrow, or say how to get it."""
    try:
        import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UnseenError(
            "Parquet files are written by pyarrow, which is not installed: pip install "
            "'unseen[parquet]'. Or take --out FILE.csv."
        ) from None
    return pyarrow


class ParquetWriter:
    """Writes lines in the columns of the csv form, each of one type; what is not there is null.

    The file takes its name when it is whole. keep: columns of the csv input to copy, as text.
    """

    def __init__(
        self, path: Path, classes: Sequence[str] | None, rows: bool, keep: Sequence[str] = ()
    ) -> None:
        arrow = needed()
        self.path, self.part = path, path.with_name(f".{path.name}.part")
        self.classes, self.rows, self.keep = classes, rows, keep
        text, share = arrow.string(), arrow.float64()
        columns = [("input", text), *([("line", arrow.int64())] if rows else [])]
        columns += [(name, text) for name in keep]
        columns += [("prediction", share if classes is None else text)]
        columns += [(f"p({name})", share) for name in classes or ()]
        columns += [("error", text), ("unusual", text)]
        names = [name for name, _ in columns]
        if twice := [name for name in keep if names.count(name) > 1]:
            raise UnseenError(
                f"--keep {twice[0]}: a Parquet file has no two columns of one name, and this one "
                "would be there twice. Leave it out, or take --out FILE.csv."
            )
        self.schema = arrow.schema(columns)
        self.waiting: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = needed().parquet.ParquetWriter(self.part, self.schema)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._flush()
            self.file.close()
            if kind is None:
                self.part.replace(self.path)
        finally:
            self.part.unlink(missing_ok=True)

    def write(self, line: Line) -> None:
        """Write one line."""
        item = line.item
        record: dict[str, Any] = {"input": item.source, "line": item.line, "prediction": line.label}
        record |= {name: item.cells.get(name) for name in self.keep}
        if line.probabilities:
            shares = zip(self.classes or (), line.probabilities, strict=True)
            record |= {f"p({name})": share for name, share in shares}
        record |= {"error": item.error, "unusual": spelt(item.unusual) or None}
        self.waiting.append({name: _sound(value) for name, value in record.items()})
        if len(self.waiting) >= GROUP:
            self._flush()

    def _flush(self) -> None:
        self.file.write_table(needed().Table.from_pylist(self.waiting, schema=self.schema))
        self.waiting = []


def _sound(value: Any) -> Any:
    """Text as Unicode, which the name of a file need not be."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
