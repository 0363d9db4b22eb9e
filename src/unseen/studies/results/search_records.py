"""What a search of settings leaves: every trial, its figures at sources, and the winner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from unseen.core.atomic import write_atomically
from unseen.studies.results.formats import comma_separated, counted
from unseen.studies.results.records import Job

FOLDER, NAME = "tuning", "search.json"
State = Literal["waiting", "done", "pruned", "diverged"]


@dataclass(frozen=True)
class TrialRecord:
    """One setting that was tried.

    Attributes:
        values: Name of a range -> value; empty for the study's own setting.
        method: The method's expression with its options.
        settings: Setting -> value, of the settings that were searched.
        state: Whether it was scored at all sources that are left out.
        value: The mean over sites; None where it is not done.
        sites: Site -> figure, the mean over seeds.
        rounds, steps: What it was trained with, over all its jobs and clients.
    """

    values: Mapping[str, Any]
    method: str
    settings: Mapping[str, Any]
    state: State = "waiting"
    value: float | None = None
    sites: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    steps: int = 0


@dataclass(frozen=True)
class SearchRecord:
    """A search for one method at one task.

    Attributes:
        method: The method, as the study names it.
        task: The task whose sources were searched on.
        criterion: What a trial is scored by.
        metric: Of the scores.
        lower: Whether less of it is better.
        ranges: Name -> range, as text.
        trials: All of them, in order; the first is the study's own setting.
        winner: The place of the best one; None while the search is under way.
        selection: Which round of a trial was scored; "" in records that do not say so.
    """

    method: str
    task: str
    criterion: str
    metric: str
    lower: bool
    ranges: Mapping[str, str]
    trials: tuple[TrialRecord, ...]
    winner: int | None = None
    selection: str = ""

    @property
    def best(self) -> TrialRecord:
        """The trial that won.

        Note:
            Where no trial came to its end, it is the study's own setting.
        """
        return self.trials[self.winner or 0]

    @property
    def own(self) -> float | None:
        """The score of the study's own setting."""
        return self.trials[0].value

    def count(self, state: State) -> int:
        """Return how many trials are in a state."""
        return sum(trial.state == state for trial in self.trials)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the record of a folder; None where there is none that can be read."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            about = json.loads((folder / NAME).read_bytes())
            trials = tuple(TrialRecord(**trial) for trial in about.pop("trials"))
            return cls(**about, trials=trials)
        return None

    def write(self, folder: Path) -> None:
        """Write the record into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / NAME, json.dumps(asdict(self), indent=1).encode())


def winner(trials: Sequence[TrialRecord], lower: bool) -> int:
    """Return the place of the best trial, the first of equals; 0 where none came to its end.

    A trial without a figure at sites where others have one, as `pearson` of equal predictions, is
    not compared by the sites that are left.

    Args:
        trials: All of a search.
        lower: Whether less is better.
    """
    scores = {i: t.value for i, t in enumerate(trials) if t.value is not None}
    most = max((len(trials[i].sites) for i in scores), default=0)
    whole = [i for i in scores if len(trials[i].sites) == most]
    return (min if lower else max)(whole, key=scores.__getitem__, default=0)


def place(out: Path, method: str, task: str) -> Path:
    """Return the folder of a search below a study's folder."""
    return out / FOLDER / Path(*Job(method, task, 0).folder(Path()).parts[1:3])


def searches(out: Path, methods: Sequence[str], tasks: Sequence[str]) -> Iterator[SearchRecord]:
    """Yield the finished searches of these methods and tasks."""
    for method in methods:
        for task in tasks:
            record = SearchRecord.read(place(out, method, task))
            if record is not None and record.winner is not None:
                yield record


def efforts(records: Iterable[SearchRecord]) -> list[str]:
    """Return for each method how many trials its searches took, and how much training."""
    by_method: dict[str, list[SearchRecord]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record)
    lines = []
    for method, own in by_method.items():
        trials = [trial for record in own for trial in record.trials]
        lines.append(
            f"{method} {counted(len(trials), 'trial')}{endings(own)}, "
            f"{sum(t.rounds for t in trials):,} rounds, {sum(t.steps for t in trials):,} steps"
        )
    return lines


def endings(records: Iterable[SearchRecord]) -> str:
    """Return in brackets how many trials did not come to their end; nothing where all did."""
    ends = Counter(trial.state for record in records for trial in record.trials)
    parts = [f"{ends[state]} {state}" for state in ("pruned", "diverged") if ends[state]]
    return f" ({', '.join(parts)})" if parts else ""


def all_ranges(records: Iterable[SearchRecord]) -> dict[str, str]:
    """Return name -> range, of all that was searched."""
    return {name: text for record in records for name, text in record.ranges.items()}


def as_csv(records: Iterable[SearchRecord]) -> str:
    """Return a row for each search: what it chose, and its scores on the sources."""
    header = (
        "method",
        "task",
        "chosen",
        "settings",
        "score",
        "score of the study's own",
        "metric",
        "criterion",
        "trials",
        "pruned",
        "diverged",
        "rounds",
        "steps",
    )
    rows: list[Sequence[object]] = [header]
    for r in records:
        settings = "; ".join(f"{key}={value}" for key, value in r.best.settings.items())
        rounds, steps = (sum(getattr(t, name) for t in r.trials) for name in ("rounds", "steps"))
        rows.append(
            (
                r.method,
                r.task,
                r.best.method,
                settings,
                r.best.value,
                r.own,
                r.metric,
                r.criterion,
                len(r.trials),
                r.count("pruned"),
                r.count("diverged"),
                rounds,
                steps,
            )
        )
    return comma_separated(rows)
