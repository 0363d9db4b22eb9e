"""What a choice will take, before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unseen.studies.choice.playing import Candidates
from unseen.studies.choice.rate_search import studies
from unseen.studies.choice.rates import changed, learning_rate, until_flat
from unseen.studies.choice.trials import BASE
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.results.study_folder import StudyFolder
from unseen.studies.settings.length import in_words
from unseen.studies.settings.study import StudySpec


def plans(candidates: Candidates, out: Path, data_dir: Path | None = None) -> list[Plan]:
    """Return the checked plan of every study that `play` runs for these candidates.

    The rate of a site's own model is known only afterwards; the study's stands for it until then.

    Args:
        candidates: What would be played.
        out: The folder of the records.
        data_dir: The data folder.
    """
    study, rates, holdout = candidates.study, candidates.rates, {"groups": candidates.groups}
    whole = [
        prepare_study(one, folder, data_dir)
        for _, one, folder in studies(study, rates, candidates.rows, holdout, out, candidates.flat)
    ]
    if not candidates.alone:
        return whole
    factor = recorded_factor(study, out / "alone")
    own = until_flat(study) if candidates.flat else study
    alone = changed(own, [BASE], {"alone": True}, factor)
    # One site's troubles are not those of the study.
    return [*whole, replace(prepare_study(alone, out / "alone", data_dir), warnings=())]


def recorded_factor(study: StudySpec, folder: Path) -> float:
    """Return the factor of the learning rate of what a folder holds; 1 where it holds nothing."""
    optimiser = StudyFolder.open(folder).settings.get("training", {}).get("optimiser")
    if optimiser is None:
        return 1.0
    return learning_rate(optimiser) / learning_rate(study.training.optimiser)


def forecast(planned: Sequence[Plan], refused: Mapping[str, str] | None = None) -> list[str]:
    """Return lines with the number of trainings, how many are left, and their length.

    Args:
        planned: What `plans` returns.
        refused: Recipe that is not played -> why.
    """
    total = sum(len(plan.jobs) for plan in planned)
    left = sum(len(plan.missing) for plan in planned)
    lines = [f"trainings: {total}, of which {left} are still to run"]
    specs = [plan.setting.study for plan in planned]
    lengths = dict.fromkeys(in_words(spec.rounds, spec.patience) for spec in specs)
    lines.append(f"length of a training: {' or '.join(lengths)}, unless its recipe sets another")
    unable = dict(refused or {})
    for plan in planned:
        unable |= plan.not_applicable
    lines += [f"not applicable: {name}, which {why}" for name, why in unable.items()]
    return lines + [
        f"warning: {text}" for text in dict.fromkeys(w for p in planned for w in p.warnings)
    ]
