"""What studies' folders say by site, those of one data set put together."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.metrics.evaluation import OF_NUMBERS, OF_TIMES
from unseen.results.by_site import Sites
from unseen.results.comparable import check_data, check_plans
from unseen.results.formats import counted
from unseen.results.metric_name import MetricName
from unseen.results.seeds_by_site import over_seeds, uneven, without_end
from unseen.results.selection import select, value
from unseen.results.statistics import mean
from unseen.results.study_folder import StudyFolder, find
from unseen.spec.length import in_words

#: What parts a run's label from a method's expression.
MARK = ": "


@dataclass(frozen=True)
class Run:
    """A study's folder in a comparison.

    Attributes:
        folder: What the study wrote.
        label: What stands before its methods' names, so that the same method in another folder is
            another row; "" for nothing.
    """

    folder: Path
    label: str = ""

    @classmethod
    def read(cls, text: str) -> "Run":
        """Read `FOLDER` or `LABEL=FOLDER`."""
        label, equals, folder = text.partition("=")
        if not equals or Path(text).exists():
            return cls(find(Path(text)))
        if not label.strip() or MARK in label or "," in label or "|" in label:
            raise UnseenError(
                f"{text!r} names a run by {label!r}.",
                remedy="Take some words without a comma, a bar or a colon before the equals sign.",
            )
        return cls(find(Path(folder)), label.strip())

    def row(self, method: str) -> str:
        """Return what a method of this run is called."""
        return f"{self.label}{MARK}{method}" if self.label else method


def expression(row: str) -> str:
    """Return the expression of a row's method.

    Example:
        >>> expression("no search: fedavg+ga"), expression("fedavg")
        ('fedavg+ga', 'fedavg')
    """
    return row.rpartition(MARK)[2]


def figures(
    runs: Sequence[Run], metric: str | None = None, selection: str | None = None
) -> tuple[Sites, ...]:
    """Return the figures of studies' folders; those of one data set are put together.

    Args:
        runs: The studies.
        metric: What to compare; None for each study's own metric.
        selection: The rule that chooses rounds; None for each study's own.

    Raises:
        UnseenError: If a folder has no finished job with a target, or two hold the same method on
            the same data, and are not told apart by a label.
    """
    by_data: dict[tuple[str, str], list[Sites]] = defaultdict(list)
    digests: dict[str, tuple[str, Path]] = {}
    for run in runs:
        study = StudyFolder.open(run.folder)
        if study.problem:
            raise UnseenError(f"{run.folder} has no study.json that can be read ({study.problem}).")
        own = of_study(study, metric, selection, run)
        dataset = str(study.settings["dataset"])
        check_data(dataset, str(study.identity.get("data", "")), run.folder, digests)
        by_data[dataset, own.metric].append(own)
    return tuple(map(joined, by_data.values()))


def of_study(
    study: StudyFolder, metric: str | None = None, selection: str | None = None,
    run: Run | None = None,
) -> Sites:  # fmt: skip
    """Return the figures of one study at the rounds that a rule selects; see `figures`."""
    name, rule = metric or study.metric, selection or study.settings["selection"]
    row_of = (run or Run(study.path)).row
    if (best := MetricName.parse(name).best) is not None:
        raise UnseenError(
            f"{name} is best at {best}, and neither high nor low: methods are not compared by it.",
            remedy="Compare by log-loss or brier; the study's table shows it.",
        )
    plan = study.settings.get("holdout")
    if isinstance(plan, dict) and "growing" in plan:
        raise UnseenError(
            f"{study.path} trains on one source more in every task, at the same targets: its tasks "
            "are not repetitions.",
            remedy="Look at its table, or compare studies that leave sites out.",
        )
    by_task: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    groups, judged, diverged = set(), set[str](), list[tuple[str, str]]()
    for job in study.jobs():
        if job.state == "diverged":
            diverged.append((row_of(job.job.method), job.job.task))
        if job.state != "done":
            continue
        groups.add(frozenset(record["domain"] for record in job.target))
        round_ = select(rule, job.source, job.target, study.metric)
        judged |= {name for record in (*job.constant, *job.target) for name in record}
        for record in job.target:
            if record["round"] == round_ and (figure := value(record, name)) is not None:
                at = by_task[row_of(job.job.method)][record["domain"]]
                at.setdefault(job.job.seed, []).append(figure)
    if not by_task:
        raise UnseenError(
            f"{study.path} has no finished job with {name} at a target.",
            remedy="Let the study run on, or name another --metric.",
        )
    by_seed = {
        method: {site: {k: mean(x) for k, x in seeds.items()} for site, seeds in sites.items()}
        for method, sites in by_task.items()
    }
    means = over_seeds(by_seed)
    seeds = min(len(own) for sites in by_seed.values() for own in sites.values())
    dataset = str(study.settings["dataset"])
    texts = [f"{rule}, {counted(seeds, 'seed')}", *uneven(by_seed), *without_end(diverged)]
    if alone(plan):
        texts.append("a site's figure is the mean over the other sites' own models")
    lines = tuple(f"{study.path.name}: {text}" for text in texts)
    budgets = {study.path.name: budget(study.settings)}
    classes = not judged & (OF_NUMBERS | OF_TIMES)
    return Sites(dataset, name, means, seeds, lines, frozenset(groups), budgets, classes,
                 json.dumps(plan, sort_keys=True), by_seed)  # fmt: skip


def alone(plan: Any) -> bool:
    """Return whether each site trains alone, so that its model met no other in any plan."""
    return isinstance(plan, Mapping) and "alone" in plan


def budget(settings: Mapping[str, Any]) -> str:
    """Return what a study gives each of its methods: its search, rounds and recipe."""
    tune = settings.get("tune")
    search = f"{tune['trials']} trials by {tune['criterion']}" if tune else "no search"
    if tune and tune.get("rounds"):
        search += f", each of {in_words(tune['rounds'])}"
    if tune and not tune.get("space"):
        search += " of the methods' own options alone"
    recipe = settings.get("training") or {}
    training = ", ".join(
        f"{name} {recipe[name]}" for name in ("optimiser", "epochs") if recipe.get(name)
    )
    sites = "each site alone" if alone(settings.get("holdout")) else ""
    rounds = in_words(settings["rounds"], settings.get("patience"))
    return "; ".join(part for part in (sites, search, rounds, training) if part)


def joined(parts: Sequence[Sites]) -> Sites:
    """Return the figures of several studies of one data set as those of one.

    Models of single sites join those of any plan, at the sites that it leaves out.
    """
    names = [method for part in parts for method in part.figures]
    if twice := sorted({method for method in names if names.count(method) > 1}):
        raise UnseenError(
            f"two of these folders hold {twice[0]} on {parts[0].name}.",
            remedy="Compare folders whose methods differ, or name one, as in tuned=FOLDER.",
        )
    together = [part for part in parts if not alone(json.loads(part.plan or "null"))]
    check_plans([(part.lines[0], part.plan) for part in together if part.plan])
    main = together or parts
    left_out = {site for part in main for own in part.figures.values() for site in own}
    whole = {
        method: {site: figure for site, figure in own.items() if site in left_out}
        for part in parts
        for method, own in part.figures.items()
    }
    by_seed = {
        method: {site: own for site, own in sites.items() if site in left_out}
        for part in parts
        for method, sites in part.by_seed.items()
    }
    lines = tuple(line for part in parts for line in part.lines)
    groups = frozenset().union(*(part.groups for part in main))
    counts = {part.seeds for part in parts}
    budgets = {
        name: f"{text}; {counted(part.seeds, 'seed')}" if len(counts) > 1 else text
        for part in parts
        for name, text in part.budgets.items()
    }
    return replace(parts[0], figures=whole, by_seed=by_seed, seeds=min(counts), lines=lines,
                   groups=groups, budgets=budgets)  # fmt: skip
