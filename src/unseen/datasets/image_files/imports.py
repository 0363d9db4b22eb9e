"""Bring what was downloaded into the layout that is read: archives and Parquet exports."""

import io
import json
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import pyarrow.parquet
from rich.filesize import decimal as readable

from unseen.datasets.entry import Layout
from unseen.datasets.image_files.cache import workspace
from unseen.datasets.image_files.images import SUFFIXES, File, visible
from unseen.datasets.image_files.layout import place
from unseen.datasets.standin import MARKER, marker
from unseen.errors import UnseenError

#: First bytes of an image file -> suffix.
MAGIC = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


@dataclass(frozen=True)
class Item:
    """A file inside an archive or export: its path there, its size, and how to open it."""

    path: str
    size: int
    open: Callable[[], BinaryIO]


@dataclass(frozen=True)
class Imported:
    """What was written where; passed_over: files that belong to no domain and no split."""

    folder: Path
    count: int
    size: int
    passed_over: int


def bring(
    layout: Layout | None,
    sources: Sequence[Path],
    data_dir: Path,
    locate: Callable[[Path], object] | None = None,
) -> Imported:
    """Write the files of archives (tar, zip) or Parquet exports below the data folder.

    Args:
        layout: How the images are to lie: they go to root/domain/class/image under the names that
            the layout uses, its lists next to them, and everything else is passed over. Without a
            layout all files go where the archive says.
        sources: The downloaded files.
        data_dir: The data folder.
        locate: Raises an error where a folder lacks the data set's files.

    Raises:
        UnseenError: An archive has absolute paths, "..", links or devices, a file is there already,
            or `locate` does not find the data set's files; then nothing is written.
    """
    with _opened(layout, sources) as items:
        notes = _notes(layout, items)
        files: dict[str, Item] = {}
        count = 0
        for item in items:
            targets = [item.path] if layout is None else _targets(layout, item, notes)
            count += bool(targets)
            for target in targets:
                first = files.setdefault(target, item)
                if first is not item and target != MARKER:
                    raise UnseenError(f"{item.path} and {first.path} would both become {target}.")
        if files.keys() <= {MARKER}:
            names = ", ".join(map(str, sources))
            what = f"{names} holds no image in the form domain/class/image."
            raise UnseenError(what, remedy=layout.obtain if layout else "")
        folder = data_dir if layout is None else data_dir / layout.root
        if stand_in := marker([folder]):
            what = f"{folder} belongs to synthetic stand-ins ({stand_in})."
            raise UnseenError(what, remedy="Import into another data folder.")
        size = sum(item.size for item in files.values())
        _write(files, size, folder, locate)
    return Imported(folder, len(files), size, len(items) - count)


def _targets(
    layout: Layout, item: Item, notes: Mapping[str, Sequence[tuple[str, str]]]
) -> list[str]:
    name = PurePosixPath(item.path).name
    if name == MARKER:  # what is in an archive of a stand-in stays one
        return [MARKER]
    if layout.lists is not None:
        patterns = (layout.lists.train, layout.lists.validation)
        if name in {p.format(domain=domain) for p in patterns for domain in layout.domains}:
            return [f"{layout.lists.folders[0]}/{name}"]
    if PurePosixPath(name).suffix.lower() not in SUFFIXES:
        return []
    at = place(layout, File(item.path, item.size, 0))
    if at is None:
        return [f"{domain}/{label}/{name}" for domain, label in notes.get(name, ())]
    return [str(PurePosixPath(at[0], at[1].part, at[1].label, name))]


def _notes(layout: Layout | None, items: Sequence[Item]) -> Mapping[str, Sequence[tuple[str, str]]]:
    """What json files among the items say about images that lie in one heap."""
    if layout is None or layout.annotated is None:
        return {}
    contents = []
    for item in (item for item in items if item.path.endswith(".json")):
        try:
            with item.open() as file:
                contents.append(json.load(file))
        except ValueError as error:
            raise UnseenError(f"{item.path} is not a json file: {error}.") from error
    try:
        return layout.annotated(contents)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"the json files are not annotations of {layout.name}: {error!r}."
        raise UnseenError(what) from error


def _write(
    files: Mapping[str, Item], size: int, folder: Path, locate: Callable[[Path], object] | None
) -> None:
    if there := [target for target in files if (folder / target).exists()]:
        raise UnseenError(
            f"{folder} already has {len(there)} of the files, the first {there[0]}.",
            remedy="Remove them first, or import into another folder.",
        )
    with workspace(folder, size, f"the {len(files):,} files") as temporary:
        print(f"writing {len(files):,} files, {readable(size)}, to {folder}", file=sys.stderr)
        for target, item in files.items():
            path = temporary / target
            path.parent.mkdir(parents=True, exist_ok=True)
            with item.open() as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
        try:
            if locate is not None:
                locate(temporary)
        except UnseenError as error:
            inside = str(error).replace(f"{temporary}/", "").replace(str(temporary), ".")
            raise UnseenError(
                f"nothing was imported; looked for in what was unpacked: {inside}"
            ) from None
        for target in files:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / target, folder / target)


@contextmanager
def _opened(layout: Layout | None, sources: Sequence[Path]) -> Iterator[list[Item]]:
    with ExitStack() as stack:
        try:
            yield [item for source in sources for item in _items(layout, source, stack)]
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
            raise UnseenError(f"an archive is damaged or encrypted ({error}).") from error


def _items(layout: Layout | None, source: Path, stack: ExitStack) -> Iterator[Item]:
    if not source.is_file():
        raise UnseenError(f"{source} is not a file.")
    if source.suffix == ".parquet":
        if layout is not None:
            return _from_parquet(source)
        raise UnseenError(f"{source}: only benchmarks of images are imported from Parquet files.")
    if source.suffix == ".json":
        return iter([Item(source.name, source.stat().st_size, partial(open, source, "rb"))])  # type: ignore[arg-type]
    # tar first: an archive whose last file is an npz ends as a zip does.
    if tarfile.is_tarfile(source):
        return _from_tar(stack.enter_context(tarfile.open(source)), source)
    if zipfile.is_zipfile(source):
        return _from_zip(stack.enter_context(zipfile.ZipFile(source)), source)
    raise UnseenError(f"{source} is not a tar archive, a zip archive or a Parquet file.")


def _from_tar(archive: tarfile.TarFile, source: Path) -> Iterator[Item]:
    for member in archive:
        open_it: Any = partial(archive.extractfile, member)
        plain = member.isfile() or member.isdir()
        yield from _item(source, member.name, plain, member.isdir(), member.size, open_it)


def _from_zip(archive: zipfile.ZipFile, source: Path) -> Iterator[Item]:
    for info in archive.infolist():
        open_it: Any = partial(archive.open, info)
        plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
        yield from _item(source, info.filename, plain, info.is_dir(), info.file_size, open_it)


def _item(
    source: Path, name: str, plain: bool, folder: bool, size: int, open_it: Callable[[], BinaryIO]
) -> Iterator[Item]:
    """The file of that name, unless it is hidden or a folder; links and devices are refused."""
    path = _safe(name, source)
    if not plain:
        raise UnseenError(f"{source} holds a link or device, {name!r}: not imported.")
    if not folder and visible(path):
        yield Item(path, size, open_it)


def _safe(name: str, source: Path) -> str:
    path = PurePosixPath(name)
    drive = PureWindowsPath(name).drive
    if path.is_absolute() or ".." in path.parts or drive or "\\" in name or "\0" in name:
        raise UnseenError(f"{source} holds the path {name!r}, which may lead out of the folder.")
    return path.as_posix()


def _from_parquet(source: Path) -> Iterator[Item]:
    """Rows of a Hugging Face export: an image, a domain and a class, by the names it describes."""
    file = _parquet(source)
    columns = file.schema_arrow.names
    image = _column(source, columns, "image", "img", "jpg", "png")
    label = _column(source, columns, "label", "class", "category", "classes")
    domain = _column(source, columns, "domain", "domain_name", "domains", "source", "location")
    described = _described(file.schema_arrow.metadata or {})
    for group in range(file.num_row_groups):
        words = file.read_row_group(group, columns=[domain, label]).to_pylist()
        for row, record in enumerate(words):
            data, path = _group(source, image, group)[row]
            folders = [_word(source, described, c, record[c]) for c in (domain, label)]
            suffix = next((s for magic, s in MAGIC.items() if data.startswith(magic)), None)
            if suffix is None:
                raise UnseenError(f"row {group}-{row:05d} of {source} is not a known image.")
            stem = PurePosixPath(path).stem if path else f"{source.stem}-{group}-{row:05d}"
            where = _safe("/".join((*folders, stem + suffix)), source)
            yield Item(where, len(data), partial(_bytes, source, image, group, row))


def _parquet(source: Path) -> Any:
    return pyarrow.parquet.ParquetFile(source)


@lru_cache(maxsize=1)
def _group(source: Path, column: str, group: int) -> list[tuple[bytes, str | None]]:
    """The bytes of one row group's images, each with its path; asked for row by row."""
    cells = _parquet(source).read_row_group(group, columns=[column])[column].to_pylist()
    cells = [cell if isinstance(cell, dict) else {"bytes": cell} for cell in cells]
    if not all(isinstance(cell["bytes"], bytes) for cell in cells):
        raise UnseenError(f"{source} holds links to images, not images (column {column!r}).")
    return [(cell["bytes"], cell.get("path")) for cell in cells]


def _bytes(source: Path, column: str, group: int, row: int) -> BinaryIO:
    return io.BytesIO(_group(source, column, group)[row][0])


def _column(source: Path, columns: Sequence[str], *names: str) -> str:
    if name := next((name for name in names if name in columns), None):
        return name
    what = f"{source} has no column {' or '.join(names)}; found {', '.join(columns)}."
    raise UnseenError(what, remedy="Rename it.")


def _described(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Column -> names of its numbers, as the library datasets writes them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {n: f["names"] for n, f in features.items() if isinstance(f, dict) and "names" in f}
    except (KeyError, ValueError, TypeError):
        return {}


def _word(source: Path, described: Mapping[str, list[str]], column: str, value: object) -> str:
    if not isinstance(value, int):
        return str(value)
    names = dict(enumerate(described.get(column, [])))
    if value in names:
        return names[value]
    raise UnseenError(f"{source} gives the {column} {value} as a number and does not say its name.")
