"""How the selected model serves each environment of the source clients, and how evenly.

`source accuracy@column` is the accuracy at every group of a metadata column of every source client,
`source accuracy` that at every source client; `variance` and `entropy` before it say how even.

Source:
    Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning", Definition 1
    and Appendix A; FedILC §5.2 and Table 5, of which its Table 3 is the variance and the entropy.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from unseen.errors import UnseenError
from unseen.studies.results.metric_name import ENTROPY, SOURCE, VARIANCE, MetricName
from unseen.studies.results.selection import Records, Selected, value


def variance(accuracies: Sequence[float]) -> float:
    """Return the population variance (1/n) Σ (a_i − ā)² over environments: 0 is perfectly even.

    Example:
        >>> variance([0.25, 0.75])
        0.0625
    """
    total = _total(accuracies)
    mean = total / len(accuracies)
    return math.fsum((a - mean) ** 2 for a in accuracies) / len(accuracies)


def entropy(accuracies: Sequence[float]) -> float:
    """Return the entropy −Σ p_i ln p_i in nats of the accuracies normalised to p_i = a_i / Σ_j a_j.

    Returns:
        At most ln n, which is reached where all are equal.

    Example:
        >>> entropy([0.8, 0.8]) == math.log(2)
        True
    """
    if not (total := _total(accuracies)):
        raise UnseenError("the entropy of accuracies that are all 0 is not defined.")
    return math.fsum(-a / total * math.log(a / total) for a in accuracies if a > 0)


def divergence(accuracies: Sequence[float]) -> float:
    """Return KL(p ‖ uniform) = ln n − H(p) in nats, p as for `entropy`: 0 is perfectly even."""
    return math.log(len(accuracies)) - entropy(accuracies)


def _total(accuracies: Sequence[float]) -> float:
    if not accuracies or not all(0 <= a <= 1 for a in accuracies):
        what = f"expected one accuracy in [0, 1] per environment; found {list(accuracies)!r}."
        raise UnseenError(what)
    return math.fsum(accuracies)


#: One number for the accuracies of all environments: name -> function.
EVENNESS: dict[str, Callable[[Sequence[float]], float]] = {VARIANCE: variance, ENTROPY: entropy}


def offered(metrics: Sequence[str], groups: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what a table can show of the sources.

    Args:
        metrics: The study's metrics.
        groups: The metadata columns that the study groups by.

    Example:
        >>> offered(["accuracy"], [])
        ('source accuracy', 'variance source accuracy', 'entropy source accuracy')
    """
    names = [MetricName(m, column, (SOURCE,)) for m in metrics for column in ("", *groups)]
    even = [f"{kind} {name}" for name in names if "accuracy" in name.metric for kind in EVENNESS]
    return (*map(str, names), *even)


def of_sources(
    metric: str, runs: Iterable[tuple[Selected, Records]]
) -> tuple[tuple[str, ...], list[Selected]]:
    """Return what a table of the sources is made from.

    Args:
        metric: A name that is `offered`.
        runs: Selected rounds with their source records; those that diverged have none.

    Returns:
        Environments as columns, where a metric is shown, with a result for each; of the variance
        and the entropy the columns are the tasks, and none are returned. A summary is None
        unless the metric is defined at all environments and above 0 at one.
    """
    name = MetricName.parse(metric)
    rows = [(run, at_environments(records, run.round, name.grouped)) for run, records in runs]
    if summary := EVENNESS.get(name.words[0]):
        even = []
        for run, at in rows:
            values = [x for x in at.values() if x is not None]
            defined = len(values) == len(at) and any(values)
            even.append(replace(run, metrics={metric: summary(values) if defined else None}))
        return (), even
    if len(tasks := {run.task for run, _ in rows}) > 1:
        what = f"{metric!r} has a column per environment, so it is of one task; this study has "
        remedy = f"Call the study by its name, with one of them: --targets {min(tasks)}."
        raise UnseenError(f"{what}{', '.join(sorted(tasks))}.", remedy=remedy)
    columns = tuple(dict.fromkeys(column for _, at in rows for column in at))
    return columns, [
        replace(run, task=column, metrics={metric: at.get(column)}, undefined={})
        for run, at in rows
        for column in columns
    ]


def at_environments(source: Records, round: int, metric: str) -> dict[str, float | None]:
    """Return environment -> the metric there in the chosen round, None where it is undefined.

    Args:
        source: The source records of one job.
        round: The round.
        metric: Of `accuracy` an environment is a source client; of `accuracy@column` it is a group
            of one client that has examples, `client/group`.

    Example:
        >>> records = [{"domain": "a", "round": 0, "role": "source", "accuracy": 0.5,
        ...             "accuracy@sex": {"f": 0.4, "m": 0.6, "x": None},
        ...             "examples@sex": {"f": 5, "m": 5, "x": 0}}]
        >>> at_environments(records, 0, "accuracy@sex")
        {'a/f': 0.4, 'a/m': 0.6}
    """
    rows = [r for r in source if r["role"] == "source" and r["round"] == round]
    name = MetricName.parse(metric)
    if not name.column:
        return {row["domain"]: value(row, name.metric) for row in rows}
    return {
        f"{row['domain']}/{group}": level
        for row in rows
        for group, level in row[name.grouped].items()
        if row[f"examples@{name.column}"][group] > 0
    }


def note(metric: str) -> str:
    """Return the line under a table that says what an environment is."""
    column = MetricName.parse(metric).column
    what = f"a group of {column!r} at one source client" if column else "a source client"
    return f"an environment is {what}, by its validation split; each counts once"
