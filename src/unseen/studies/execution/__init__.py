"""Studies: what is run, and how."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.data.tables.sheet import names_of
from unseen.errors import UnseenError
from unseen.studies.execution.python_values import as_settings
from unseen.studies.settings.study import StudySpec

if TYPE_CHECKING:
    from unseen.studies.execution.runner import AfterJob
    from unseen.studies.results.search_records import SearchRecord
    from unseen.studies.results.study_results import Results

__all__ = ["Study"]


class Study(StudySpec):
    """Methods × hold-out plan × seeds, with what runs them. The settings are `StudySpec`'s.

    In Python `dataset` may be a data frame or arrays, with `domain`, `label` and other options of
    `table` beside it; `model` a class or function, and each of `methods` a function. See
    `unseen.studies.execution.python_values`.
    """

    # Type checkers would make one of the fields, of the types that they have once they are read.
    def __init__(self, **settings: Any) -> None:
        super().__init__(**as_settings(settings))

    def run(
        self,
        out: str | Path | None = None,
        jobs: int = 1,
        data_dir: str | Path | None = None,
        progress: bool = False,
        track: str | Sequence[str] = (),
        backend: str = "in-process",
        executor: str = "processes",
        after: AfterJob | None = None,
    ) -> Results:
        """Run the jobs that have no records yet, and read all records back.

        Args:
            out: The folder of the records; None for a temporary one.
            jobs: How many processes run jobs.
            data_dir: Where the data set's files are (default: the environment variable
                UNSEEN_DATA).
            progress: Whether a bar shows the jobs that are done.
            track: `tensorboard`, `mlflow`, or both: where jobs are written as they end.
            backend: Where clients run, `in-process` or `flower-simulation`.
            executor: Where jobs run, `processes` or `ray`.
            after: Is called in this process with each job that ends here (its method, task and
                seed), how many have ended and how many there are; it may raise to stop, and the
                next run goes on from there.
        """
        from unseen.studies.execution.plan import prepare_study
        from unseen.studies.execution.runner import carry_out, way
        from unseen.studies.tracking.trackers import check

        trackers = names_of(track)
        check(trackers)
        if trackers and out is None:
            raise UnseenError(
                "trackers read the records on disk.", remedy="Name their folder (out)."
            )
        work = way(self, backend, executor)
        temporary = tempfile.TemporaryDirectory(prefix="unseen-") if out is None else None
        folder = Path(temporary.name if temporary else out or "")
        planned = prepare_study(self, folder, data_dir)
        return carry_out(planned, jobs, progress, temporary, trackers, work, after)

    def search(
        self,
        out: str | Path,
        jobs: int = 1,
        data_dir: str | Path | None = None,
        progress: bool = False,
    ) -> tuple[SearchRecord, ...]:
        """Run the trials of the study's search that have no records yet, and nothing else.

        Args:
            out: The folder of the trials.
            jobs: How many processes run them.
            data_dir: Where the data set's files are (default: the environment variable
                UNSEEN_DATA).
            progress: Whether a bar shows the jobs that are done.

        Returns:
            A record for each method and task.

        Raises:
            UnseenError: If the study has no search.
        """
        from unseen.studies.execution.plan import prepare_study
        from unseen.studies.execution.runner import search_alone

        return search_alone(prepare_study(self, Path(out), data_dir), jobs, progress)
