"""Images decoded once: one array of bytes per domain on disk, mapped into memory when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import torch
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
    """Return the folder of decoded images of the data in this folder; None: they stay in memory.

    The variable UNSEEN_CACHE names the folder, or says "off"; without it the folder `.unseen-cache`
    of the data folder is taken if somebody made one, else ~/.cache/unseen.
    """
    chosen = os.environ.get("UNSEEN_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    for folder in (data, data.parent):
        if (folder / BESIDE).is_dir():
            return folder / BESIDE
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "unseen"


def decoded(tree: Tree, files: Sequence[File], view: View) -> tuple[Tensor, str]:
    """Return the files' images, uint8 [N, C, S, S] in the order given, and the digest of all of
    them.

    What was decoded before is opened, not read: the array stays on disk and the system fetches the
    pages that are used. It is found by the files' paths, sizes and times and by the view; the
    digest is of the pixels, so it is the same on every machine that decodes alike. The array's size
    is printed on stderr before it is written. It is put in place by one rename, when whole.

    Args:
        tree: Where the files lie.
        files: The image files.
        view: What becomes of every image.
    """
    folder = place(tree.root)
    if folder is None:
        pixels = torch.empty(len(files), *view.shape, dtype=torch.uint8)
        fill(pixels, tree, files, view)
        return pixels, digest(pixels)
    entry = folder / key(tree, files, view)
    if not (entry / "about.json").is_file():
        _write(entry, tree, files, view)
    return _open(entry, (len(files), *view.shape))


def key(tree: Tree, files: Sequence[File], view: View) -> str:
    """Return a name for the array: a digest of where it comes from and of what became of it."""
    listed = [(file.path, file.size, file.changed) for file in files]
    what = [VERSION, str(tree.root.resolve()), repr(view), listed]
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
        yield (
            i,
            UnseenError(f"the image {files[i].path} is gone from {tree.root} or cannot be opened."),
        )


def _write(entry: Path, tree: Tree, files: Sequence[File], view: View) -> None:
    import numpy as np

    shape = (len(files), *view.shape)
    size = int(np.prod(shape, dtype=np.int64))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(entry.parent).free
        if size > free:
            raise UnseenError(
                f"the {len(files):,} decoded images of {tree.root} take {readable(size)} and "
                f"{entry.parent} has {readable(free)} left. Name another folder by the variable "
                "UNSEEN_CACHE, or choose a smaller size."
            )
        print(
            f"decoding {len(files):,} images once, {'x'.join(map(str, view.shape))}: "
            f"{readable(size)} in {entry.parent}",
            file=sys.stderr,
        )
        temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    except OSError as error:
        raise UnseenError(
            f"decoded images cannot be kept in {entry.parent} ({error}). Name another folder by "
            "the variable UNSEEN_CACHE, or set it to off."
        ) from error
    try:
        array = np.lib.format.open_memmap(
            temporary / "images.npy", mode="w+", dtype=np.uint8, shape=shape
        )
        pixels = torch.from_numpy(array)
        fill(pixels, tree, files, view)
        about = {"digest": digest(pixels), "shape": shape, "from": str(tree.root.resolve())}
        array.flush()
        del pixels, array
        (temporary / "about.json").write_text(json.dumps(about, indent=1))
        temporary.chmod(0o755)
        try:
            temporary.rename(entry)
        except OSError:  # another process was first, with the same images
            if not (entry / "about.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
            f"the decoded images in {entry} are damaged ({error}): remove that folder; they will "
            "be decoded again."
        ) from error


def readable(size: float) -> str:
    """Return a number of bytes in words.

    >>> readable(1_503_445_000)
    '1.5 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
