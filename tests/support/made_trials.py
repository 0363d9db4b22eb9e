"""Trials of recipes whose figures are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unseen.studies.choice import Trials
from unseen.studies.choice.trials import Trial
from unseen.studies.settings.study import StudySpec


def trials(
    figures: Mapping[str, Sequence[float]],
    sent: Mapping[str, float] | None = None,
    metric: str = "accuracy",
    lower: bool = False,
    per_group: int = 1,
    sees: Mapping[str, Any] | None = None,
) -> Trials:
    """Recipes with these figures at s00, s01, ..., `per_group` of them in a group."""
    sites = [f"s{k:02d}" for k in range(len(next(iter(figures.values()))))]
    groups = {sites[i]: tuple(sites[i : i + per_group]) for i in range(0, len(sites), per_group)}
    sent, sees, by_recipe = sent or {}, sees or {}, {}
    for name, values in figures.items():
        at = dict(zip(sites, map(float, values), strict=True))
        cost, form = sent.get(name, 1.0), sees.get(name, "scalars")
        by_recipe[name] = Trial(name, at, upload=cost, sees=form)
    rows = dict.fromkeys(sites, 10**12)  # no figure is one of few rows
    return Trials(by_recipe, metric, lower, groups, rows, {}, "made 0", StudySpec())
