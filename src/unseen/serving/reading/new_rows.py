"""From files to inputs, a batch at a time: each image or row, or why it cannot be used."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from unseen.data.image_files.images import SUFFIXES, Tree, is_archive, pixels
from unseen.data.tables.column_texts import Texts
from unseen.data.tables.parquet_rows import plain_cell
from unseen.errors import UnseenError
from unseen.serving.reading.batch import Batch, Item, stacked
from unseen.serving.reading.inputs import Arrays, ImageInputs, Inputs, TableInputs
from unseen.serving.reading.row_files import PLAIN, Block, blocks_of, fitted, header_fault

__all__ = ["Batch", "Item", "check_frame", "from_mappings", "read", "stacked"]
#: Images and rows per forward pass by default: few images stay in the processor's cache.
IMAGES, ROWS = 32, 512
#: Rows that are in memory at once.
BLOCK = 1 << 16
#: Name of an image, its folders and name below the path that was asked for, and how to read it.
Listed = tuple[str, tuple[str, ...], Callable[[], bytes]]


def read(
    inputs: Inputs,
    paths: Sequence[Path],
    batch: int | None = None,
    lenient: bool = False,
) -> Iterator[Batch]:
    """Yield what the files hold, in their order.

    Image models take image files, folders of them at any depth, and tar archives; table models csv
    files, also as csv.gz, and Parquet files.

    Args:
        inputs: What the model takes.
        paths: The files.
        batch: Images per batch (default: 32); of rows there are `BLOCK`, or a little less, so that
            no multiple of `batch` is cut.
        lenient: Use a row with a category that no training site had, without the features of that
            column, instead of refusing it.
    """
    if isinstance(inputs, Arrays):
        raise UnseenError(
            f"this model predicts from no files: its inputs are {inputs.why}.",
            remedy="`unseen evaluate` reads them by the data set.",
        )
    for path in paths:
        if not path.exists():
            yield Batch.of([Item(str(path), error="there is no such file or folder")])
        elif isinstance(inputs, ImageInputs):
            yield from _images(inputs, path, batch or IMAGES)
        else:
            yield from _table(inputs, path, batch or ROWS, lenient)


def check_frame(inputs: Inputs, columns: Sequence[str]) -> None:
    """Refuse a data frame of which no row can be used."""
    if isinstance(inputs, ImageInputs):
        raise UnseenError("this model takes images, not rows.")
    if isinstance(inputs, TableInputs) and (fault := header_fault(columns, inputs.schema.names)):
        raise UnseenError(f"the data frame {fault}.")


def from_mappings(
    inputs: Inputs, rows: Iterable[Mapping[str, object]], batch: int | None, lenient: bool
) -> Iterator[Batch]:
    """Yield rows that are not from a file.

    Args:
        inputs: What the model takes.
        rows: Column -> text, a number, a flag or None for a missing value; other columns than the
            model's are copied.
        batch: Rows per batch (default: 512).
        lenient: As for `read`.
    """
    if not isinstance(inputs, TableInputs):
        raise UnseenError("this model takes images, not rows.")
    inputs = replace(inputs, dialect=PLAIN)
    items = (_item(inputs, row, i) for i, row in enumerate(rows, 1))
    while chunk := list(islice(items, batch or ROWS)):
        columns = {
            name: Texts.of([item.cells.get(name) if item.error is None else None for item in chunk])
            for name in inputs.schema.names
        }
        faults = {i: item.error for i, item in enumerate(chunk) if item.error is not None}
        encoded = _encoded(
            inputs, Block(columns, [item.line for item in chunk], faults), "rows", lenient
        )
        yield replace(encoded, items=chunk)


def _item(inputs: TableInputs, row: Mapping[str, object], line: int) -> Item:
    cells = {name: plain_cell(value) for name, value in row.items()}
    fault = header_fault(list(row), inputs.schema.names)
    return Item("rows", line, cells=cells, error=fault or None)


def _images(inputs: ImageInputs, path: Path, batch: int) -> Iterator[Batch]:
    """Yield images, decoded by several threads: Pillow releases the interpreter's lock."""

    def decode(image: Listed) -> Item:
        name, parts, read = image
        try:
            content = read()
            return Item(name, x=inputs.view(content, name), parts=parts, size=pixels(content))
        except UnseenError as error:
            return Item(name, error=str(error), parts=parts)
        except OSError as error:
            return Item(name, error=f"cannot be opened ({error.strerror})", parts=parts)

    try:
        files = iter(_listed(path))
    except (UnseenError, OSError) as error:
        yield Batch.of([Item(str(path), error=str(error))])
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        none = [Item(str(path), error="holds no image files")]
        while True:
            items = list(pool.map(decode, islice(files, batch)))
            if items or none:
                yield Batch.of(items or none)
            if not items:
                return
            none = []


def _listed(path: Path) -> Iterable[Listed]:
    image = path.suffix.lower() in SUFFIXES
    if path.is_file() and (image or not is_archive(path)):
        return [(str(path), (path.name,), path.read_bytes)]
    tree = Tree(path)
    files = tree.files()
    if tree.root.is_dir():
        return [(str(path / f.path), f.parts, (path / f.path).read_bytes) for f in files]
    unpacked = ((files[i], io.BytesIO(content)) for i, content in tree.contents(files))
    return ((f"{tree.root}:{f.path}", f.parts, content.getvalue) for f, content in unpacked)


def _table(inputs: TableInputs, path: Path, batch: int, lenient: bool) -> Iterator[Batch]:
    inputs = fitted(inputs, path)
    for block in blocks_of(inputs, path, max(1, BLOCK // batch) * batch):
        yield _encoded(inputs, block, str(path), lenient)


def _encoded(inputs: TableInputs, block: Block, source: str, lenient: bool) -> Batch:
    """Return a block's rows with their inputs, or with what is wrong in their cells."""
    sources = [source] * len(block.lines)
    if not block.columns:
        return Batch(sources, block.lines, None, block.faults, bare=block.faults)
    raw = inputs.values(block.columns)
    errors = {**raw.faults, **block.faults}
    for i, unseen in raw.unseen.items() if not lenient else ():
        errors.setdefault(i, f"no training site had {', '.join(unseen)}")
    usable = np.delete(np.arange(len(block.lines)), [*errors])
    return Batch(
        sources, block.lines,
        inputs.encode(raw.x[usable] if errors else raw.x) if len(usable) else None,
        errors, block.columns, block.faults.keys(),
        {i: tuple(unseen) for i, unseen in raw.unseen.items() if i not in errors},
    )  # fmt: skip
