"""What studies' folders say by site, those of one data set put together."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from unseen.core.metrics.evaluation import OF_NUMBERS, OF_TIMES
from unseen.errors import UnseenError
from unseen.studies.results.formats import counted
from unseen.studies.results.metric_name import MetricName
from unseen.studies.results.selection import select, value
from unseen.studies.results.statistics import mean
from unseen.studies.results.study_folder import StudyFolder, find
from unseen.studies.settings.length import in_words
from unseen_papers.compare.by_site import Sites
from unseen_papers.compare.seeds_by_site import over_seeds, uneven, without_end

T = TypeVar("T")
#: What separates a run's label from a method's expression.
MARK = ": "
#: What a label may be.
LABEL = re.compile(r"[\w.'%+-]+( [\w.'%+-]+)*")


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
        if not LABEL.fullmatch(label):
            raise UnseenError(
                f"{label!r} cannot be the label of {folder}.",
                remedy="Take words of letters, digits, dots, hyphens and the signs ', % and +.",
            )
        return cls(find(Path(folder)), label)

    @property
    def name(self) -> str:
        """What the page calls it."""
        return self.label or self.folder.name

    def row(self, method: str) -> str:
        """Return what a method of this run is called."""
        return f"{self.label}{MARK}{method}" if self.label else method


def figures(
    runs: Sequence[Run], metric: str | None = None, selection: str | None = None
) -> tuple[Sites, ...]:
    """Return the figures of studies' folders; those of the same rows are put together.

    Args:
        runs: The studies.
        metric: What to compare; None for each study's own metric.
        selection: The rule that chooses rounds; None for each study's own.

    Raises:
        UnseenError: If a folder has no finished job with a target, or two hold the same method on
            the same data, and are not told apart by a label.
    """
    parts: list[tuple[str, Sites]] = []
    digests: dict[str, tuple[str, Path]] = {}
    names = [run.name for run in runs]
    for run in runs:
        study = StudyFolder.open(run.folder)
        if study.problem:
            raise UnseenError(f"{run.folder} has no study.json that can be read ({study.problem}).")
        dataset = str(study.settings["dataset"])
        # A label stands for several folders; those of one name are told apart by their paths.
        once = run.label or names.count(run.name) == 1
        own = of_study(study, run, run.name if once else str(run.folder), metric, selection)
        check_data(dataset, str(study.identity.get("data", "")), run.folder, digests)
        parts.append((dataset, own))
    # One data set may be written in several ways; records of old versions have no digest.
    by_data: dict[tuple[str, str], list[Sites]] = defaultdict(list)
    for dataset, own in parts:
        rows = digests[dataset][0] if dataset in digests else dataset
        by_data[rows, own.metric].append(own)
    return tuple(map(joined, by_data.values()))


def of_study(
    study: StudyFolder, run: Run, called: str, metric: str | None, selection: str | None
) -> Sites:
    """Return the figures of one study at the rounds that a rule selects.

    Args:
        study: The study.
        run: Its folder and label.
        called: What the page calls it.
        metric: See `figures`.
        selection: See `figures`.
    """
    name, rule = metric or study.metric, selection or study.settings["selection"]
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
    tasks = set(map(str, study.about.get("tasks") or ()))
    for job in study.jobs():
        tasks.add(job.job.task)
        if job.state == "diverged":
            diverged.append((run.row(job.job.method), job.job.task))
        if job.state != "done":
            continue
        groups.add(frozenset(record["domain"] for record in job.target))
        round_ = select(rule, job.source, job.target, study.metric)
        judged |= {name for record in (*job.constant, *job.target) for name in record}
        for record in job.target:
            if record["round"] == round_ and (figure := value(record, name)) is not None:
                at = by_task[job.job.method][record["domain"]]
                at.setdefault(job.job.seed, []).append(figure)
    texts = []
    if alone(plan):
        by_task = of_all(by_task, tasks)
        texts = [
            f"means over the models of single sites, {len(tasks)} in all: at each of all others"
        ]
    if not any(by_task.values()):
        raise UnseenError(
            f"{study.path} has no finished job with {name} at a target.",
            remedy="Let the study run on, or name another --metric.",
        )
    by_seed = {
        run.row(method): {
            site: {k: mean(x) for k, x in seeds.items()} for site, seeds in sites.items()
        }
        for method, sites in by_task.items()
    }
    seeds = min(len(own) for sites in by_seed.values() for own in sites.values())
    dataset = str(study.settings["dataset"])
    notes = (f"{rule}, {counted(seeds, 'seed')}", *without_end(diverged), *texts)
    return Sites(
        dataset, name, over_seeds(by_seed), seeds, tuple(f"{called}: {text}" for text in notes),
        frozenset(groups), {called: budget(study.settings)}, not judged & (OF_NUMBERS | OF_TIMES),
        json.dumps(plan, sort_keys=True), by_seed, {run.row(method): method for method in by_task},
        frozenset(by_seed) if alone(plan) else frozenset(),
    )  # fmt: skip


def of_all(
    figures: Mapping[str, Mapping[str, Mapping[int, list[float]]]], tasks: set[str]
) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Return the figures of seeds of which all single sites' models are there.

    Args:
        figures: Method -> site -> seed -> one figure for each model.
        tasks: The sites that train.
    """
    every = {
        method: {
            site: {k: own for k, own in seeds.items() if len(own) == len(tasks - {site})}
            for site, seeds in sites.items()
        }
        for method, sites in figures.items()
    }
    return {
        method: {site: seeds for site, seeds in sites.items() if seeds}
        for method, sites in every.items()
        if any(sites.values())
    }


def alone(plan: Any) -> bool:
    """Return whether each site trains alone, so that its model met no other in any plan."""
    return isinstance(plan, Mapping) and "alone" in plan


def budget(settings: Mapping[str, Any]) -> str:
    """Return what a study gives each of its methods: its search, rounds and recipe."""
    tune = settings.get("tune")
    search = f"{tune['trials']} trials by {tune['criterion']}" if tune else "no search"
    if tune and tune.get("rounds"):
        search += f", each of {in_words(tune['rounds'], settings.get('patience'))}"
    if tune and not tune.get("space"):
        search += " of the methods' own options alone"
    recipe = settings.get("training") or {}
    training = ", ".join(
        f"{name} {recipe[name]}" for name in ("optimiser", "epochs") if recipe.get(name)
    )
    sites = "each site alone" if alone(settings.get("holdout")) else ""
    rounds = in_words(settings["rounds"], settings.get("patience"))
    return "; ".join(part for part in (sites, search, rounds, training) if part)


def at(figures: Mapping[str, Mapping[str, T]], sites: set[str]) -> dict[str, dict[str, T]]:
    """Return the figures at some sites, of the methods that have any there."""
    return {
        row: there
        for row, own in figures.items()
        if (there := {site: x for site, x in own.items() if site in sites})
    }


def joined(parts: Sequence[Sites]) -> Sites:
    """Return the figures of several studies of one data set as those of one.

    Models of single sites join those of any plan, at the sites that it leaves out.
    """
    names = [method for part in parts for method in part.figures]
    if twice := sorted({method for method in names if names.count(method) > 1}):
        raise UnseenError(
            f"two of these folders hold {twice[0]} on {parts[0].name}.",
            remedy="Compare folders whose methods differ, or label one, as in tuned=FOLDER.",
        )
    together = [part for part in parts if not alone(json.loads(part.plan or "null"))]
    check_plans([(part.lines[0], part.plan) for part in together if part.plan])
    main = together or parts
    left_out = {site for part in main for own in part.figures.values() for site in own}
    whole = at({row: own for part in parts for row, own in part.figures.items()}, left_out)
    by_seed = at({row: own for part in parts for row, own in part.by_seed.items()}, left_out)
    lines = [*(line for part in parts for line in part.lines), *uneven(by_seed)]
    if absent := [f"`{row}`" for row in names if row not in whole]:
        lines.append(f"without a figure at the sites that were left out: {', '.join(absent)}")
    groups = frozenset().union(*(part.groups for part in main))
    counts = {part.seeds for part in parts}
    budgets = {
        name: f"{text}; {counted(part.seeds, 'seed')}" if len(counts) > 1 else text
        for part in parts
        for name, text in part.budgets.items()
    }
    return replace(
        parts[0], figures=whole, by_seed=by_seed, seeds=min(counts),
        lines=tuple(lines), groups=groups, budgets=budgets,
        expressions={row: text for part in parts for row, text in part.expressions.items()},
        alone=frozenset().union(*(part.alone for part in parts)),
    )  # fmt: skip


def check_data(dataset: str, data: str, folder: Path, digests: dict[str, tuple[str, Path]]) -> None:
    """Refuse two folders whose data sets are called alike and are not the same rows.

    Args:
        dataset: What the folder's data set is called.
        data: Its digest.
        folder: The folder.
        digests: Data set -> the digest and the folder that came first; it is filled.
    """
    if not data:  # records of old versions do not say
        return
    digest, first = digests.setdefault(dataset, (data, folder))
    if data != digest:
        raise UnseenError(
            f"{first} and {folder} name the same data set, {dataset}, and were run on other rows "
            f"of it ({digest} and {data}).",
            remedy="Compare runs on the same data.",
        )


def check_plans(plans: Sequence[tuple[str, str]]) -> None:
    """Refuse studies that leave sites out in other groups: their models had other sources.

    Args:
        plans: What each study is called, and its hold-out.
    """
    for name, plan in plans[1:]:
        first, own = plans[0]
        if plan != own:
            raise UnseenError(
                f"{first} and {name} leave sites out by other plans, {own} and {plan}, so that "
                "their models had other sources.",
                remedy="Compare studies of one hold-out.",
            )
