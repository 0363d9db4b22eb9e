"""TensorBoard: one folder of event files per job; each run of a study adds a file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.follow.points import Points
from unseen.results.records import Job

#: Next to the event files of a finished job: the digest of the records that they hold.
DONE = "records.sha256"


@dataclass
class TensorBoard:
    """Scalars in single precision, as TensorBoard keeps them.

    Attributes:
        root: TensorBoard's `--logdir`.
        writers: The open writers, by place.
    """

    root: Path
    writers: dict[str, Any] = field(default_factory=dict)

    def name(self, tag: str) -> str:
        """Return the tag as it is."""
        return tag

    def complete(self, place: str) -> str:
        """Return the digest that `done` wrote."""
        try:
            return (self.root / place / DONE).read_text()
        except OSError:
            return ""

    def known(self, place: str, job: Job) -> Points:
        """Return the points in the job's event files; a truncated file is read up to its end."""
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        return {
            # The loader turns simple values into tensors.
            (value.tag, event.step): float(make_ndarray(value.tensor).item())
            for path in sorted((self.root / place).glob("events.out.tfevents.*"))
            for event in EventFileLoader(str(path)).Load()
            for value in event.summary.value
        }

    def forget(self, place: str) -> None:
        """Remove the job's event files."""
        self._close(place)
        shutil.rmtree(self.root / place, ignore_errors=True)

    def write(self, place: str, new: Points) -> None:
        """Append to this process's file, and bring it to disk."""
        from torch.utils.tensorboard import SummaryWriter

        if place not in self.writers:
            self.writers[place] = SummaryWriter(str(self.root / place))  # type: ignore[no-untyped-call]
        for (tag, step), value in new.items():
            self.writers[place].add_scalar(tag, value, step)
        self.writers[place].flush()

    def done(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
        """Close the job's file, and write down what it holds."""
        self._close(place)
        write_atomically(self.root / place / DONE, digest.encode())

    def close(self) -> None:
        """Close all files."""
        for place in list(self.writers):
            self._close(place)

    def _close(self, place: str) -> None:
        if place in self.writers:
            self.writers.pop(place).close()
