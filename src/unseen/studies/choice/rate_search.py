"""Recipes at several learning rates, until flat: what became of each, and what was not finished."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from unseen.errors import Incompatible, UnseenError
from unseen.methods.compose import method as compose
from unseen.studies.choice.rates import changed, until_flat
from unseen.studies.choice.trials import REFERENCES, Cost, at_targets, average, best_rate
from unseen.studies.execution import Study
from unseen.studies.results.ends import is_flat, source_losses
from unseen.studies.results.selection import less_is_better
from unseen.studies.results.study_results import Results
from unseen.studies.settings.study import StudySpec

#: (study, folder of the records) -> its results.
Run = Callable[[Study, Path], Results]
#: Why a recipe has no figures.
DIVERGED = "diverged at every rate"
#: How often rates beyond the largest or the smallest are tried.
WIDER = 2


@dataclass
class Played:
    """What studies that differ in the learning rate alone leave.

    Attributes:
        results: Of the last of them.
        figures: Recipe -> rate's factor -> site -> one figure for each seed.
        costs: Recipe -> those of its runs.
        rows: Site -> how many rows its figures are of.
        refused: Recipe -> why it has no figures.
        metric: What the figures are.
        improving: Recipe -> rate's factor -> how many trainings ended before they were flat, and
            how many there are.
        ran, diverged: Recipe -> how often it was played, and how often it diverged.
    """

    results: Results
    metric: str
    figures: dict[str, dict[float, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    improving: dict[str, dict[float, tuple[int, int]]] = field(default_factory=dict)
    ran: Counter[str] = field(default_factory=Counter)
    diverged: Counter[str] = field(default_factory=Counter)

    @property
    def undefined(self) -> str:
        """Why a recipe that did not diverge has no figures."""
        return f"has no {self.metric} at any site"

    def add(self, factor: float, results: Results) -> None:
        """Add what a study at one rate left."""
        self.results = results
        self.refused |= results.not_applicable
        self.diverged.update({job.method for job in results.diverged()})
        self.ran.update(results.methods)
        for name, by_site in at_targets(results, self.metric, self.rows, self.costs).items():
            self.figures.setdefault(name, {})[factor] = by_site
        for name, counts in unfinished(results).items():
            self.improving.setdefault(name, {})[factor] = counts

    def means(self, recipe: str) -> dict[float, dict[str, float]]:
        """Return rate's factor -> site -> the mean over seeds."""
        return {
            factor: {site: average(values) for site, values in by_site.items()}
            for factor, by_site in self.figures[recipe].items()
        }


class Rated(NamedTuple):
    """A study at a multiple of the learning rate, and the folder of its records."""

    factor: float
    study: Study
    folder: Path


@dataclass(frozen=True)
class Search:
    """How recipes are played, whichever sites are left out.

    Attributes:
        study: The settings that all recipes share.
        rates: Factors of its learning rate.
        run: Runs a study, with its records in a folder.
        metric: What recipes are judged by; "" for the study's.
        say: Receives lines of progress.
        flat: Whether recipes that train by rounds do so until flat.
        wider: Whether rates beyond those are tried where the best is the last of them.
        affords: Whether there is time for the records of such a rate, which may be there already.
    """

    study: StudySpec
    rates: Sequence[float]
    run: Run
    metric: str = ""
    say: Callable[[str], None] = lambda line: None
    flat: bool = False
    wider: bool = False
    affords: Callable[[Path], bool] = lambda folder: True

    def played(self, recipes: Sequence[str], holdout: Any, out: Path) -> Played:
        """Play recipes, those that train by rounds at every rate."""
        played, refused = None, dict[str, str]()
        for rated in studies(self.study, self.rates, recipes, holdout, out, self.flat):
            played = self._add(played, rated, refused)
        if played is None:
            raise UnseenError("rates is empty.", remedy="Name one, such as 1.")
        lower = less_is_better(played.metric)
        for _ in range(WIDER if self.wider else 0):
            able = [n for n in recipes if n in played.figures and n not in REFERENCES]
            by_rounds = [name for name in able if compose(name).rounds is None]
            best = {name: best_rate(played.means(name), lower) for name in by_rounds}
            for factor, names in edges(best, played.figures).items():
                further = studies(self.study, [factor], names, holdout, out, self.flat)
                for rated in further:
                    if self.affords(rated.folder):
                        played = self._add(played, rated, refused)
        played.refused |= refused
        for name in played.ran:
            if name not in played.figures and name not in played.refused:
                diverged = played.diverged[name] == played.ran[name]
                played.refused[name] = DIVERGED if diverged else played.undefined
        return played

    def _add(self, played: Played | None, rated: Rated, refused: dict[str, str]) -> Played:
        """Play a study of what is not refused, and add it to what was played."""
        able = tuple(name for name in rated.study.methods if name not in refused)
        if not able and played is not None:
            return played
        study = rated.study if able == rated.study.methods else only(rated.study, able)
        self.say(f"learning rate × {rated.factor:g}: {', '.join(able)}")
        results = self.tried(study, rated.folder, refused)
        if played is None:
            played = Played(results, self.metric or results.metric)
        played.add(rated.factor, results)
        return played

    def tried(self, study: Study, folder: Path, refused: dict[str, str]) -> Results:
        """Run a study without the recipes whose training is refused on the way.

        Args:
            study: The study.
            folder: Of its records.
            refused: Recipe -> why; those that are refused here are added.

        Raises:
            UnseenError: What refuses all recipes.
        """
        try:
            return self.run(study, folder)
        except UnseenError as error:
            if len(study.methods) == 1:
                raise
            first = error
        own: dict[str, str] = {}
        for name in study.methods:
            try:
                self.run(only(study, (name,)), folder)
            except UnseenError as error:
                why = error.why if isinstance(error, Incompatible) else str(error)
                own[name] = f"cannot be trained here: {why.rstrip('.')}"
        able = tuple(name for name in study.methods if name not in own)
        if all(name in REFERENCES for name in able):
            raise first
        for name, why in own.items():
            if name not in REFERENCES:
                self.say(f"not judged: {name}, which {why}")
        refused |= own
        return self.run(only(study, able), folder)


def only(study: Study, methods: tuple[str, ...]) -> Study:
    """Return the study with some of its methods."""
    return Study(**study.model_dump(exclude_defaults=True) | {"methods": methods})


def studies(
    study: StudySpec,
    rates: Sequence[float],
    recipes: Sequence[str],
    holdout: Any,
    out: Path,
    flat: bool = False,
) -> Iterator[Rated]:
    """Yield a study for every rate, with the recipes that train by rounds.

    Exact models have no rate, and mixtures find their members' own or hold the study's; both end
    by themselves, and have a study of their own where others train until flat.

    Args:
        study: The settings that all recipes share.
        rates: Factors of its learning rate.
        recipes: Expressions of methods.
        holdout: The plan of sites left out.
        out: The folder of the records.
        flat: Whether recipes that train by rounds do so until flat.
    """
    by_rounds = [name for name in recipes if compose(name).rounds is None]
    exact = [name for name in recipes if name not in by_rounds]
    if flat and exact and (1 in rates or not by_rounds):
        yield Rated(1.0, changed(study, exact, holdout, 1.0), out / "exact")
    for factor in sorted(rates, key=lambda rate: (rate != 1, rate)):
        with_exact = not flat and (factor == 1 or 1 not in rates)
        if methods := [*by_rounds, *(exact if with_exact else ())]:
            own = until_flat(study) if flat else study
            yield Rated(factor, changed(own, methods, holdout, factor), out / f"rate-{factor:g}")


#: By which factor rates beyond those tried differ from the last of them.
FURTHER = 5.0


def edges(
    best: Mapping[str, float], tried: Mapping[str, Mapping[float, object]]
) -> dict[float, list[str]]:
    """Return one more rate -> the recipes whose best rate is the last in its direction.

    Args:
        best: Recipe -> the factor that is best over all sites.
        tried: Recipe -> the factors that it was tried at.

    Example:
        >>> edges({"a": 5.0, "b": 1.0}, {"a": {1.0: 0, 5.0: 0}, "b": {1.0: 0, 0.2: 0, 5.0: 0}})
        {25.0: ['a']}
    """
    further = defaultdict[float, list[str]](list)
    for name, factor in best.items():
        if factor == max(tried[name]) != min(tried[name]):
            further[float(f"{FURTHER * factor:.6g}")].append(name)
        elif factor == min(tried[name]) != max(tried[name]):
            further[float(f"{factor / FURTHER:.6g}")].append(name)
    return dict(further)


def unfinished(results: Results) -> dict[str, tuple[int, int]]:
    """Return recipe -> how many of its trainings ended before they were flat, and how many ran.

    Of a study with as many rounds as it says, and of methods that end by themselves, nothing is
    known.

    Args:
        results: Of a study.
    """
    study = results.study
    if study.patience is None:
        return {}
    counts: dict[str, tuple[int, int]] = {}
    for job in results.folders():
        name = job.job.method
        if job.state != "done" or compose(name).rounds is not None:
            continue
        cut, ran = counts.get(name, (0, 0))
        flat = is_flat(source_losses(job.source), study.patience)
        counts[name] = cut + (not flat), ran + 1
    return counts


def remarks(
    improving: Mapping[str, Mapping[float, tuple[int, int]]],
    best: Mapping[str, float],
    tried: Mapping[str, Mapping[float, object]],
    rounds: int,
) -> dict[str, str]:
    """Return recipe -> what of it was not finished, in words; only those of which something was.

    Args:
        improving: Recipe -> rate's factor -> trainings that were not flat, and all of them.
        best: Recipe -> the factor that is best over all sites.
        tried: Recipe -> the factors that it was tried at.
        rounds: The limit.
    """
    words: dict[str, str] = {}
    for name, factor in best.items():
        cut, ran = improving.get(name, {}).get(factor, (0, 0))
        parts = (
            [f"still improving after {rounds} rounds in {cut} of {ran} trainings"] if cut else []
        )
        factors = tried[name]
        if (
            len(factors) > 1
            and compose(name).rounds is None
            and factor in (max(factors), min(factors))
        ):
            last = "largest" if factor == max(factors) else "smallest"
            parts.append(f"best at the {last} learning rate tried, × {factor:g}")
        if parts:
            words[name] = " and ".join(parts)
    return words
