"""From the selected rounds of jobs to a table with its ranks, tests and notes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Self

from unseen.errors import UnseenError, check_known
from unseen.studies.results.comparison import compare
from unseen.studies.results.formats import caption, line, scale_of
from unseen.studies.results.metric_name import MetricName
from unseen.studies.results.published_rows import DIFFERENCES, Printed
from unseen.studies.results.selection import Selected, less_is_better
from unseen.studies.results.statistics import Cell, mean, quantile
from unseen.studies.results.tables import FEW, Summary, Table
from unseen.studies.settings.wording import either

#: How many targets a note names of each method, where it would name more.
NAMED = 8
#: Why a metric may have no value, in a word or two where targets are listed, and in a sentence.
REASONS = {
    **dict.fromkeys(
        ("auroc", "auprc", "auprc-of-decisions"), ("one class", "its examples are of one class")
    ),
    "r2": ("equal labels", "its labels are all equal"),
    "pearson": ("equal labels or predictions", "its labels or the predictions are all equal"),
}


#: Of a run: its method, task and seed.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Layout:
    """What a table has beside its figures.

    Attributes:
        methods: The rows; by default those of the results, as are tasks and seeds.
        tasks: The columns.
        seeds: The seeds that a cell should have.
        not_applicable: Method -> why it cannot run.
        protocol: Lines for the foot.
        title: What the table is called.
        unit: What a task is, in a word.
    """

    methods: Sequence[str] = ()
    tasks: Sequence[str] = ()
    seeds: Sequence[int] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    protocol: Sequence[str] = ()
    title: str = ""
    unit: str = "target"

    def of_runs(self, keys: Iterable[Key]) -> Self:
        """Return the layout with the methods, tasks and seeds of runs where it names none."""
        every = tuple(keys)
        ran = dict.fromkeys(self.methods or (*(m for m, _, _ in every), *self.not_applicable))
        whole = replace(
            self,
            methods=tuple(ran),
            tasks=tuple(self.tasks or dict.fromkeys(t for _, t, _ in every)),
            seeds=tuple(self.seeds or sorted({s for _, _, s in every})),
        )
        if not (whole.methods and whole.tasks and whole.seeds):
            raise UnseenError("a table needs a method, a task and a seed; no job is finished yet.")
        return whole


def table(
    results: Iterable[Selected],
    metric: str,
    layout: Layout | None = None,
    reference: str | None = None,
    test: str | None = None,
    published: Printed | None = None,
) -> Table:
    """Return the table of a metric over methods, tasks and seeds.

    Args:
        results: The selected round of every finished job.
        metric: What to show.
        layout: What the table has beside its figures.
        reference: The method that all others are compared with, in two more columns.
        test: Which p is shown there, `wilcoxon` or `t`; None: `t` next to a paper's p, else the
            other.
        published: A paper's figures, in rows below, and how far ours are from them.

    Note:
        `average` is the mean over tasks per seed, over the seeds that finished all tasks; `worst`,
        where there are several, the same with the worst task. Both, and ranks and tests, leave out
        a task whose data leave the metric undefined, whatever the method.

    Example:
        >>> runs = [Selected("fedavg", t, s, 9, {"accuracy": a}) for t, s, a in
        ...         [("0", 0, 0.90), ("0", 1, 0.92), ("15", 0, 0.80), ("15", 1, 0.86)]]
        >>> print(table(runs, "accuracy", Layout(protocol=["selection: source-validation"])))
        method           0          15     average       worst
        ------------------------------------------------------
        fedavg  91.0 ± 1.0  83.0 ± 3.0  87.0 ± 2.0  83.0 ± 3.0
        accuracy in percent, mean ± standard error over 2 seeds; higher is better
        selection: source-validation
    """
    runs = by_key(results, metric)
    layout = (layout or Layout()).of_runs(runs)
    printed, lower = published or Printed(), less_is_better(metric)
    methods, tasks, seeds = tuple(layout.methods), tuple(layout.tasks), tuple(layout.seeds)
    present = tuple(runs[key] for key in product(methods, tasks, seeds) if key in runs)
    ordered = MetricName.parse(metric).best is None
    lacking = _lacking(present, metric, tasks)
    counted = tuple(t for t in tasks if t not in lacking)
    parts: dict[str, tuple[Sequence[str], Summary]] = {task: ((task,), mean) for task in tasks}
    parts["average"] = counted, mean
    if ordered and len(tasks) > 1:
        parts["worst"] = counted, max if lower else min
    cells = tuple(
        tuple(_cell(runs, metric, layout, method, *part) for part in parts.values())
        for method in methods
    )
    share = 0.9 if lower else 0.1
    bad_end = partial(quantile, share=share)
    tail = tuple(
        _cell(runs, metric, layout, method, counted, bad_end)
        for method in methods
        if ordered and len(tasks) >= FEW
    )
    columns = tuple(parts)
    summaries = (*columns[len(tasks) :], *[f"{100 * share:.0f}th percentile"] * bool(tail))
    notes = [caption(metric, len(seeds), lower)]
    compared = reference is not None and ordered
    notes += _left_out(metric, layout, lacking, (*summaries, *(("rank", "p") if compared else ())))
    notes += _undefined(present, metric, summaries, lacking)
    notes += _beaten(present, metric, len(seeds))
    refused = layout.not_applicable
    notes += [f"n/a: {m} {refused[m]}" for m in methods if m in refused]
    comparison = None
    if reference is not None and ordered:
        values = {key: x for key, run in runs.items() if (x := run.metrics[metric]) is not None}
        verdict = bool(printed.tests)
        test = test or ("t" if verdict else "wilcoxon")
        comparison = compare(values, methods, counted, seeds, reference, lower, test, verdict)
        notes += comparison.notes
    differences = printed.differences(methods, columns, cells, scale_of(metric))
    notes += [DIFFERENCES] * bool(differences) + list(printed.notes)
    return Table(
        metric,
        methods,
        columns,
        cells,
        present,
        tuple(map(line, [*dict.fromkeys(notes), *layout.protocol])),
        line(layout.title),
        comparison,
        printed.texts(comparison.columns[1] if comparison else None),
        differences,
        tasks,
        tail,
        layout.unit,
        counted,
    )


def by_key(results: Iterable[Selected], metric: str) -> dict[Key, Selected]:
    """Return the runs by method, task and seed, each of which may be there once."""
    runs: dict[Key, Selected] = {}
    for run in results:
        check_known("metric", run.metrics, metric)
        if (key := (run.method, run.task, run.seed)) in runs:
            raise UnseenError(f"one result per method, task and seed; found two of {key}.")
        runs[key] = run
    return runs


def _cell(
    runs: Mapping[Key, Selected],
    metric: str,
    layout: Layout,
    method: str,
    over: Sequence[str],
    summary: Summary,
) -> Cell:
    """Return the summary of the tasks in `over`, per seed that finished all of them."""
    keys = [[(method, t, s) for t in over] for s in layout.seeds]
    full = [[runs[k].metrics[metric] for k in ks] for ks in keys if all(k in runs for k in ks)]
    values = [summary([x for x in xs if x is not None]) for xs in full if None not in xs]
    undefined, applies = len(full) - len(values), method not in layout.not_applicable
    return Cell(tuple(values), undefined, len(layout.seeds), applies)


def _left_out(
    metric: str, layout: Layout, lacking: Mapping[str, str], summaries: Sequence[str]
) -> list[str]:
    """Return a line on the tasks that no summary counts, if there are any."""
    if not lacking:
        return []
    count = len(layout.tasks)
    omitted = ", ".join(f"{task} ({why})" if why else task for task, why in lacking.items())
    return [
        f"{either(summaries, 'and')} over the {count - len(lacking)} of {count} {layout.unit}s "
        f"where {metric} is defined; not at: {omitted}"
    ]


def _lacking(runs: Sequence[Selected], metric: str, tasks: Sequence[str]) -> dict[str, str]:
    """Return the tasks whose data leave the metric undefined, each with why, in short.

    Returns:
        Those where no method has the metric with some seed, jobs that diverged aside. {} where that
        is so of every task, since no task would remain to average over.
    """
    ended = [run for run in runs if run.round >= 0]
    defined = {(run.task, run.seed) for run in ended if run.metrics[metric] is not None}
    without = {run.task for run in ended if (run.task, run.seed) not in defined}
    reason, _ = REASONS.get(MetricName.parse(metric).metric, ("", ""))
    return {t: reason for t in tasks if t in without} if len(without) < len(tasks) else {}


def _undefined(
    runs: Sequence[Selected], metric: str, summaries: Sequence[str], lacking: Mapping[str, str]
) -> list[str]:
    """Return where else a metric has no value, why, and what happens to the means over it."""
    _, reason = REASONS.get(MetricName.parse(metric).metric, ("", ""))
    why = f": {reason}" if reason else ""
    notes = []
    for run in runs:
        of, then = "", "the task's mean leaves it out"
        if run.metrics[metric] is None:
            of = f" of {run.method}"
            then = f"that seed is in no {either(summaries)}{of}"
        for domain in run.undefined.get(metric, ()) if run.task not in lacking else ():
            notes.append(f"{metric}{of} is undefined at {domain} (task {run.task}){why}; {then}")
    if any(run.round < 0 for run in runs):
        means = either(summaries)
        notes.append(f"a seed with a job that diverged is in no {means} of its method")
    return notes


def _beaten(runs: Sequence[Selected], metric: str, seeds: int) -> list[str]:
    """Return where an answer without any input is better, and where as good, a line of each."""
    worse = {"worse than": [run.worse for run in runs], "level with": [run.level for run in runs]}
    return [
        f"{words} a constant: {lines}"
        for words, places in worse.items()
        if (lines := _places(runs, [own.get(metric, ()) for own in places], seeds))
    ]


def _places(runs: Sequence[Selected], places: Sequence[Sequence[str]], seeds: int) -> str:
    """Return methods with target domains, of each run its own."""
    single = len({run.task for run in runs}) == 1
    counts: dict[str, Counter[str]] = {}
    for run, domains in zip(runs, places, strict=True):
        for domain in domains:
            # Plans of several tasks may have one target, such as growing ones.
            at = domain if single or run.task == domain else f"{domain} (task {run.task})"
            counts.setdefault(run.method, Counter())[at] += 1
    lines = []
    tried = {(run.task, domain) for run in runs for domain in run.domains}
    targets = len(tried or {run.task for run in runs})
    for method, spots in counts.items():
        often = {at: f" ({n} of {seeds} seeds)" if n < seeds else "" for at, n in spots.items()}
        everywhere = len(often) == targets > 2 and not any(often.values())
        names = [name + n for name, n in often.items()]
        more = [f"{len(names) - NAMED} more"] if len(names) > NAMED + 1 else []
        listed = ", ".join(names[:NAMED] + more if more else names)
        lines.append(f"{method} at {f'all {targets} targets' if everywhere else listed}")
    return "; ".join(lines)
