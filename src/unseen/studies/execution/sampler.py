"""What to try next: Optuna's samplers and its pruner, asked and told."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError, optional
from unseen.ranges import Search
from unseen.studies.settings.search_space import DIGITS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

    from unseen.studies.settings.search_plan import Tune


class Sampler:
    """One search's trials.

    Args:
        tune: The study's search.
        ranges: Name -> what is tried.
        name: Of the search, which draws differ by.
        lower: Whether less is better.
    """

    def __init__(self, tune: Tune, ranges: Mapping[str, Search], name: str, lower: bool) -> None:
        optuna = needed()
        self.ranges, self.reported = ranges, dict[int, set[int]]()
        seed = int.from_bytes(hashlib.sha256(f"{tune.seed}/{name}".encode()).digest()[:4], "big")
        samplers = optuna.samplers
        kind = samplers.TPESampler if tune.sampler == "tpe" else samplers.RandomSampler
        pruner = optuna.pruners.NopPruner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.simplefilter("ignore", UserWarning)  # lists cannot lie in Optuna's data base
            self.distributions = {key: distribution(value) for key, value in ranges.items()}
            if tune.prune:
                pruner = optuna.pruners.WilcoxonPruner(p_threshold=tune.prune)
            direction = "minimize" if lower else "maximize"
            self.study = optuna.create_study(
                direction=direction, sampler=kind(seed=seed), pruner=pruner
            )
        if tune.sampler == "grid":
            for values in product(*grid(ranges).values()):
                self.study.enqueue_trial(dict(zip(ranges, values, strict=True)))

    def ask(self) -> tuple[Trial, dict[str, Any]]:
        """Return a trial and its values, with as many digits as a person would write."""
        trial = self.study.ask(self.distributions)
        return trial, {name: plain(value) for name, value in trial.params.items()}

    def knows(self, values: Mapping[str, Any], figures: Mapping[int, float], value: float) -> None:
        """Tell the sampler of a trial that it did not ask for, if it could have.

        Args:
            values: Name of a range -> value.
            figures: A site's place -> its figure.
            value: Their mean.
        """
        from optuna.trial import create_trial

        reached = set(values) == set(self.distributions) and all(
            inside(self.ranges[name], own) for name, own in values.items()
        )
        if reached:
            self.study.add_trial(
                create_trial(
                    params=dict(values),
                    distributions=self.distributions,
                    value=value,
                    intermediate_values=dict(figures),
                )
            )

    def worse(self, trial: Trial, figures: Mapping[int, float]) -> bool:
        """Return whether a trial may stop after these sites; each is compared with itself."""
        self.report(trial, figures)
        return trial.should_prune()

    def report(self, trial: Trial, figures: Mapping[int, float]) -> None:
        """Tell the sampler the figures that it does not know yet."""
        steps = self.reported.setdefault(trial.number, set())
        for step, figure in sorted(figures.items()):
            if step not in steps:
                trial.report(figure, step)
        steps.update(figures)

    def tell(self, trial: Trial, figures: Mapping[int, float], value: float | None) -> None:
        """Tell the sampler what became of a trial.

        Args:
            trial: The trial.
            figures: A site's place -> its figure.
            value: Their mean; None for one that diverged or was pruned, which is worse than all
                that came to their end. Of a trial that failed a sampler would learn nothing, and
                go on to try what diverges.
        """
        from optuna.trial import TrialState

        self.report(trial, figures)
        if value is not None:
            self.study.tell(trial, value)
        else:
            self.study.tell(trial, state=TrialState.PRUNED)


def needed() -> Any:
    """Return Optuna, its log switched off.

    Raises:
        UnseenError: If it is not installed.
    """
    optuna = optional("optuna", "a search of settings needs", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def distribution(search: Search) -> BaseDistribution:
    """Return a range as Optuna has it."""
    from optuna import distributions

    if search.kind == "one":
        return distributions.CategoricalDistribution(search.values)
    low, high = search.values
    if search.kind == "whole":
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=search.kind == "log")


def grid(ranges: Mapping[str, Search]) -> dict[str, list[Any]]:
    """Return the values of every range, for all combinations.

    Raises:
        UnseenError: If a range has no list of values.
    """
    for name, search in ranges.items():
        if search.kind not in ("one", "whole"):
            raise UnseenError(
                f"tune.sampler = 'grid' tries all combinations of lists, and {name} is {search}.",
                remedy=f"Write {name} as one(VALUE, ...), set it, or take the sampler 'random'.",
            )
    return {
        name: list(s.values if s.kind == "one" else range(s.values[0], s.values[1] + 1))
        for name, s in ranges.items()
    }


def combinations(ranges: Mapping[str, Search]) -> int:
    """Return how many combinations a grid has."""
    return math.prod(map(len, grid(ranges).values()))


def inside(search: Search, value: Any) -> bool:
    """Return whether a range has the value."""
    if search.kind == "one":
        return value in search.values
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and search.values[0] <= value <= search.values[1]


def plain(value: Any) -> Any:
    """Return a number with a few digits; anything else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
