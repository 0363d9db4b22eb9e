"""Predictions of masks: one PNG per image, of the image's own size, and a list of them."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from unseen.core.atomic import write_atomically
from unseen.core.labels import colour
from unseen.core.outputs import predicted
from unseen.errors import UnseenError
from unseen.serving.answer_options import PredictOptions
from unseen.serving.directory import Trained
from unseen.serving.predict import Runtime, marked
from unseen.serving.reading.bounds import spelt
from unseen.serving.reading.new_rows import Item, stacked
from unseen.serving.spreadsheet import as_text

#: The list of what was predicted, in the folder of the masks.
LIST = "predictions.csv"


@dataclass(frozen=True)
class MaskLine:
    """One image's answer: where it comes from, its mask's file, and each class's pixels in it."""

    item: Item
    file: str = ""
    pixels: tuple[int, ...] = ()


def predict_masks(
    trained: Trained,
    paths: Sequence[Path],
    out: Path,
    options: PredictOptions = PredictOptions(),
    *,
    runtime: Runtime | None = None,
    batch: int | None = None,
) -> Iterator[MaskLine]:
    """Write a mask for every image, and yield a line for each, in their order.

    A mask is a PNG with a palette, whose values are the classes' numbers, of the image's own size:
    what the model says at the size that it takes is brought there by the nearest pixel. It lies
    below `out` as the image lies below the path that was asked for, and ends in .png.
    """
    owners: dict[str, str] = {}
    check_apart(paths, out)
    for items in marked(trained, paths, options, batch):
        x = stacked(items)
        outputs = (runtime or trained).outputs(x) if x is not None else None
        rows = iter(outputs if outputs is not None else ())
        for item in items:
            if item.x is None:
                yield MaskLine(item)
                continue
            scores = next(rows)
            if not bool(scores.isfinite().all()):
                why = "the model's outputs are not finite"
                yield MaskLine(replace(item, x=None, error=why))
                continue
            name = place_of(item, owners)
            mask = predicted(scores[None])[0]
            write_mask(out / name, mask, item.size)
            counts = torch.bincount(mask.flatten(), minlength=len(scores)).tolist()
            yield MaskLine(item, name, tuple(counts))


def check_apart(paths: Sequence[Path], out: Path) -> None:
    """Refuse to write masks among the images, over which they would be written."""
    for path in paths:
        inside = path.resolve() if path.is_dir() else path.resolve().parent
        over = out.resolve() == inside and path.suffix.lower() == ".png"
        if over or (path.is_dir() and out.resolve().is_relative_to(inside)):
            raise UnseenError(
                f"the masks would be written among the images, into {out}.",
                remedy="Name a folder of their own by --out.",
            )


def place_of(item: Item, owners: dict[str, str]) -> str:
    """Return the name of an image's mask; refuse to write over another image's."""
    name = PurePosixPath(*item.parts).with_suffix(".png").as_posix()
    if name in owners:
        raise UnseenError(
            f"{owners[name]} and {item.source} would both have the mask {name}.",
            remedy="Predict them one after the other, into two folders.",
        )
    owners[name] = item.source
    return name


def write_mask(path: Path, mask: Tensor, size: tuple[int, int] | None = None) -> None:
    """Write a mask of class numbers [H, W] as a PNG with a palette."""
    from io import BytesIO

    from PIL import Image

    image = Image.fromarray(mask.cpu().numpy().astype(np.uint8))
    image.putpalette([x for k in range(256) for x in colour(k)])
    if size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.NEAREST)
    content = BytesIO()
    image.save(content, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


def write_list(path: Path, classes: Sequence[str], lines: Sequence[MaskLine]) -> None:
    """Write the list of masks: image, mask, the share of pixels of each class, what is wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        shares = [f"share({name})" for name in classes]
        writer.writerow(["input", "mask", *map(as_text, shares), "error", "unusual"])
        for line in lines:
            total = sum(line.pixels)
            own = [f"{n / total:.9g}" for n in line.pixels] if total else [""] * len(classes)
            item = line.item
            cells = [item.source, line.file, *own, item.error, spelt(item.unusual) or None]
            writer.writerow(map(as_text, cells))


def check_out(out: Path | None) -> Path:
    """Return the folder to write masks into; refuse a file and none."""
    if out is None or out.suffix:
        place = f"--out {out} is not a folder" if out is not None else "there is no --out"
        raise UnseenError(
            f"this model predicts masks, one image each; {place}.",
            remedy="Name a folder: unseen predict MODEL_DIR IMAGES --out FOLDER.",
        )
    return out
