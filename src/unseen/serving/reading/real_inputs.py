"""Real inputs of a model, on which an export is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.reading.batch import Item
from unseen.serving.reading.labelled import Request, of_data_set
from unseen.serving.reading.new_rows import read
from unseen.studies.results.formats import counted

#: How many inputs an export is checked on.
CHECKED = 512


@dataclass(frozen=True)
class RealInputs:
    """Inputs of files or of the data set of training.

    Attributes:
        x: Up to 512 of them [N, ...], evenly spread.
        usable: How many there are.
        unseen: How many of `x` have a category that no training site had, and lack its features.
        faults: What of the files could not be used.
    """

    x: Tensor
    usable: int
    unseen: int = 0
    faults: tuple[Item, ...] = ()

    @property
    def checked(self) -> str:
        """Which inputs these are, in words."""
        count = len(self.x)
        words = f"{count} of {self.usable} usable inputs"
        words = words if count < self.usable else counted(count, "input")
        asides = [f"{self.unseen} with a category that no training site had"] * bool(self.unseen)
        asides += [f"{counted(len(self.faults), 'other')} cannot be used"] * bool(self.faults)
        return words + (f" ({'; '.join(asides)})" if asides else "")


def real_inputs(trained: Trained, check: Sequence[Path], data_dir: Path | None) -> RealInputs:
    """Return up to 512 inputs that the model is meant for.

    Args:
        trained: The model.
        check: Files of inputs; if there are none, the data set of training is read again.
        data_dir: Where the files of the data set are.
    """
    if check:
        return _of_files(trained, check)
    targets = tuple(trained.spec["sites"]["targets"]) or None
    try:
        batches = of_data_set(trained, data_dir, Request(domains=targets))
        x = torch.cat([batch.x for batch in batches])
    except UnseenError as error:
        raise UnseenError(
            f"an export is checked on real inputs; the data set cannot be read: {error}",
            remedy="Name some by --check INPUT, or the data set by --data-dir.",
        ) from None
    return RealInputs(x[:: -(-len(x) // CHECKED)].clone(), len(x))


def _of_files(trained: Trained, paths: Sequence[Path]) -> RealInputs:
    usable, unseen, faults = list[Tensor](), list[bool](), list[Item]()
    for batch in read(trained.inputs, paths, lenient=True):
        usable += [batch.inputs] if batch.inputs is not None else []
        unseen += [i in batch.unseen for i in batch.usable.tolist()]
        faults += batch.faults
    if not usable:
        raise UnseenError(f"none of the inputs of --check can be used: {faults[0]}.")
    x = torch.cat(usable)
    apart = max(1, -(-len(x) // CHECKED))
    return RealInputs(x[::apart].clone(), len(x), sum(unseen[::apart]), tuple(faults))
