"""A user's own images with masks: data_dir/domain/images/x.png and domain/masks/x.png."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.core.labels import IGNORED
from unseen.data.dataset import DataSet, Domain, shared_units
from unseen.data.entry import Facts, Info, below
from unseen.data.image_files.cache import decoded
from unseen.data.image_files.folder import named_units, passed_over
from unseen.data.image_files.images import File, Image, Tree, View, pixels
from unseen.data.tables.check_matrix import SPELLING, tagged
from unseen.data.tables.copies import copied_images
from unseen.data.tables.remarks import twins
from unseen.errors import UnseenError

FACTS = Facts.of("masks")
#: Folders below a domain's.
IMAGES, MASKS = "images", "masks"
#: Classes where a study names none, and the two ways in which such masks are written.
BINARY, WRITTEN = ("background", "foreground"), ((0, 255), (0, 1))
#: Formats that change values, which a mask does not survive.
LOSSY = (".jpg", ".jpeg", ".webp")
#: The most files that an error names.
MOST = 3


class Raw(NamedTuple):
    """What one mask file holds.

    Attributes:
        pixels: Its values uint8 [S, S], resized by the nearest pixel.
        values: All values of the file.
    """

    pixels: Tensor
    values: set[int]


@dataclass(frozen=True)
class Values:
    """What the values of mask files mean.

    Attributes:
        classes: Names of the classes, background first.
        values: The value of each class; None for 0, 1, 2, ... or, of two classes, also 0 and 255.
        ignore: The value of pixels that do not count, if there are any.
    """

    classes: tuple[str, ...]
    values: tuple[int, ...] | None = None
    ignore: int | None = None

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            what = "masks(classes) needs two different names or more, background first; found "
            raise UnseenError(f"{what}{list(self.classes)}.")
        every = [*(self.values or ()), *([] if self.ignore is None else [self.ignore])]
        if self.values is not None and len(self.values) != len(self.classes):
            raise UnseenError(
                f"masks(values) gives each of the {len(self.classes)} classes its value; found "
                f"{len(self.values)} values."
            )
        if len(set(every)) < len(every) or any(not 0 <= value <= 255 for value in every):
            raise UnseenError(
                f"masks(values, ignore) must be different whole numbers from 0 to 255; found "
                f"{every}."
            )

    @property
    def ways(self) -> tuple[tuple[int, ...], ...]:
        """The values of the classes, in each way that masks may be written."""
        if self.values is not None:
            return (self.values,)
        usual = tuple(range(len(self.classes)))
        others = tuple(w for w in WRITTEN if len(self.classes) == 2 and self.ignore not in w)
        return others or (usual,)

    def coded(self, masks: Mapping[str, Raw]) -> Tensor:
        """Return the masks of classes int64 [N, S, S] of a domain's files.

        They are written in one way: the first that has a place for every value.
        """
        every = set().union(*(mask.values for mask in masks.values())) - {self.ignore}
        way = next((way for way in self.ways if every <= {*way}), None)
        if way is None:
            raise self._unknown(masks, every)
        table = torch.full((256,), IGNORED)
        table[list(way)] = torch.arange(len(way))
        return table[torch.stack([mask.pixels for mask in masks.values()]).long()]

    def _unknown(self, masks: Mapping[str, Raw], every: set[int]) -> UnseenError:
        nearest = min(self.ways, key=lambda way: len(every - {*way}))
        wrong = {name: mask.values & (every - {*nearest}) for name, mask in masks.items()}
        faulty = [f"{name} has {sorted(values)[:5]}" for name, values in wrong.items() if values]
        expected = " or ".join(", ".join(map(str, way)) for way in self.ways)
        ignore = "" if self.ignore is None else f", or {self.ignore} for what does not count"
        return UnseenError(
            f"masks hold values of no class: {'; '.join(faulty[:MOST])}"
            f"{more(len(faulty))}. Of the classes {', '.join(self.classes)} the values are "
            f"{expected}, in all files of a domain alike{ignore}.",
            remedy="Name classes=[...] in the order of 0, 1, 2, ..., or give each its value by "
            "values=[...], and what does not count by ignore=255.",
        )


def load(
    data_dir: str | Path | None,
    *,
    path: str | Path = ".",
    size: int = 64,
    grey: bool = False,
    classes: Sequence[str] | None = None,
    values: Sequence[int] | None = None,
    ignore: int | None = None,
    unit: str | None = None,
) -> DataSet:
    """Load images domain/images/x.png, uint8 [N, 3, S, S], with masks domain/masks/x.png.

    A mask belongs to the image of its name without suffix, and is of the image's size in pixels.

    Args:
        data_dir: The data folder.
        path: The tree's folder, or a tar archive of it, absolute or relative to `data_dir`.
        size: S in pixels; other images are resized to S × S by Pillow's bilinear filter, whatever
            their proportions, and masks by the nearest pixel.
        grey: Read one grey channel.
        classes: Names of the classes, background first (default: background, foreground).
        values: The value of each class in the masks (default: 0, 1, 2, ...; of two classes also 0
            and 255).
        ignore: The value of pixels that no loss and no metric counts.
        unit: As of `folder`: what finds the patient in a file's name.
    """
    meaning = Values(tuple(classes or BINARY), None if values is None else tuple(values), ignore)
    view, tree = View(size, grey), Tree(below(data_dir, path, "masks"))
    pairs = paired(tree)
    images = {name: [Image(file, "", "") for file in own] for name, own in pairs.items()}
    unit_names, units = named_units(images, unit) if unit is not None else ((), {})
    domains = []
    for name, own in pairs.items():
        x, digest = decoded(tree, list(own), view)
        y = meaning.coded(raw_masks(tree, own, size))
        domains.append(Domain(name, x, y, digest=digest, units=units.get(name)))
    notes = (
        *tagged(unpaired(tree), "passed over", "mask"),
        *passed_over(tree, list(pairs), "mask"),
        *tagged(twins(list(pairs), "site"), SPELLING, "mask"),
        *tagged(copied_images(domains, images), "copies", "mask"),
        *tagged(shared_units(domains, unit_names, str(unit)), "unit at several sites", "unit"),
    )
    about = {"source": f"images in {tree.root.resolve().name}", "licence": "the user's own"}
    return FACTS.data(domains, meaning.classes, masks=True, notes=notes, **about)


def paired(tree: Tree) -> dict[str, dict[File, File]]:
    """Return each domain's images with their masks, in the order of their names."""
    files = [file for file in tree.files(depth=3) if len(file.parts) >= 3]
    parts: dict[str, dict[str, dict[str, File]]] = {}
    for file in files:
        domain, part, name = file.parts[-3:]
        if (kind := part.lower()) in (IMAGES, MASKS):
            own = parts.setdefault(domain, {IMAGES: {}, MASKS: {}})[kind]
            stem = name.rpartition(".")[0]
            if stem in own:
                raise UnseenError(f"{own[stem].path} and {file.path} are of one name.")
            own[stem] = file
    if not parts:
        raise UnseenError(
            f"no images with masks lie under {tree.root}: expected domain/images/x.png and "
            "domain/masks/x.png."
        )
    pairs = {}
    for domain, both in sorted(parts.items()):
        _check_pairs(both[IMAGES], both[MASKS])
        pairs[domain] = {file: both[MASKS][stem] for stem, file in sorted(both[IMAGES].items())}
    return pairs


def unpaired(tree: Tree) -> list[str]:
    """Return a note on images that lie in other folders than images/ and masks/, if any do."""
    others = [
        file.path for file in tree.files()
        if len(file.parts) < 3 or file.parts[-2].lower() not in (IMAGES, MASKS)
    ]  # fmt: skip
    if not others:
        return []
    count = f"{len(others):,} images lie" if len(others) > 1 else "1 image lies"
    where = f"outside of {IMAGES}/ and {MASKS}/ and are not read"
    return [f"{count} {where}, such as {others[0]}"]


def _check_pairs(images: Mapping[str, File], masks: Mapping[str, File]) -> None:
    for what, here, there in (("mask", images, masks), ("image", masks, images)):
        if alone := sorted(here.keys() - there.keys()):
            names = ", ".join(here[stem].path for stem in alone[:MOST])
            folder = MASKS if what == "mask" else IMAGES
            raise UnseenError(
                f"no {what} belongs to {names}{more(len(alone))}.",
                remedy=f"Put one of the same name into {folder}/, or remove it.",
            )
    for mask in masks.values():
        if mask.path.lower().endswith(LOSSY):
            raise UnseenError(
                f"the mask {mask.path} is in a format that changes values;",
                remedy="save it as PNG.",
            )


def raw_masks(tree: Tree, pairs: Mapping[File, File], size: int) -> dict[str, Raw]:
    """Return what the mask files of a domain hold, by name, in the order of the images."""
    from PIL import Image as Pillow

    sides = {i: pixels(content) for i, content in contents(tree, list(pairs))}
    raw, names = {}, [mask.path for mask in pairs.values()]
    for i, content in contents(tree, list(pairs.values())):
        values = mask_of(content, names[i], sides[i])
        resized = Pillow.fromarray(values).resize((size, size), Pillow.Resampling.NEAREST)
        raw[names[i]] = Raw(torch.from_numpy(np.array(resized)), {*np.unique(values).tolist()})
    return {name: raw[name] for name in names}


def contents(tree: Tree, files: Sequence[File]) -> list[tuple[int, bytes]]:
    """Return the place and the bytes of every file."""
    read = list(tree.contents(files))
    if missing := sorted(set(range(len(files))) - {i for i, _ in read}):
        names = ", ".join(files[i].path for i in missing[:MOST])
        raise UnseenError(f"{names}{more(len(missing))} cannot be opened.")
    return read


def mask_of(content: bytes, where: str, expected: tuple[int, int]) -> np.ndarray:
    """Read one mask file as values uint8 [H, W]; an error names the file.

    Args:
        content: Its bytes.
        where: Its name.
        expected: Width and height of its image.
    """
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(content)) as image:
            image.load()
            mask = image.copy()
    except (OSError, ValueError, SyntaxError) as error:
        raise UnseenError(f"the mask {where} cannot be read ({error}).") from error
    if mask.size != expected:
        raise UnseenError(
            f"the mask {where} is {mask.width} by {mask.height} pixels; its image is "
            f"{expected[0]} by {expected[1]}.",
            remedy="A mask has one pixel for each of the image's.",
        )
    values = np.asarray(mask)
    if values.ndim == 3 and (values[..., :3] == values[..., :1]).all():
        values = values[..., 0]
    if values.ndim != 2 or (values.dtype != bool and (values.min() < 0 or values.max() > 255)):
        raise UnseenError(
            f"the mask {where} (mode {mask.mode}) does not hold one value of 0 to 255 per pixel.",
            remedy="Save it with one channel of 8 bits, the class of each pixel.",
        )
    return values.astype(np.uint8)


def more(count: int) -> str:
    """Return how many files an error does not name."""
    return f" and {count - MOST:,} more" if count > MOST else ""


INFO = Info(**vars(FACTS), loader=load)
