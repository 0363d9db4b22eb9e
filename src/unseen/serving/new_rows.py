"""From files to inputs, a batch at a time: each image or row, or why it cannot be used."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from unseen.datasets.dialect import MARKS, SEPARATORS, Dialect, header, settled
from unseen.datasets.images import File, Tree, pixels
from unseen.errors import UnseenError
from unseen.serving.clock import Clock
from unseen.serving.inputs import Arrays, Images, Inputs, Table

#: Images and rows per forward pass, unless told otherwise: so few images that what a small net
#: makes of them stays in the processor's cache.
IMAGES, ROWS = 32, 512
#: Letters at the start of a file by which its separator and its decimal sign are known.
START = 1 << 20
DECODING, CELLS = "decoding", "reading"


@dataclass(frozen=True)
class Item:
    """One image or row: where it is from, and either its input or why there is none.

    line: of the row in its file. parts: folders and name of an image below the one that was named.
    cells: of the row. unseen: categories that no training site had, where they were let pass.
    size: width and height of an image's file. unusual: what is far from training, and how far, by
    the column's name or that of an image's statistic.
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
    """The items of the files, in their order, in lists of at most `batch`.

    Image models take image files, folders of them at any depth, and tar archives; table models csv
    files, also as csv.gz. lenient: a row with a category that no training site had is used, as
    having none of the column's features.
    """
    if isinstance(inputs, Arrays):
        raise UnseenError(
            f"this model predicts from no files: its inputs are {inputs.why}. `unseen evaluate` "
            "reads them by the data set."
        )
    clock = clock or Clock()
    for path in paths:
        if not path.exists():
            yield [Item(str(path), error="there is no such file or folder")]
        elif isinstance(inputs, Images):
            yield from _images(inputs, path, batch or IMAGES, clock)
        else:
            yield from _table(inputs, path, batch or ROWS, clock, lenient)


def stacked(items: Sequence[Item]) -> Tensor | None:
    """The inputs of those items that have one, as one batch; bytes as numbers in [0, 1]."""
    found = [item.x for item in items if item.x is not None]
    if not found:
        return None
    x = torch.stack(found)
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _images(inputs: Images, path: Path, batch: int, clock: Clock) -> Iterator[list[Item]]:
    """Images decoded by several threads: Pillow lets go of the interpreter while it decodes."""

    def decode(one: tuple[str, tuple[str, ...], Callable[[], bytes]]) -> Item:
        name, parts, read = one
        try:
            content = read()
            x = inputs.view(content, name)
            return Item(name, x=x, parts=parts, size=pixels(content))
        except UnseenError as error:
            return Item(name, error=str(error), parts=parts)
        except OSError as error:
            return Item(name, error=f"cannot be opened ({error.strerror})", parts=parts)

    try:
        files = iter(_listed(path))
    except (UnseenError, OSError) as error:
        yield [Item(str(path), error=str(error))]
        return
    some = False
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        while True:
            with clock.phase(DECODING):
                items = list(pool.map(decode, islice(files, batch)))
            if not items:
                break
            some = True
            yield items
    if not some:
        yield [Item(str(path), error="holds no image files")]


def _listed(path: Path) -> Iterable[tuple[str, tuple[str, ...], Callable[[], bytes]]]:
    """Name, parts and content of the images that a path stands for."""
    if path.is_file() and not _archive(path):
        return [(str(path), (path.name,), path.read_bytes)]
    tree = Tree(path)
    files = tree.files()
    if tree.root.is_dir():
        return [(str(path / f.path), f.parts, (path / f.path).read_bytes) for f in files]
    return _unpacked(tree, files)


def _unpacked(
    tree: Tree, files: Sequence[File]
) -> Iterator[tuple[str, tuple[str, ...], Callable[[], bytes]]]:
    for i, content in tree.contents(files):
        yield f"{tree.root}:{files[i].path}", files[i].parts, io.BytesIO(content).getvalue


def _archive(path: Path) -> bool:
    return ".tar" in path.suffixes or path.suffix in (".tar", ".tgz")


def _table(
    inputs: Table, path: Path, batch: int, clock: Clock, lenient: bool
) -> Iterator[list[Item]]:
    inputs = fitted(inputs, path)
    rows = _rows(path, inputs.schema.columns, inputs.dialect)
    while True:
        with clock.phase(CELLS):
            items = _encoded(inputs, list(islice(rows, batch)), lenient)
        if not items:
            return
        yield items


def _encoded(inputs: Table, rows: Sequence[Item], lenient: bool) -> list[Item]:
    """The rows with their inputs, or with what is wrong with them."""
    items, values = list(rows), []
    places = []
    for i, row in enumerate(rows):
        if row.error is not None:
            continue
        try:
            found, unseen = _values(inputs, row, lenient)
        except UnseenError as error:
            items[i] = Item(row.source, row.line, error=str(error), cells=row.cells)
            continue
        items[i] = Item(row.source, row.line, cells=row.cells, unseen=tuple(unseen))
        values.append(found)
        places.append(i)
    if places:
        for i, x in zip(places, inputs.encode(values), strict=True):
            row = items[i]
            items[i] = Item(row.source, row.line, x, cells=row.cells, unseen=row.unseen)
    return items


def _values(inputs: Table, row: Item, lenient: bool) -> tuple[list[float], list[str]]:
    values, unseen = inputs.values(row.cells)
    if unseen and not lenient:
        raise UnseenError(f"no training site had {', '.join(unseen)}")
    return values, unseen


def fitted(inputs: Table, path: Path) -> Table:
    """The inputs as this file is written: what it does not tell of itself is as in training."""
    try:
        return replace(inputs, dialect=_dialect(inputs, path))
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeError):
        return inputs  # reading its rows says what is wrong


def _dialect(inputs: Table, path: Path) -> Dialect:
    encoding = _encoding(path, inputs.dialect)
    with _opened(path, encoding) as file:
        start = "".join(_first(file))
    usual = inputs.dialect.separator or ","
    separator = _separator(start, inputs.schema.columns, usual)
    rows = csv.reader(io.StringIO(start, newline=""), delimiter=separator)
    names = next(rows, [])
    schema = inputs.schema
    numeric = {schema.columns[j] for j in schema.numeric} | {inputs.label}
    places = [i for i, name in enumerate(names) if name.strip() in numeric]
    cells = {row[i].strip() for row in rows for i in places if i < len(row)}
    return Dialect(separator, settled(cells) or inputs.dialect.decimal, encoding)


def _first(file: Iterable[str]) -> Iterator[str]:
    """The first lines of a file, of one that is cut short those before the cut."""
    size = 0
    with suppress(EOFError, zlib.error, OSError):
        for line in file:
            yield line
            size += len(line)
            if size > START:
                return


def _rows(path: Path, columns: Sequence[str], dialect: Dialect) -> Iterator[Item]:
    """The rows of a csv file as cells; one item with an error for each that cannot be read."""
    name = str(path)
    if not path.is_file():
        yield Item(name, error="is not a csv file; the model takes the rows of one")
        return
    line = 1
    try:
        encoding = dialect.encoding or "utf-8"
        with _opened(path, encoding) as file:
            reader = csv.reader(file, delimiter=dialect.separator or ",")
            names = [cell.strip() for cell in next(reader, [])]
            twice = sorted({c for c in names if names.count(c) > 1})
            if not names or twice or any("\x00" in c or _broken(c) for c in names):
                said = _twice(twice) if twice else "is not a csv file"
                yield Item(name, error=said)
                return
            if lacking := [c for c in columns if c not in names]:
                yield Item(name, error=_lacks(lacking, names))
                return
            empty = True
            for cells in reader:
                line = reader.line_num
                if not cells:
                    continue
                empty = False
                yield _row(name, line, names, cells, encoding)
            if empty:
                yield Item(name, error="has no rows")
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        yield Item(name, line if line > 1 else None, error=f"cannot be read further: {error}")


def _lacks(columns: Sequence[str], header: Sequence[str]) -> str:
    """Which columns are missing, and how the first of them may be spelt there."""
    close = difflib.get_close_matches(columns[0], header, n=1)
    hint = f" (is {columns[0]!r} called {close[0]!r} there?)" if close else ""
    return f"lacks the column {', '.join(columns)}{hint}; none of its rows is used"


def _twice(names: Sequence[str]) -> str:
    return f"has more than one column called {' and more than one called '.join(map(repr, names))}"


def _row(name: str, line: int, header: Sequence[str], cells: Sequence[str], encoding: str) -> Item:
    if len(cells) != len(header):
        return Item(name, line, error=f"has {len(cells)} cells where {len(header)} were expected")
    if any(map(_broken, cells)):
        return Item(
            name, line, error=f"holds bytes that are not {encoding.removesuffix('-sig').upper()}"
        )
    return Item(name, line, cells=dict(zip(header, (c.strip() for c in cells), strict=True)))


def _encoding(path: Path, dialect: Dialect) -> str:
    """That of the file's mark, or UTF-8 if it is that; else that of the training file, if that had
    no mark."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start = file.read(4)
    marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
    if marked is not None:  # the codecs that pass the mark over
        return "utf-8-sig" if marked == "utf-8" else marked[:6]
    usual = dialect.encoding or "utf-8"
    return "utf-8" if usual == "utf-8" or _is_utf8(path) else usual


def _is_utf8(path: Path) -> bool:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            decoder = codecs.getincrementaldecoder("utf-8")()
            while block := file.read(START):
                if b"\x00" in block:
                    return False
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except (EOFError, zlib.error, OSError):
        pass  # cut short: so far it was
    return True


def _separator(start: str, columns: Sequence[str], usual: str) -> str:
    """The training file's, unless the header holds more of the model's columns by another."""
    found = {sign: len({*columns} & {*header(start, sign)}) for sign in (usual, *SEPARATORS)}
    return max(found, key=lambda sign: found[sign])  # of equals the first


def _opened(path: Path, encoding: str) -> io.TextIOBase:
    # What cannot be decoded is kept as surrogates: one bad row does not take the others along.
    options: dict[str, str] = {"encoding": encoding, "errors": "surrogateescape", "newline": ""}
    if path.suffix == ".gz":
        return gzip.open(path, "rt", **options)  # type: ignore[call-overload, no-any-return]
    return path.open(**options)  # type: ignore[call-overload, no-any-return]


def _broken(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
