"""Bring what was downloaded into the layout that is read: archives and Parquet exports."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from unseen.datasets.cache import readable
from unseen.datasets.images import SUFFIXES, File
from unseen.datasets.layout import Layout, place
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
    written: int
    size: int
    passed_over: int


def bring(
    layout: Layout | None,
    sources: Sequence[Path],
    data_dir: Path,
    locate: Callable[[Path], object] | None = None,
) -> Imported:
    """Write the files of archives (tar, zip) or Parquet exports below the data folder.

    A layout's images go to root/domain/class/image under the names that the layout uses, its lists
    next to them, and everything else is passed over; without a layout all files go where the
    archive says, if `locate` then finds those of the data set among them. Archives with absolute
    paths, "..", links or devices are refused before anything is written; nothing that is there is
    overwritten; an import that is interrupted leaves nothing.

    Args:
        layout: How the images are to lie.
        sources: The downloaded files.
        data_dir: The data folder.
        locate: Raises an error where a folder lacks the data set's files.
    """
    with _opened(layout, sources) as items:
        notes = _notes(layout, items)
        wanted: dict[str, Item] = {}
        used = 0
        for item in items:
            targets = [item.path] if layout is None else _targets(layout, item, notes)
            if layout is not None and PurePosixPath(item.path).name == MARKER:
                wanted.setdefault(MARKER, item)  # what is in an archive of a stand-in stays one
                used += 1
            used += bool(targets)
            for target in targets:
                if wanted.setdefault(target, item) is not item:
                    raise UnseenError(
                        f"{item.path} and {wanted[target].path} would both become {target}."
                    )
        if wanted.keys() <= {MARKER}:
            raise UnseenError(
                f"{', '.join(map(str, sources))} holds no image in the form domain/class/image"
                + (f". {layout.obtain}" if layout else ".")
            )
        size = sum(item.size for item in wanted.values())
        folder = data_dir if layout is None else data_dir / root(layout)
        if found := marker([folder]):
            raise UnseenError(
                f"{folder} belongs to synthetic stand-ins ({found}), and real data are never "
                "put next to them. Import into another data folder."
            )
        _write(wanted, size, folder, locate)
    return Imported(folder, len(wanted), size, len(items) - used)


def root(layout: Layout) -> str:
    """Return the folder into which a layout is imported: the first of its usual places."""
    return next(name for name in layout.roots if PurePosixPath(name).suffix not in (".tar", ".gz"))


def _targets(
    layout: Layout, item: Item, notes: Mapping[str, Sequence[tuple[str, str]]]
) -> list[str]:
    """The paths of an image or a list below the layout's root; none for other files."""
    name = PurePosixPath(item.path).name
    if layout.lists is not None:
        for pattern in (layout.lists.train, layout.lists.validation):
            if name in {pattern.format(domain=domain) for domain in layout.domains}:
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
    read = []
    for item in items:
        if item.path.endswith(".json"):
            try:
                with item.open() as file:
                    read.append(json.load(file))
            except ValueError as error:
                raise UnseenError(f"{item.path} is not a json file: {error}.") from error
    try:
        return layout.annotated(read)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnseenError(
            f"the json files are not annotations of {layout.name}: {error!r}."
        ) from error


def _write(
    wanted: dict[str, Item], size: int, folder: Path, locate: Callable[[Path], object] | None
) -> None:
    """Write all files into a temporary folder, then rename each to its place."""
    there = [target for target in wanted if (folder / target).exists()]
    if there:
        raise UnseenError(
            f"{folder} already has {len(there)} of the files, the first {there[0]}. Remove them "
            "first, or import into another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UnseenError(
            f"the {len(wanted):,} files take {readable(size)}; {folder} has {readable(free)} left."
        )
    print(f"writing {len(wanted):,} files, {readable(size)}, to {folder}", file=sys.stderr)
    temporary = Path(tempfile.mkdtemp(prefix=".import-", dir=folder))
    try:
        for target, item in wanted.items():
            path = temporary / target
            path.parent.mkdir(parents=True, exist_ok=True)
            with item.open() as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
        if locate is not None:
            _recognised(locate, temporary)
        for target in wanted:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / target, folder / target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _recognised(locate: Callable[[Path], object], folder: Path) -> None:
    """Refuse what was unpacked where the data set's files are not in it."""
    try:
        locate(folder)
    except UnseenError as error:
        inside = str(error).replace(f"{folder}/", "").replace(str(folder), ".")
        raise UnseenError(
            f"nothing was imported; looked for in what was unpacked: {inside}"
        ) from None


@contextmanager
def _opened(layout: Layout | None, sources: Sequence[Path]) -> Iterator[list[Item]]:
    """All files of the sources, while these are open."""
    with ExitStack() as stack:
        try:
            items: list[Item] = []
            for source in sources:
                items += _items(layout, source, stack)
            yield items
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
            raise UnseenError(f"an archive is damaged or encrypted ({error}).") from error


def _items(layout: Layout | None, source: Path, stack: ExitStack) -> Iterator[Item]:
    if not source.is_file():
        raise UnseenError(f"{source} is not a file.")
    if source.suffix == ".parquet":
        return _from_parquet(layout, source)
    if source.suffix == ".json":
        return iter([Item(source.name, source.stat().st_size, partial(_plain, source))])
    # tar first: an archive whose last file is an npz ends as a zip does.
    if tarfile.is_tarfile(source):
        return _from_tar(stack.enter_context(tarfile.open(source)), source)
    if zipfile.is_zipfile(source):
        return _from_zip(stack.enter_context(zipfile.ZipFile(source)), source)
    raise UnseenError(f"{source} is not a tar archive, a zip archive or a Parquet file.")


def _plain(source: Path) -> BinaryIO:
    return source.open("rb")


def _from_tar(archive: tarfile.TarFile, source: Path) -> Iterator[Item]:
    for member in archive:
        path = _safe(member.name, source)
        if member.isfile():
            if _shown(path):
                yield Item(path, member.size, partial(_member, archive, member))
        elif not member.isdir():
            raise UnseenError(f"{source} holds a link or device, {member.name!r}: not imported.")


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    return archive.extractfile(member)


def _from_zip(archive: zipfile.ZipFile, source: Path) -> Iterator[Item]:
    for info in archive.infolist():
        path = _safe(info.filename, source)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UnseenError(f"{source} holds a link or device, {info.filename!r}: not imported.")
        if not info.is_dir() and _shown(path):
            yield Item(path, info.file_size, partial(archive.open, info))  # type: ignore[arg-type]


def _safe(name: str, source: Path) -> str:
    """A path that stays below the folder it is put in, or an error."""
    path = PurePosixPath(name)
    drive = PureWindowsPath(name).drive
    if path.is_absolute() or ".." in path.parts or drive or "\\" in name or "\0" in name:
        raise UnseenError(
            f"{source} holds the path {name!r}, which may lead out of the folder: not imported."
        )
    return path.as_posix()


def _shown(path: str) -> bool:
    return not any(part.startswith((".", "__MACOSX")) for part in path.split("/"))


def _from_parquet(layout: Layout | None, source: Path) -> Iterator[Item]:
    """Rows of a Hugging Face export: an image, a domain and a class by name.

    Classes and domains that are numbers get the names that the export's own description gives.
    """
    if layout is None:
        raise UnseenError(f"{source}: only benchmarks of images are imported from Parquet files.")
    file = _parquet(source)
    columns = file.schema_arrow.names
    image = _column(source, columns, "image", "img", "jpg", "png")
    label = _column(source, columns, "label", "class", "category", "classes")
    domain = _column(source, columns, "domain", "domain_name", "domains", "source", "location")
    described = _described(file.schema_arrow.metadata or {})
    for group in range(file.num_row_groups):
        words = file.read_row_group(group, columns=[domain, label]).to_pylist()
        for row, record in enumerate(words):
            data, path = _cell(source, image, group, row)
            folders = [_word(source, described, c, record[c]) for c in (domain, label)]
            name = _filename(source, f"{group}-{row:05d}", path, data)
            where = _safe("/".join((*folders, name)), source)
            yield Item(where, len(data), partial(_bytes, source, image, group, row))


def _parquet(source: Path) -> Any:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UnseenError(
            "Parquet files are read by pyarrow, which is not installed: pip install "
            "'unseen[parquet]'."
        ) from None
    return parquet.ParquetFile(source)


@lru_cache(maxsize=1)
def _group(source: Path, column: str, group: int) -> list[Any]:
    """One row group's images: all rows of it are asked for one after the other."""
    table = _parquet(source).read_row_group(group, columns=[column])
    return [record[column] for record in table.to_pylist()]


def _cell(source: Path, column: str, group: int, row: int) -> tuple[bytes, str | None]:
    """An image's bytes, and its path where the export keeps it."""
    content = _group(source, column, group)[row]
    data = content["bytes"] if isinstance(content, dict) else content
    if not isinstance(data, bytes):
        raise UnseenError(f"{source} holds links to images, not images (column {column!r}).")
    return data, content.get("path") if isinstance(content, dict) else None


def _bytes(source: Path, column: str, group: int, row: int) -> BinaryIO:
    return io.BytesIO(_cell(source, column, group, row)[0])


def _column(source: Path, columns: Sequence[str], *names: str) -> str:
    for name in names:
        if name in columns:
            return name
    raise UnseenError(
        f"{source} has no column {' or '.join(names)}; found {', '.join(columns)}. Rename it."
    )


def _described(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Column -> names of its numbers, as the library datasets writes them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {n: f["names"] for n, f in features.items() if isinstance(f, dict) and "names" in f}
    except (KeyError, ValueError, TypeError):
        return {}


def _word(source: Path, described: dict[str, list[str]], column: str, value: object) -> str:
    """A domain's or class's name."""
    if isinstance(value, int):
        names = described.get(column, [])
        if not 0 <= value < len(names):
            raise UnseenError(
                f"{source} gives the {column} {value} as a number and does not say its name."
            )
        return names[value]
    return str(value)


def _filename(source: Path, row: str, path: str | None, data: bytes) -> str:
    """A row's name, with the suffix that the bytes ask for."""
    suffix = next((s for magic, s in MAGIC.items() if data.startswith(magic)), None)
    if suffix is None:
        raise UnseenError(f"row {row} of {source} is not an image of a known kind.")
    stem = PurePosixPath(path).stem if path else f"{source.stem}-{row}"
    return stem + suffix
