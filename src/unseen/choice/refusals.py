"""Recipes that the settings of a study rule out, before anything is played."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unseen.choice.judged_by import judged_by
from unseen.choice.playing import Candidates, data_of
from unseen.choice.trials import BASE, POOLED
from unseen.datasets.dataset import DataSet
from unseen.errors import Incompatible, UnseenError
from unseen.methods.compose import method as compose
from unseen.spec.study import StudySpec
from unseen.study.runtime import composed


def refused_by_settings(study: StudySpec, recipes: Sequence[str], data: DataSet) -> dict[str, str]:
    """Return recipe -> why a study's privacy or kind of labels rules it out.

    Args:
        study: The settings that all recipes share.
        recipes: Expressions of methods.
        data: The study's data set.

    Raises:
        UnseenError: A recipe is mistyped, or the settings rule out the recipe that all others are
            compared with.
    """
    refused = {}
    for name in recipes:
        compose(name)
        try:
            composed(name, study, data)
        except UnseenError as error:
            if name == BASE:
                raise
            why = error.why if isinstance(error, Incompatible) else str(error)
            refused[name] = f"cannot be played with these settings: {why.rstrip('.')}"
    return refused


def served(candidates: Candidates, data_dir: Path | None) -> Candidates:
    """Return the candidates without those that the study's settings rule out.

    Args:
        candidates: What would be played.
        data_dir: The data folder.
    """
    data = data_of(candidates.study, data_dir)
    refused = refused_by_settings(candidates.study, candidates.rows, data)
    judged = judged_by(candidates.study, data)
    return replace(
        candidates,
        study=judged.study,
        metric=judged.metric,
        why_metric=judged.why,
        recipes=tuple(name for name in candidates.recipes if name not in refused),
        pool=candidates.pool and POOLED not in refused,
        refused=refused,
    )
