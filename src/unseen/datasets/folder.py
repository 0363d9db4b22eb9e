"""A user's own images: data_dir/domain/class/image, as a folder or as one tar archive."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from unseen.datasets.base import DataSet, Domain
from unseen.datasets.files import below
from unseen.errors import UnseenError, nearest, number

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
)
#: Domain, class and file name of an image, and its bytes.
Entry = tuple[tuple[str, str, str], bytes]


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path = ".",
    size: int = 64,
    grey: bool = False,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """Images in a tree domain/class/image: uint8 [N, 3, S, S], or [N, 1, S, S] if `grey`.

    path: the tree's folder, or a tar archive of it that is read without being unpacked, absolute
    or relative to `data_dir`. size: S in pixels; other images are resized to S × S by Pillow's
    bilinear filter, whatever their proportions. classes: names of the classes; without it all
    domains must have the same class folders. Domains, classes and images stand in the order of
    their names. Hidden files and files that are not images by their suffix are passed over.
    """
    number("size", size, 1, 4096, whole=True)
    root = below(data_dir, path, "folder")
    images: dict[tuple[str, str, str], Tensor] = {}
    for key, content in _archived(root) if root.is_file() else _unpacked(root):
        images[key] = decode(content, "/".join(key), size, grey)
    if not images:
        raise UnseenError(f"no images lie under {root} in the form domain/class/image.")
    keys = sorted(images)
    names = _classes(keys, classes)
    domains = []
    for domain in sorted({key[0] for key in keys}):
        own = [key for key in keys if key[0] == domain]
        y = torch.tensor([names.index(key[1]) for key in own])
        domains.append(Domain(domain, torch.stack([images[key] for key in own]), y))
    name = root.resolve().name
    return DataSet("folder", tuple(domains), names, f"images in {name}", "the user's own", "")


def decode(content: bytes, where: str, size: int, grey: bool = False) -> Tensor:
    """One image file as uint8 [3, S, S], or [1, S, S] if `grey`; an error names the file."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            mode, plain = image.mode, image.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnseenError(
            f"the image {where} cannot be read ({error}): remove or replace it."
        ) from error
    if mode[0] in "IF":
        raise UnseenError(
            f"the image {where} has more than 8 bits per pixel (mode {mode}): convert the images "
            "to 8 bits, with the window that suits them."
        )
    if plain.size != (size, size):
        plain = plain.resize((size, size), Image.Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(plain.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, -1).permute(2, 0, 1).contiguous()


def _classes(keys: list[tuple[str, str, str]], given: Sequence[str] | None) -> tuple[str, ...]:
    """The class names, after a check that no domain has one of its own."""
    found: dict[str, set[str]] = {}
    for domain, label, _ in keys:
        found.setdefault(domain, set()).add(label)
    if given is not None:
        for domain, labels in found.items():
            for unknown in sorted(labels - set(given)):
                raise nearest(f"class (a folder of domain {domain!r})", unknown, given)
        return tuple(given)
    for label in sorted(set().union(*found.values())):
        lacking = [domain for domain, labels in found.items() if label not in labels]
        if lacking:
            owners = [domain for domain in found if domain not in lacking]
            raise UnseenError(
                f"all domains must have the same classes: {', '.join(owners)} has images of "
                f"{label!r}, {', '.join(lacking)} has none. Rename the class folder, or list the "
                "classes in the option 'classes'."
            )
    return tuple(sorted(set().union(*found.values())))


def _unpacked(root: Path) -> Iterator[Entry]:
    for path in root.glob("*/*/*"):
        key = _key(path.relative_to(root).parts)
        if key and path.is_file():
            yield key, path.read_bytes()


def _archived(path: Path) -> Iterator[Entry]:
    """Entries of a tar archive; whatever stands above the domains must be one folder."""
    if not tarfile.is_tarfile(path):
        raise UnseenError(f"{path} is neither a folder nor a tar archive.")
    above = None
    with tarfile.open(path) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            key = _key(parts[-3:])
            if not key or not member.isfile():
                continue
            above = parts[:-3] if above is None else above
            if parts[:-3] != above:
                raise UnseenError(
                    f"{path} is not one tree domain/class/image: found images in "
                    f"{'/'.join(above) or '.'} and in {'/'.join(parts[:-3]) or '.'}."
                )
            content = archive.extractfile(member)
            yield key, content.read() if content is not None else b""


def _key(parts: tuple[str, ...]) -> tuple[str, str, str] | None:
    hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
    if len(parts) != 3 or hidden or PurePosixPath(parts[2]).suffix.lower() not in SUFFIXES:
        return None
    return parts[0], parts[1], parts[2]
