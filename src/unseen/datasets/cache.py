"""Images decoded once: one array of bytes per domain on disk, mapped into memory when read."""

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from rich.filesize import decimal as readable
from torch import Tensor

from unseen.datasets.images import File, Tree, View
from unseen.errors import Unreadable, UnseenError

#: Raised when decoding or the form on disk changes, so that no old array is taken for a new one.
VERSION = 1
#: Images decoded between two writes.
CHUNK = 512
#: A folder of this name next to the data serves everyone who reads them.
BESIDE = ".unseen-cache"


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
    if folder is None:
        pixels = torch.empty(shape, dtype=torch.uint8)
        fill(pixels, tree, files, view)
        return pixels, digest(pixels)
    entry = folder / key(tree, files, view)
    if not (entry / "about.json").is_file():
        _write(entry, shape, tree, files, view)
    return _open(entry, shape)


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
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > free:
        what = f"{what} take {readable(size)} and {folder} has {readable(free)} left."
        raise UnseenError(what, remedy=remedy)
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(
    entry: Path, shape: tuple[int, ...], tree: Tree, files: Sequence[File], view: View
) -> None:
    import numpy as np

    size, what = math.prod(shape), f"the {len(files):,} decoded images of {tree.root}"
    remedy = "Name another folder by the variable UNSEEN_CACHE, or choose a smaller size."
    try:
        with workspace(entry.parent, size, what, remedy) as folder:
            form = "x".join(map(str, view.shape))
            words = f"decoding {len(files):,} images once, {form}: {readable(size)}"
            print(f"{words} in {entry.parent}", file=sys.stderr)
            path = folder / "images.npy"
            array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
            pixels = torch.from_numpy(array)
            fill(pixels, tree, files, view)
            about = {"digest": digest(pixels), "shape": shape, "from": str(tree.root.resolve())}
            array.flush()
            del pixels, array
            (folder / "about.json").write_text(json.dumps(about, indent=1))
            folder.chmod(0o755)
            folder.rename(entry)
    except OSError as error:
        if not (entry / "about.json").is_file():  # else another process was first, with the same
            raise UnseenError(
                f"decoded images cannot be kept in {entry.parent} ({error}).",
                remedy="Name another folder by the variable UNSEEN_CACHE, or set it to off.",
            ) from error


def _open(entry: Path, shape: tuple[int, ...]) -> tuple[Tensor, str]:
    import numpy as np

    try:
        about = json.loads((entry / "about.json").read_bytes())
        array = np.load(entry / "images.npy", mmap_mode="c", allow_pickle=False)
        if array.shape != shape or array.dtype != np.uint8:
            raise ValueError(f"found {array.dtype} of shape {list(array.shape)}")
        return torch.from_numpy(array), str(about["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnseenError(
            f"the decoded images in {entry} are damaged ({error}):",
            remedy="remove that folder; they will be decoded again.",
        ) from error
