"""Image files: where they lie, in folders or in a tar archive, and how one is decoded."""

import io
import lzma
import os
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.data.image_files import dicom
from unseen.errors import UnseenError, choice, number

SUFFIXES = frozenset(
    [
        ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".tif", ".tiff",
        ".webp", ".avif", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".tga",
    ]
).union(dicom.SUFFIXES)  # fmt: skip
#: How a PNG begins, and where it says how many bits a channel has: Pillow cuts 16 to 8.
PNG, DEPTH = b"\x89PNG\r\n\x1a\n", 24
#: How the codestream of a JPEG 2000 begins, and how far behind it the bits of each channel are.
JPEG_2000, CHANNELS = b"\xff\x4f\xff\x51", 40
#: The box of an AVIF, two bytes before the one whose bit 0x40 says more than 8 bits.
AVIF, MORE = b"av1C", 0x40
#: The tag of a TIFF for the bits of each channel.
BITS = 258


@dataclass(frozen=True)
class File:
    """One file of a tree: its path below the root, with slashes, its size and when it changed."""

    path: str
    size: int
    changed: int

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))


@dataclass(frozen=True)
class View:
    """What becomes of every image.

    Attributes:
        size: S in pixels.
        grey: One grey channel instead of three of colour.
        crop: "none" resizes to S × S whatever the proportions (Resize((S, S)) of the released
            codes); "centre" takes the largest square in the middle and resizes that. Pillow's
            bilinear filter.
    """

    size: int
    grey: bool = False
    crop: Literal["none", "centre"] = "none"

    def __post_init__(self) -> None:
        number("size", self.size, 1, 4096, whole=True)
        choice("crop", self.crop, ("none", "centre"))

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.grey else 3, self.size, self.size)

    def __call__(self, content: bytes, where: str) -> Tensor:
        """Read one image file as uint8 [3, S, S], or [1, S, S] if grey; an error names the file."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        try:
            scan = dicom.image_of(content, where) if dicom.is_dicom(content) else None
            with scan or Image.open(io.BytesIO(content)) as image:
                mode, turned = image.mode, orientation(image) > 1
                deep = mode[0] in "IF" or depth(image, content) > 8
                upright = ImageOps.exif_transpose(image) if turned else image
                plain = upright.convert("L" if self.grey else "RGB")
        except UnseenError:
            raise
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            unknown = isinstance(error, UnidentifiedImageError)  # whose text has a memory address
            why = "it is not in a format that Pillow knows" if unknown else error
            raise UnseenError(
                f"the image {where} cannot be read ({why}):", remedy="remove or replace it."
            ) from error
        if deep:
            raise UnseenError(
                f"the image {where} has more than 8 bits per channel (mode {mode}):",
                remedy="convert the images to 8 bits, with the window that suits them.",
            )
        S, (width, height) = self.size, plain.size
        w, h = [min(plain.size)] * 2 if self.crop == "centre" else plain.size
        left, top = (width - w) / 2, (height - h) / 2
        box = (left, top, left + w, top + h)
        if plain.size != (S, S):
            plain = plain.resize((S, S), Image.Resampling.BILINEAR, box)
        pixels = torch.frombuffer(bytearray(plain.tobytes()), dtype=torch.uint8)
        return pixels.view(S, S, -1).permute(2, 0, 1).contiguous()


def pixels(source: bytes | Path) -> tuple[int, int]:
    """Return width and height of an image file, of which no more than the head is read."""
    from PIL import Image

    if isinstance(source, Path):
        if source.suffix.lower() in dicom.SUFFIXES:
            return dicom.size_of(source.read_bytes())
    elif dicom.is_dicom(source):
        return dicom.size_of(source)
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        width, height = image.size
        return (height, width) if orientation(image) > 4 else (width, height)


def depth(image: Any, content: bytes) -> int:
    """Return the most bits of a channel in a file, where Pillow would cut more than 8 to 8.

    Args:
        image: The file, opened by Pillow.
        content: Its bytes.
    """
    if content.startswith(PNG):
        return content[DEPTH]
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(BITS, (1,))))
    if image.format == "PPM":  # the decoder's arguments are a mode, or a mode and a maximum
        values = [part for tile in image.tile for part in tile[3:] if isinstance(part, tuple)]
        return max(
            (int(p).bit_length() for v in values for p in v if isinstance(p, int)), default=8
        )
    if image.format == "JPEG2000" and (start := content.find(JPEG_2000)) >= 0:
        first = start + CHANNELS + 2
        count = int.from_bytes(content[first - 2 : first], "big")
        return max(1 + (byte & 0x7F) for byte in content[first : first + 3 * count : 3])
    if image.format == "AVIF" and (box := content.find(AVIF)) >= 0:
        return 10 if content[box + len(AVIF) + 2] & MORE else 8
    return 8


def orientation(image: Any) -> int:
    """Return how a camera held an image, of EXIF's 1 to 8; from 5 on it lies on its side."""
    if image.format == "TIFF":  # which Pillow turns itself
        return 1
    if image.format == "PNG" and "exif" not in image.info:  # to ask would decode all of it
        return 1
    try:
        value = image.getexif().get(274, 1)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, struct.error):
        return 1
    return value if isinstance(value, int) and value in range(1, 9) else 1


@dataclass(frozen=True)
class Tree:
    """A folder, or a tar archive (packed or not) that is read without being unpacked."""

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_dir() and not is_archive(self.root):
            raise UnseenError(f"{self.root} is neither a folder nor a tar archive.")

    def files(self, below: Sequence[str] = (".",), depth: int = 99) -> list[File]:
        """Return all image files, by path; hidden ones are passed over.

        Args:
            below: In a folder, names of the folders to look into.
            depth: In a folder, the most parts of a path.
        """
        files: Iterable[File]
        if self.root.is_dir():
            files = self._unpacked(below, depth)
        else:
            files = _archived(self.root, self.root.stat().st_mtime_ns)
        return sorted((f for f in files if visible(f.path)), key=lambda file: file.parts)

    def passed_over(self, depth: int) -> tuple[list[str], list[str]]:
        """Return what `files` passes over, hidden ones apart: other files, and empty folders.

        Args:
            depth: The parts of a path of files; folders of one part less may be empty.
        """
        if self.root.is_dir():
            every = [path for path in self.root.glob("*/" * (depth - 1) + "*") if path.is_file()]
            names = [path.relative_to(self.root).as_posix() for path in every]
            folders = [path for up in range(1, depth) for path in self.root.glob("*/" * up)]
            empty = [p.relative_to(self.root).as_posix() for p in folders if not any(p.iterdir())]
        else:
            with unpacking(self.root) as archive:
                names, empty = [_path(member) for member in archive if member.isfile()], []
        others = [name for name in names if not _image(name) and visible(name)]
        return sorted(others), sorted(filter(visible, empty))

    def contents(self, files: Sequence[File]) -> Iterator[tuple[int, bytes]]:
        """Yield the place of each file in `files` and its bytes, in the order that reads fastest.

        Note:
            Files that cannot be opened are left out.
        """
        if self.root.is_dir():
            for i, file in enumerate(files):
                with suppress(OSError):
                    yield i, (self.root / file.path).read_bytes()
            return
        places = {file.path: i for i, file in enumerate(files)}
        with unpacking(self.root) as archive:
            for member in archive:
                place = places.get(_path(member)) if member.isfile() else None
                if place is not None and (content := archive.extractfile(member)):
                    yield place, content.read()

    def _unpacked(self, below: Sequence[str], depth: int) -> Iterator[File]:
        for start in below:
            above_of: dict[str, frozenset[tuple[int, int]]] = {}
            for folder, inner, names in os.walk(self.root / start, followlinks=True):
                places = above_of.pop(folder, frozenset())
                if (own := _place(folder)) in places:  # a link that leads back
                    inner.clear()
                    continue
                above_of |= {os.path.join(folder, name): places | {own} for name in inner}
                above = Path(folder).relative_to(self.root).as_posix()
                prefix = "" if above == "." else f"{above}/"
                deeper = prefix.count("/") + 2 <= depth
                inner[:] = [name for name in inner if deeper and not name.startswith(".")]
                for name in filter(_image, names):
                    _check_name(prefix + name)
                    size = changed = 0
                    with suppress(OSError):  # a link to nowhere: named when it is to be opened
                        status = os.stat(os.path.join(folder, name))
                        size, changed = status.st_size, status.st_mtime_ns
                    yield File(prefix + name, size, changed)


#: What to do with an archive that is cut off.
COPY = "Copy it again, or unpack it and name the folder."


def is_archive(path: Path) -> bool:
    """Return whether a path is a tar archive, packed or not, whole or not."""
    try:
        return path.is_file() and tarfile.is_tarfile(path)
    except (EOFError, zlib.error, lzma.LZMAError):
        return True


@contextmanager
def unpacking(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive; what cannot be unpacked is an error that names it."""
    try:
        with tarfile.open(path) as archive:
            yield archive
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnseenError(f"{path.name} cannot be unpacked ({error}).", remedy=COPY) from error


def _ends(archive: tarfile.TarFile) -> bool:
    """Return whether a block follows the last file of a listed archive: the zeros that end it."""
    assert archive.fileobj is not None
    return archive.fileobj.tell() == archive.offset + tarfile.BLOCKSIZE


def _place(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UnseenError(
            f"the name of {name!a} is not UTF-8.", remedy="Rename it, or its folder."
        ) from None


#: Bytes of an image in an archive, which is read whole: a small archive may hold a huge file.
LARGEST = 2**28


@lru_cache(maxsize=4)
def _archived(path: Path, changed: int) -> tuple[File, ...]:
    """The image files of an archive; kept, since listing means reading through all of it."""
    with unpacking(path) as archive:
        members = [member for member in archive if member.isfile() and _image(member.name)]
        whole = _ends(archive)
    if not whole:
        raise UnseenError(f"{path.name} has no end: the archive is cut off.", remedy=COPY)
    for member in members:
        if member.size > LARGEST:
            size, most = f"{member.size / 2**20:,.0f} MiB", f"{LARGEST / 2**20:,.0f}"
            raise UnseenError(
                f"{member.name!r} of {path.name} unpacks to {size}; {most} are the most.",
                remedy="Unpack the archive, and name the folder.",
            )
    return tuple(File(_path(member), member.size, changed) for member in members)


def _path(member: tarfile.TarInfo) -> str:
    return PurePosixPath(member.name).as_posix()


def _image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def visible(path: str) -> bool:
    """Return whether a path is not hidden, nor one of those that macOS adds to archives."""
    return not any(part.startswith((".", "__MACOSX")) and part != "." for part in path.split("/"))


@dataclass(frozen=True)
class Image:
    """A file, its class and the part of the data set in which it lies, if there are parts."""

    file: File
    label: str
    part: str

    @property
    def key(self) -> tuple[str, str]:
        """Class and name without suffix: what lists of splits and parts have in common."""
        return self.label, self.file.parts[-1].rpartition(".")[0]
