"""Studies: what is run, and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.spec.study import StudySpec

if TYPE_CHECKING:
    from unseen.results.study_results import Results

__all__ = ["Study"]


class Study(StudySpec):
    """Methods × hold-out plan × seeds, with what runs them. The settings are `StudySpec`'s."""

    def run(
        self,
        out: str | Path | None = None,
        jobs: int = 1,
        data_dir: str | Path | None = None,
        progress: bool = False,
        track: Sequence[str] = (),
        backend: str = "in-process",
        executor: str = "processes",
    ) -> Results:
        """Run what is missing, in `jobs` processes, and read all records back.

        out: the folder of the records; none for a temporary one. data_dir: where the data set's
        files are (default: the environment variable UNSEEN_DATA). track: `tensorboard`, `mlflow`.
        backend: where clients run, `in-process` or `flower-simulation`. executor: where jobs run,
        `processes` or `ray`.
        """
        from unseen.study.runner import run

        return run(self, out, jobs, data_dir, progress, track, backend, executor)
