"""How the selected model serves each environment of the source clients.

`source accuracy@environment` is the accuracy at every group of the metadata column `environment`
of every source client, and `source accuracy` that at every source client; both on the validation
splits. `variance` and `entropy` before such a name say how even the accuracies are.

Source: FedILC, Table 5, of which its Table 3 is the variance and the entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from unseen.errors import UnseenError
from unseen.results import fairness
from unseen.results.metric_name import ENTROPY, SOURCE, VARIANCE, MetricName
from unseen.results.selection import Records, Selected, value

#: One number of the accuracies of all environments: name -> function.
EVENNESS: dict[str, Callable[[Sequence[float]], float]] = {
    VARIANCE: fairness.variance,
    ENTROPY: fairness.entropy,
}


def offered(metrics: Sequence[str], groups: Sequence[str]) -> tuple[str, ...]:
    """The names of what can be shown of the sources, of a study's metrics and groups.

    >>> offered(["accuracy"], [])
    ('source accuracy', 'variance source accuracy', 'entropy source accuracy')
    """
    names = [MetricName(m, column, (SOURCE,)) for m in metrics for column in ("", *groups)]
    even = [f"{kind} {name}" for name in names if "accuracy" in name.metric for kind in EVENNESS]
    return (*map(str, names), *even)


def of_sources(
    shown: str, runs: Iterable[tuple[Selected, Records]]
) -> tuple[tuple[str, ...], list[Selected]]:
    """What a table of such a name is made from, of runs with their source records.

    Of a metric the columns are environments, which are returned first; of the variance and the
    entropy they are the tasks, and none are returned. Runs that diverged have no records.
    """
    name = MetricName.parse(shown)
    rows = [(run, at_environments(records, run.round, name.grouped)) for run, records in runs]
    if summary := EVENNESS.get(name.words[0]):
        return (), [replace(run, metrics={shown: _even(summary, at)}) for run, at in rows]
    if len(tasks := {run.task for run, _ in rows}) > 1:
        raise UnseenError(
            f"{shown!r} has a column per environment, so it is of one task; this study has "
            f"{', '.join(sorted(tasks))}. Name one of them: --targets {min(tasks)}."
        )
    columns = tuple(dict.fromkeys(column for _, at in rows for column in at))
    return columns, [
        replace(run, task=column, metrics={shown: at.get(column)}, undefined={})
        for run, at in rows
        for column in columns
    ]


def at_environments(source: Records, chosen: int, metric: str) -> dict[str, float | None]:
    """Environment -> the metric there in the chosen round, None where it is undefined.

    Of `accuracy` an environment is a source client; of `accuracy@column` it is a group of one
    client that has examples, `client/group`.

    >>> records = [{"domain": "a", "round": 0, "role": "source", "accuracy": 0.5,
    ...             "accuracy@sex": {"f": 0.4, "m": 0.6, "x": None},
    ...             "examples@sex": {"f": 5, "m": 5, "x": 0}}]
    >>> at_environments(records, 0, "accuracy@sex")
    {'a/f': 0.4, 'a/m': 0.6}
    """
    rows = [r for r in source if r["role"] == "source" and r["round"] == chosen]
    name = MetricName.parse(metric)
    if not name.column:
        return {row["domain"]: value(row, name.metric) for row in rows}
    return {
        f"{row['domain']}/{group}": level
        for row in rows
        for group, level in row[name.grouped].items()
        if row[f"examples@{name.column}"][group] > 0
    }


def note(shown: str) -> str:
    """The line under a table that says what an environment is."""
    column = MetricName.parse(shown).column
    what = f"a group of {column!r} at one source client" if column else "a source client"
    return f"an environment is {what}, by its validation split; each counts once"


def _even(
    summary: Callable[[Sequence[float]], float], at: Mapping[str, float | None]
) -> float | None:
    """The summary of all environments; None unless all are defined and one is above 0."""
    values = [x for x in at.values() if x is not None]
    return summary(values) if len(values) == len(at) and any(values) else None
