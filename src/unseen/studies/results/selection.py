"""Which round of a job counts: named pure functions over its records."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from unseen.errors import UnseenError, check_known, number
from unseen.expression import parse, resolve
from unseen.studies.results import metric_name
from unseen.studies.results.metric_name import MetricName
from unseen.studies.results.statistics import comparable, mean

if TYPE_CHECKING:
    from unseen.studies.results.records import Job

#: One job's evaluations: method, task, seed, round (from 0), role, domain, examples, metrics.
Records = Sequence[Mapping[str, Any]]
#: (source records, target records, the study's metric) -> round
Rule = Callable[[Records, Records, str], int]

#: Which of equal rounds a rule takes.
Ties = Literal["loss", "first"]
TIES = get_args(Ties)
#: What a record says about an evaluation, besides its metrics.
KEYS = ("method", "task", "seed", "round", "role", "domain", "examples")
#: Before a grouped metric: the worst of its groups.
WORST = f"{metric_name.WORST} "


def source_validation(source: Records, target: Records, metric: str, *, ties: Ties = "loss") -> int:
    """Return the round with the best mean of the metric over the source domains' validation splits.

    Each domain counts once. Where domains are missing from some rounds, as a site that fell out is,
    the round is one of those in which the most of them answered, since means over different domains
    do not compare.

    Args:
        source: The source records.
        target: The target records, which are not read.
        metric: The study's metric.
        ties: Which of equal rounds: that of the lowest mean loss, and of these the earliest
            ("loss"), or the earliest ("first").

    Note:
        Where one class is frequent, the accuracy of a network that has learnt nothing may equal
        that of all later rounds; the loss tells them apart.

    Raises:
        UnseenError: The metric is defined nowhere. Where it is undefined at some domain, the mean
            is over the others.
    """
    rows = [record for record in source if record["role"] == "source"]
    return _best("source-validation", rows, metric, ties)


def ood_validation(source: Records, target: Records, metric: str, *, ties: Ties = "loss") -> int:
    """Return the round as `source_validation`, over the domains neither source nor target."""
    rows = [record for record in source if record["role"] == "ood-validation"]
    if not rows:
        raise UnseenError(
            "ood-validation needs a domain that is neither source nor target; this study has none.",
            remedy="Name one: [holdout] source = ['a', 'b'], validation = ['c'], target = ['d'].",
        )
    return _best("ood-validation", rows, metric, ties)


def last(source: Records, target: Records, metric: str) -> int:
    """Return the last round that was evaluated."""
    if not source:
        raise UnseenError("the job has no evaluations, so it has no last round.")
    return max(int(record["round"]) for record in source)


def target_oracle(
    source: Records,
    target: Records,
    study_metric: str,
    *,
    metric: str | None = None,
    after: int = 0,
    ties: Ties = "loss",
) -> int:
    """Return the round that is best on the target itself, which nobody has before deployment.

    Args:
        source: The source records.
        target: The target records.
        study_metric: The study's metric.
        metric: What to select by instead.
        after: How many rounds are left out at the start.
        ties: See `source_validation`.

    Note:
        It shows how far selection is from the best round, and reruns papers that selected so: CSAC
        by the highest accuracy, FedILC by the lowest loss after some rounds.
    """
    number("after", after, 0, whole=True)
    rows = [record for record in target if record["round"] >= after]
    if not rows:
        what = f"target-oracle: no round is left after {after}."
        raise UnseenError(what, remedy="Choose a smaller after.")
    return _best("target-oracle", rows, study_metric if metric is None else str(metric), ties)


SELECTIONS: dict[str, Callable[..., int]] = {
    "source-validation": source_validation,
    "ood-validation": ood_validation,
    "last": last,
    "target-oracle": target_oracle,
}


def rule(expression: str) -> Rule:
    """Return the rule that an expression names; a mistake shows before any training.

    Example:
        >>> rule("source-validaton")
        Traceback (most recent call last):
        unseen.errors.UnseenError: unknown selection rule 'source-validaton'; did you mean ...
    """
    calls = parse(expression)
    if len(calls) != 1:
        raise UnseenError(f"selection takes one rule; found {len(calls)} in {expression!r}.")
    # Called with options, each entry is its function waiting for records; wraps shows the options.
    waiting = {name: wraps(f)(partial(partial, f)) for name, f in SELECTIONS.items()}
    return cast(Rule, resolve("selection rule", calls[0], waiting))


def select(expression: str, source: Records, target: Records, metric: str) -> int:
    """Return the round that the rule chooses from one job's records.

    Args:
        expression: The rule.
        source: The source records.
        target: The target records.
        metric: What to select by.

    Example:
        >>> scores = enumerate([0.7, 0.9])
        >>> source = [{"round": r, "role": "source", "accuracy": a} for r, a in scores]
        >>> select("source-validation", source, [], "accuracy")
        1
    """
    return rule(expression)(source, target, metric)


#: Metric -> domains.
DomainsByMetric = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Selected:
    """What a job reports: every metric on the target at the chosen round, None for undefined.

    Attributes:
        method: The method.
        task: The task.
        seed: The seed.
        round: The chosen round; -1 for a job that diverged.
        metrics: Metric -> its value; with several target domains the mean over those where it is
            defined, each counting once.
        undefined: Metric -> target domains where it is not defined.
        worse: Metric -> target domains where an answer that looks at no input is better, as far as
            that is recorded.
        level: Metric -> target domains where such an answer has the same figure.
        domains: The target domains that were evaluated.
    """

    method: str
    task: str
    seed: int
    round: int
    metrics: Mapping[str, float | None]
    undefined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    worse: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    level: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    domains: tuple[str, ...] = ()


def no_selection(job: Job, metrics: Iterable[str]) -> Selected:
    """Return what a job that diverged reports: no round, and every metric undefined."""
    return Selected(job.method, job.task, job.seed, -1, dict.fromkeys(metrics))


def selected(
    source: Records, target: Records, selection: str, metric: str, constants: Records = ()
) -> Selected:
    """Choose a round of one job, and return what the job reports there.

    Where nothing is held out, the sources' validation splits replace the target.

    Args:
        source: The source records.
        target: The target records.
        selection: The rule.
        metric: What it selects by.
        constants: What an answer without any input scores, see
            `unseen.studies.execution.constant_answer`.
    """
    jobs = {(r["method"], r["task"], r["seed"]) for r in (*source, *target)}
    if len(jobs) != 1:
        raise UnseenError(f"a round is chosen within one job; found records of {sorted(jobs)}.")
    best = select(selection, source, target, metric)
    reported = target or [record for record in source if record["role"] == "source"]
    rows = [record for record in reported if record["round"] == best]
    if not rows:
        raise UnseenError(f"{jobs.pop()}: the target has no record of round {best}, the chosen.")
    run = _reported(Selected(*jobs.pop(), best, {}), rows, {n: n for n in names(rows[0])})
    worse, level = beside_constant(rows, constants)
    domains = tuple(sorted({record["domain"] for record in rows}))
    return replace(run, worse=worse, level=level, domains=domains)


def _reported(run: Selected, records: Records, labels: Mapping[str, str]) -> Selected:
    """Return the run with the means of metrics over the records' domains where they are defined.

    Args:
        run: The run.
        records: One evaluation per domain.
        labels: The name that the run has -> the name in the records.
    """
    metrics: dict[str, float | None] = {}
    undefined: dict[str, tuple[str, ...]] = {}
    for name, metric in labels.items():
        values = {record["domain"]: value(record, metric) for record in records}
        defined = [v for v in values.values() if v is not None]
        metrics[name] = mean(defined) if defined else None
        if missing := sorted(domain for domain, v in values.items() if v is None):
            undefined[name] = tuple(missing)
    return replace(run, metrics=metrics, undefined=undefined)


def beside_constant(rows: Records, constants: Records) -> tuple[DomainsByMetric, DomainsByMetric]:
    """Return metric -> the domains where an answer without any input is better; where as good.

    Args:
        rows: One evaluation per domain.
        constants: What such an answer scores. What a domain's record lacks is judged by the squared
            error: so are all metrics of numbers.

    Example:
        >>> rows = [{"domain": "a", "rmse": 2.0, "r2": 0.1}]
        >>> beside_constant(rows, [{"domain": "a", "loss": 1.0, "rmse": 1.0}])
        ({'rmse': ('a',), 'r2': ('a',)}, {})
    """
    figures = {record["domain"]: record for record in constants}
    worse, level = DomainsByMetric(), DomainsByMetric()
    for record in rows:
        domain, constant = record["domain"], figures.get(record["domain"], {})
        for name in (k for k in names(record) if k in record and "@" not in k):
            by = next((m for m in (name, "loss", "rmse") if m in constant and m in record), name)
            ours, theirs = record[by], constant.get(by)
            if ours is None or theirs is None or MetricName.parse(name).best is not None:
                continue
            if theirs < ours if less_is_better(by) else theirs > ours:
                worse[name] = (*worse.get(name, ()), domain)
            elif ours == theirs:
                level[name] = (*level.get(name, ()), domain)
    return worse, level


def at_validation(run: Selected, source: Records, metric: str) -> Selected:
    """Return the run with `validation METRIC` of the chosen round alone.

    Args:
        run: The run.
        source: Its source records.
        metric: The metric's name, whose value is the mean over the validation domains.

    Example:
        >>> run = Selected("fedavg", "target", 0, 1, {})
        >>> rows = [{"round": r, "role": "ood-validation", "domain": "v", "accuracy": 0.5 + r / 10}
        ...         for r in range(3)]
        >>> at_validation(run, rows, "validation accuracy").metrics
        {'validation accuracy': 0.6}
    """
    rows = [r for r in source if r["role"] == "ood-validation" and r["round"] == run.round]
    return _reported(run, rows, {metric: MetricName.parse(metric).inner})


def value(record: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of one evaluation, None where it is undefined.

    Args:
        record: The evaluation.
        metric: The metric's name; `worst accuracy@region` is the worst over the groups of `region`
            that have examples.

    Example:
        >>> record = {"accuracy@region": {"W": 0.9, "S": 0.6}, "examples@region": {"W": 9, "S": 5}}
        >>> value(record, "worst accuracy@region")
        0.6
    """
    if isinstance(figure := record.get(metric), float):
        return figure
    check_known("metric", names(record), metric)
    if not metric.startswith(WORST):
        return cast("float | None", record[metric])
    name = MetricName.parse(metric)
    sizes, groups = record[f"examples@{name.column}"], record[name.grouped].items()
    defined = [v for group, v in groups if sizes[group] > 0 and v is not None]
    worst = max if name.lower else min
    return worst(defined) if defined else None


def names(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics that a record has; of a grouped metric the worst of its groups."""
    metrics = [k for k in record if k not in KEYS and not k.startswith("examples@")]
    return tuple(WORST + name if "@" in name else name for name in metrics)


def less_is_better(metric: str) -> bool:
    """Return whether less of a metric, grouped or not, is better."""
    return MetricName.parse(metric).lower


def _best(name: str, records: Records, metric: str, ties: Ties) -> int:
    """Return the round with the best mean over the records' domains; see `source_validation`."""
    check_known("ties", TIES, ties)
    answered = Counter(record["round"] for record in records)
    rounds = levels(records, metric)
    most = max((answered[round] for round in rounds), default=0)
    rounds = {round: level for round, level in rounds.items() if answered[round] == most}
    if not rounds:
        raise UnseenError(
            f"{name} cannot select by {metric}: it is undefined in all {len(records)} evaluations "
            f"(at {', '.join(sorted({r['domain'] for r in records}))}).",
            remedy="Choose another metric for the study (AUROC, for one, needs both classes), or "
            "selection = 'last'.",
        )
    sign = 1 if less_is_better(metric) else -1
    measured = ties == "loss" and all("loss" in record for record in records)
    losses = levels(records, "loss") if measured else {}
    return min(rounds, key=lambda r: (sign * rounds[r], losses.get(r, math.inf), r))


def levels(records: Records, metric: str) -> dict[int, float]:
    """Return round -> the mean of a metric over the domains where it is defined, comparable."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if (level := value(record, metric)) is not None:
            rounds[record["round"]].append(level)
    return {round: comparable(mean(levels)) for round, levels in rounds.items()}
