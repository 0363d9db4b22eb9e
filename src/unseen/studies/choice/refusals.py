"""Recipes that the settings of a study rule out, before anything is played."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.errors import Incompatible, UnseenError
from unseen.methods.compose import method as compose
from unseen.studies.choice.judged_by import judged_by
from unseen.studies.choice.playing import Candidates, data_of
from unseen.studies.choice.trials import BASE, POOLED
from unseen.studies.execution.runtime import composed
from unseen.studies.settings.study import StudySpec

#: Remarks on data without which a figure cannot be read.
DECISIVE = ("gives the label away", "identifier or name")
#: A site with fewer rows of a class says little of it.
FEWEST = 10


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
        doubts=doubts_of(data),
    )


def doubts_of(data: DataSet) -> tuple[str, ...]:
    """Return warnings about the data: a column that gives the label away, a rare outcome.

    Args:
        data: The study's data set.
    """
    notes = [str(note) for note in data.notes if getattr(note, "check", "") in DECISIVE]
    if data.kind != "classes" or data.classes is None or len(data.classes) != 2:
        return tuple(notes)
    fewest = {domain.name: int(domain.y.bincount(minlength=2).min()) for domain in data.domains}
    rare = [f"{name} ({count})" for name, count in fewest.items() if count < FEWEST]
    if rare:
        listed = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
        notes.append(f"Fewer than {FEWEST} rows have the rarer class at {listed}.")
    return tuple(notes)
