"""From files to inputs, a batch at a time: each image or row, or why it cannot be used."""

import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from unseen.data.image_files.images import SUFFIXES, Tree, is_archive, pixels
from unseen.data.tables.cells import Cells
from unseen.data.tables.parquet_rows import is_parquet, plain_cell
from unseen.errors import UnseenError
from unseen.serving.reading.inputs import Arrays, ImageInputs, Inputs, TableInputs
from unseen.serving.reading.row_blocks import Block, RowCells, of_csv, of_parquet
from unseen.serving.reading.row_columns import PLAIN, fitted, header_fault

#: Images and rows per forward pass by default: few images stay in the processor's cache.
IMAGES, ROWS = 32, 512
DECODING, CELLS = "decoding", "reading"
#: Name of an image, its folders and name below the path that was asked for, and how to read it.
Listed = tuple[str, tuple[str, ...], Callable[[], bytes]]


@dataclass
class Clock:
    """Seconds spent in named phases, none inside another."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took

    def lines(self) -> list[str]:
        """Return each phase with its seconds and its share of all phases.

        Example:
            >>> Clock({"decoding": 3.0, "model": 1.0}).lines()
            ['decoding      3.00 s   75%', 'model         1.00 s   25%', 'total         4.00 s']
        """
        total = sum(self.seconds.values())
        shares = [(n, s, f"  {s / (total or 1):4.0%}") for n, s in self.seconds.items()]
        return [f"{n:<12}{s:6.2f} s{share}" for n, s, share in (*shares, ("total", total, ""))]


@dataclass(frozen=True)
class Item:
    """One image or row: where it is from, and either its input or why there is none.

    Attributes:
        source: The file.
        line: A row's line in the file; of a Parquet file its place, from 1.
        x: The input.
        error: Why there is no input.
        parts: Folders and name of an image below the path that was asked for.
        cells: A row's cells, by column.
        unseen: Categories that no training site had, where they are accepted.
        size: Width and height of an image's file.
        unusual: What is far from training, and how far, by the name of the column or of the image's
            statistic.
    """

    source: str
    line: int | None = None
    x: Tensor | None = None
    error: str | None = None
    parts: tuple[str, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    unusual: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        at = f", line {self.line}" if self.line is not None else ""
        return f"{self.source}{at}: {self.error}"


def read(
    inputs: Inputs,
    paths: Sequence[Path],
    batch: int | None = None,
    clock: Clock | None = None,
    lenient: bool = False,
) -> Iterator[list[Item]]:
    """Yield the items of the files, in their order, in lists of at most `batch`.

    Image models take image files, folders of them at any depth, and tar archives; table models csv
    files, also as csv.gz, and Parquet files.

    Args:
        inputs: What the model takes.
        paths: The files.
        batch: Items per list (default: 32 images or 512 rows).
        clock: Counts the time of decoding.
        lenient: Use a row with a category that no training site had, without the features of that
            column, instead of refusing it.
    """
    if isinstance(inputs, Arrays):
        raise UnseenError(
            f"this model predicts from no files: its inputs are {inputs.why}.",
            remedy="`unseen evaluate` reads them by the data set.",
        )
    clock = clock or Clock()
    for path in paths:
        if not path.exists():
            yield [Item(str(path), error="there is no such file or folder")]
        elif isinstance(inputs, ImageInputs):
            yield from _images(inputs, path, batch or IMAGES, clock)
        else:
            yield from _table(inputs, path, batch or ROWS, clock, lenient)


def check_frame(inputs: Inputs, columns: Sequence[str]) -> None:
    """Refuse a data frame of which no row can be used."""
    if isinstance(inputs, ImageInputs):
        raise UnseenError("this model takes images, not rows.")
    if isinstance(inputs, TableInputs) and (fault := header_fault(columns, inputs.schema.names)):
        raise UnseenError(f"the data frame {fault}.")


def from_mappings(
    inputs: Inputs, rows: Iterable[Mapping[str, object]], batch: int | None, lenient: bool
) -> Iterator[list[Item]]:
    """Yield the items of rows that are not from a file, in lists of at most `batch`.

    Args:
        inputs: What the model takes.
        rows: Column -> text, a number, a flag or None for a missing value; other columns than the
            model's are copied.
        batch: Items per list (default: 512).
        lenient: As for `read`.
    """
    if not isinstance(inputs, TableInputs):
        raise UnseenError("this model takes images, not rows.")
    inputs = replace(inputs, dialect=PLAIN)
    items = (_item(inputs, row, i) for i, row in enumerate(rows, 1))
    while chunk := list(islice(items, batch or ROWS)):
        good = [item for item in chunk if item.error is None]
        columns = {
            name: Cells.of([item.cells[name].strip() for item in good])
            for name in inputs.schema.names
        }
        places = [item.line or 0 for item in good]
        with_cells = Rows("rows", places, [item.cells for item in good], columns)
        encoded = iter(_encoded(inputs, with_cells, lenient))
        yield [item if item.error is not None else next(encoded) for item in chunk]


def _item(inputs: TableInputs, row: Mapping[str, object], line: int) -> Item:
    cells = {name: plain_cell(value) for name, value in row.items()}
    fault = header_fault(list(row), inputs.schema.names)
    return Item("rows", line, cells=cells, error=fault or None)


def stacked(items: Sequence[Item]) -> Tensor | None:
    """Return the inputs of those items that have one, as one batch; bytes as numbers in [0, 1]."""
    inputs = [item.x for item in items if item.x is not None]
    if not inputs:
        return None
    x = torch.stack(inputs)
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _images(inputs: ImageInputs, path: Path, batch: int, clock: Clock) -> Iterator[list[Item]]:
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
        yield [Item(str(path), error=str(error))]
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        none = [Item(str(path), error="holds no image files")]
        while True:
            with clock.phase(DECODING):
                items = list(pool.map(decode, islice(files, batch)))
            if items or none:
                yield items or none
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


def _table(
    inputs: TableInputs, path: Path, batch: int, clock: Clock, lenient: bool
) -> Iterator[list[Item]]:
    inputs, needs = fitted(inputs, path), inputs.schema.names
    blocks = of_parquet(path, needs) if is_parquet(path) else of_csv(path, needs, inputs.dialect)
    items = chain.from_iterable(_of_block(inputs, str(path), block, lenient) for block in blocks)
    while True:
        with clock.phase(CELLS):
            some = list(islice(items, batch))
        if not some:
            return
        yield some


def _of_block(inputs: TableInputs, source: str, block: Block, lenient: bool) -> list[Item]:
    """Return the items of a block's rows, and of those without cells, in the order of lines."""
    cells = [RowCells(block.columns, row) for row in range(len(block.lines))]
    rows = Rows(source, block.lines, cells, block.columns)
    items = _encoded(inputs, rows, lenient)
    if not block.faults:
        return items
    items += [Item(source, line, error=fault) for line, fault in block.faults]
    return sorted(items, key=lambda item: math.inf if item.line is None else item.line)


@dataclass(frozen=True)
class Rows:
    """Rows that have cells: where they are from, their cells, and the same cells by column."""

    source: str
    lines: Sequence[int]
    cells: Sequence[Mapping[str, str]]
    columns: Mapping[str, Cells]


def _encoded(inputs: TableInputs, rows: Rows, lenient: bool) -> list[Item]:
    """Return rows with their inputs, or with what is wrong in their cells."""
    if not rows.lines:
        return []
    raw = inputs.values(rows.columns)
    faults = dict(raw.faults)
    for i, unseen in raw.unseen.items() if not lenient else ():
        faults.setdefault(i, f"no training site had {', '.join(unseen)}")
    usable = [i for i in range(len(rows.lines)) if i not in faults]
    encoded = dict(zip(usable, inputs.encode(raw.x[usable]), strict=True)) if usable else {}
    lone = {i: tuple(unseen) for i, unseen in raw.unseen.items() if i not in faults}
    return [
        Item(rows.source, line, encoded.get(i), faults.get(i), (), own, lone.get(i, ()))
        for i, (line, own) in enumerate(zip(rows.lines, rows.cells, strict=True))
    ]
