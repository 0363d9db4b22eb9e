"""Images decoded once: one array of bytes per domain on disk, mapped into memory when read."""

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rich.filesize import decimal as readable
from torch import Tensor

from unseen.data.image_files.images import File, Tree, View
from unseen.errors import Unreadable, UnseenError

#: Raised when decoding or the form on disk changes, so that no old array is taken for a new one.
VERSION = 3
#: Images decoded between two writes.
CHUNK = 512
#: A folder of this name next to the data serves everyone who reads them.
BESIDE = ".unseen-cache"
#: What an entry says of its array.
ABOUT = "about.json"


def place(data: Path) -> Path | None:
    """Return the folder of decoded images of the data in this folder.

    Returns:
        What the variable UNSEEN_CACHE names, None if it says "off": images stay in memory. Without
        the variable, the folder `.unseen-cache` of the data folder if somebody made one, else
        ~/.cache/unseen.
    """
    variable = os.environ.get("UNSEEN_CACHE")
    if variable:
        return Path(variable).expanduser() if variable != "off" else None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shared = (folder / BESIDE for folder in (data, data.parent))
    return next(filter(Path.is_dir, shared), base / "unseen")


def decoded(tree: Tree, files: Sequence[File], view: View) -> tuple[Tensor, str]:
    """Return the files' images, uint8 [N, C, S, S] in the order of `files`, and their digest.

    Args:
        tree: Where the files lie.
        files: The image files.
        view: What becomes of every image.

    Note:
        What was decoded before is opened, not read: the array stays on disk and the system fetches
        the pages that are used. It is found by the files' paths, sizes and times and by the view;
        the digest is of the pixels, so it is the same on every machine that decodes alike. The
        array's size is printed on stderr before it is written. It is put in place by one rename,
        when whole.
    """
    folder, shape = place(tree.root), (len(files), *view.shape)
    entry = Entry(
        folder and folder / key(tree, files, view), "images.npy", shape, "uint8",
        f"the {len(files):,} decoded images of {tree.root}",
        "Name another folder by the variable UNSEEN_CACHE, or choose a smaller size.",
        str(tree.root.resolve()),
    )  # fmt: skip

    def decode(pixels: Tensor) -> str:
        fill(pixels, tree, files, view)
        return digest(pixels)

    form = "x".join(map(str, view.shape))
    return entry.array(f"decoding {len(files):,} images once, {form}", decode)


def key(tree: Tree, files: Sequence[File], view: View) -> str:
    """Return a name for the array: a digest of where it comes from and of what became of it."""
    stamps = [(file.path, file.size, file.changed) for file in files]
    what = [VERSION, str(tree.root.resolve()), repr(view), stamps]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def digest(pixels: Tensor) -> str:
    """Return the SHA-256 of an array's shape and bytes, in hexadecimal."""
    sha = hashlib.sha256(repr(tuple(pixels.shape)).encode())
    sha.update(pixels.contiguous().numpy().data)
    return sha.hexdigest()


def fill(pixels: Tensor, tree: Tree, files: Sequence[File], view: View) -> None:
    """Decode every file into its row; one error names all that cannot be read."""
    faults = {}
    for i, image in attempt(tree, files, view):
        if isinstance(image, UnseenError):
            faults[i] = image
        else:
            pixels[i] = image
    if faults:
        raise Unreadable(faults.values(), len(files), places=faults)


def attempt(
    tree: Tree, files: Sequence[File], view: View
) -> Iterator[tuple[int, Tensor | UnseenError]]:
    """Yield each file's place and its image, or why there is none; every file exactly once."""
    missing = set(range(len(files)))

    def decode(item: tuple[int, bytes]) -> tuple[int, Tensor | UnseenError]:
        try:
            return item[0], view(item[1], files[item[0]].path)
        except UnseenError as error:
            return item[0], error

    contents = tree.contents(files)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow lets go of the lock
        while chunk := list(islice(contents, CHUNK)):
            for i, image in pool.map(decode, chunk):
                missing.discard(i)
                yield i, image
    for i in sorted(missing):
        fault = f"the image {files[i].path} is gone from {tree.root} or cannot be opened."
        yield i, UnseenError(fault)


@contextmanager
def workspace(folder: Path, size: int, what: str, remedy: str = "") -> Iterator[Path]:
    """Yield a temporary folder inside one that has room enough; remove it afterwards.

    Args:
        folder: The folder, created where it is missing.
        size: Bytes that are to be written.
        what: What they are, as the error says it.
        remedy: What to do where there is no room.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is decoded is data of people
    free = shutil.disk_usage(folder).free
    if size > free:
        what = f"{what} take {readable(size)} and {folder} has {readable(free)} left."
        raise UnseenError(what, remedy=remedy)
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True)
class Entry:
    """An array that is computed once and kept in a folder of its own.

    Attributes:
        folder: The folder, None to keep the array in memory.
        file: The array's file in it.
        shape: Of the array.
        kind: Its type, by the name that numpy and torch have for it.
        what: What it holds, as errors say it.
        remedy: What to do where there is no room.
        source: Where it comes from, which is written down with it.
    """

    folder: Path | None
    file: str
    shape: tuple[int, ...]
    kind: str
    what: str
    remedy: str
    source: str

    @property
    def size(self) -> int:
        """Bytes."""
        import numpy as np

        return math.prod(self.shape) * np.dtype(self.kind).itemsize

    def array(self, words: str, fill: Callable[[Tensor], str]) -> tuple[Tensor, str]:
        """Return the array, mapped into memory, and its digest; it is computed if it is not there.

        Args:
            words: What is printed before it is computed, without size and place.
            fill: Computes it in place, and returns its digest.
        """
        if self.folder is None:
            tensor = torch.empty(self.shape, dtype=getattr(torch, self.kind))
            return tensor, fill(tensor)
        if not (self.folder / ABOUT).is_file():
            self._write(self.folder, words, fill)
        return self._open(self.folder)

    def _write(self, entry: Path, words: str, fill: Callable[[Tensor], str]) -> None:
        import numpy as np

        try:
            with workspace(entry.parent, self.size, self.what, self.remedy) as folder:
                print(f"{words}: {readable(self.size)} in {entry.parent}", file=sys.stderr)
                path, kind = folder / self.file, np.dtype(self.kind)
                array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=self.shape)
                tensor = torch.from_numpy(array)
                about = {"digest": fill(tensor), "shape": self.shape, "from": self.source}
                array.flush()
                del tensor, array
                (folder / ABOUT).write_text(json.dumps(about, indent=1))
                folder.chmod(0o755)
                folder.rename(entry)
        except OSError as error:
            if not (entry / ABOUT).is_file():  # else another process was first, with the same
                raise UnseenError(
                    f"{self.what} cannot be kept in {entry.parent} ({error}).",
                    remedy="Name another folder by the variable UNSEEN_CACHE, or set it to off.",
                ) from error

    def _open(self, entry: Path) -> tuple[Tensor, str]:
        import numpy as np

        try:
            about = json.loads((entry / ABOUT).read_bytes())
            array = np.load(entry / self.file, mmap_mode="c", allow_pickle=False)
            if array.shape != self.shape or array.dtype != np.dtype(self.kind):
                raise ValueError(f"found {array.dtype} of shape {list(array.shape)}")
            return torch.from_numpy(array), str(about["digest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnseenError(
                f"{self.what}, kept in {entry}, are damaged ({error}):",
                remedy="remove that folder; they will be made again.",
            ) from error
