"""`unseen predict` of a model of masks: a folder of PNG files and their list."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.serving.directory import Trained
    from unseen.serving.reading.new_rows import Item


def of_masks(
    trained: Trained, inputs: Sequence[Path], out: Path | None, asked: object,
    how: tuple[Any, ...], profile: bool,
) -> tuple[int, list[Item]]:  # fmt: skip
    """Write the masks of images and their list into a folder.

    Args:
        trained: The model.
        inputs: The images.
        out: The folder.
        asked: Whether a form of lists or columns of rows were asked for.
        how: The export in the model's place, the images per pass, the clock, whether to be strict.
        profile: Whether to print where the time went.

    Returns:
        How many images have a mask, and what could not be predicted.
    """
    from unseen.serving.mask_images import LIST, check_out, predict_masks, write_list
    from unseen.serving.reading.bounds import Tally

    if asked:
        what = "--format, --keep and --accept-unseen are for rows; this model predicts masks."
        raise UnseenError(what, remedy="Leave them out.")
    folder, tally = check_out(out), Tally(trained.bounds)
    lines = list(predict_masks(trained, inputs, folder, *how))
    for line in lines:
        tally.add(line.item)
    write_list(folder / LIST, trained.classes or (), lines)
    remarks = [*(how[2].lines() if profile else ()), *tally.lines()]
    print("\n".join([*remarks, f"masks and {LIST}: {folder}"]), file=sys.stderr)
    faults = [line.item for line in lines if line.item.error is not None]
    return len(lines) - len(faults), faults
