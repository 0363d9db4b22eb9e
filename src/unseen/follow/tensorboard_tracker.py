"""TensorBoard: one folder of event files per job, each run of a study a file of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.follow.reader import Points
from unseen.results.records import Job

_count = itertools.count()
#: Beside the event files of a finished job: the digest of the records that they hold.
DONE = "records.sha256"


@dataclass
class TensorBoard:
    """Scalars in single precision, as TensorBoard keeps them; `--logdir` is the folder."""

    root: Path
    files: dict[str, Any] = field(default_factory=dict)

    def name(self, tag: str) -> str:
        """Tags are as they are."""
        return tag

    def complete(self, place: str) -> str:
        """What `done` noted."""
        try:
            return (self.root / place / DONE).read_text()
        except OSError:
            return ""

    def known(self, place: str, job: Job) -> Points:
        """The points in the job's event files; a file that broke off is read up to there."""
        return read(self.root / place)

    def forget(self, place: str) -> None:
        """Remove the job's event files."""
        self._shut(place)
        shutil.rmtree(self.root / place, ignore_errors=True)

    def write(self, place: str, new: Points) -> None:
        """Append to this process's file, and bring it to disk."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        file, writer = self._opened(place)
        for (tag, step), value in new.items():
            one = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            event = Event(wall_time=time.time(), step=step, summary=one)
            writer.write(event.SerializeToString())
        file.flush()

    def done(self, place: str, mark: Mapping[str, Any], digest: str) -> None:
        """Close the job's file, and note what it holds."""
        self._shut(place)
        write_atomically(self.root / place / DONE, digest.encode())

    def close(self) -> None:
        """Close all files."""
        for place in list(self.files):
            self._shut(place)

    def _shut(self, place: str) -> None:
        if place in self.files:
            self.files.pop(place)[0].close()

    def _opened(self, place: str) -> tuple[Any, Any]:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if place not in self.files:
            folder = self.root / place
            folder.mkdir(parents=True, exist_ok=True)
            parts = (f"{time.time():017.6f}", socket.gethostname(), os.getpid(), next(_count))
            name = "events.out.tfevents." + ".".join(map(str, parts))
            file = (folder / name).open("xb")
            writer = RecordWriter(file)
            first = Event(wall_time=time.time(), file_version="brain.Event:2")
            writer.write(first.SerializeToString())
            self.files[place] = (file, writer)
        return self.files[place]  # type: ignore[no-any-return]


def read(folder: Path) -> Points:
    """Every scalar in a folder's event files, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: Points = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:  # the reader turns simple values into tensors
                found[value.tag, event.step] = float(make_ndarray(value.tensor).item())
    return found
