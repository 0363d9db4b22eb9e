"""Which real sites a study began without, and which were absent from rounds of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from unseen.studies.results import study_file
from unseen.studies.results.study_folder import JobFolder
from unseen.studies.settings.holdout import Task
from unseen.visible import visible

#: How many jobs are listed for each site.
LISTED = 3


def absences(out: Path, tasks: Sequence[Task], jobs: Iterable[JobFolder]) -> list[str]:
    """Return a line for each site that never took part, or that was absent from rounds.

    Args:
        out: The folder of the records; there are no lines unless real sites made them.
        tasks: The study's tasks.
        jobs: Its finished jobs.
    """
    about = study_file.read(out)
    if not about.get("sites"):
        return []
    never = [f"{visible(n)} never took part: {visible(why)}" for n, why in _without(about)]
    by_name = {task.name: task for task in tasks}
    where: dict[str, list[str]] = defaultdict(list)
    finished = list(jobs)
    for job in finished:
        method, name, seed = job.job.method, job.job.task, job.job.seed
        for site, rounds in sorted(missed(job, by_name.get(name)).items()):
            words = f"{'rounds' if rounds[1:] else 'round'} {', '.join(spans(rounds))}"
            where[site].append(f"{words} of {method} on {name}, seed {seed}")
    return never + [
        f"{site}: absent in {listed(at, len(finished))}; why is in the server's messages.jsonl"
        for site, at in sorted(where.items())
    ]


def _without(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The sites that a run was begun without, and why."""
    without = about.get("without")
    return sorted(without.items()) if isinstance(without, dict) else []


def listed(at: Sequence[str], jobs: int) -> str:
    """Return the rounds of a site, without the job's name where there is one job alone."""
    if jobs == 1:
        return at[0].partition(" of ")[0]
    more = f" and of {len(at) - LISTED} more jobs" if at[LISTED:] else ""
    return "; ".join(at[:LISTED]) + more


def missed(job: JobFolder, task: Task | None) -> dict[str, list[int]]:
    """Return site -> the rounds whose training or evaluation it is not in, from 1.

    Args:
        job: The job.
        task: Its task, whose members are expected; None for those of the records.
    """
    rounds: dict[str, set[int]] = defaultdict(set)
    for row in job.rounds:
        for site in row["dropped"]:
            rounds[site].add(row["round"] + 1)
    sources = (*task.sources, *task.validation) if task is not None else ()
    members = ((job.source, sources), (job.target, task.targets if task is not None else ()))
    for rows, expected in members:
        there = {(row["domain"], row["round"]) for row in rows}
        for site in {*expected, *(domain for domain, _ in there)}:
            # The sources are evaluated whenever anybody is.
            for number in {row["round"] for row in job.source}:
                if (site, number) not in there:
                    rounds[site].add(number + 1)
    return {site: sorted(own) for site, own in rounds.items() if own}


def spans(numbers: Sequence[int]) -> Iterator[str]:
    """Yield sorted numbers as spans.

    Example:
        >>> list(spans([1, 3, 4, 5]))
        ['1', '3 to 5']
    """
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *others = [number for _, number in group]
        yield f"{first} to {others[-1]}" if others else f"{first}"
