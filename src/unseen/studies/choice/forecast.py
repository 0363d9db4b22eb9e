"""What a choice will take, before anything is trained."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unseen.studies.choice.playing import Candidates
from unseen.studies.choice.rate_search import studies
from unseen.studies.choice.rates import changed, learning_rate, until_flat
from unseen.studies.choice.trials import BASE
from unseen.studies.execution.costs.estimate import Estimate, estimates, report
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.results.study_folder import StudyFolder
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


def forecast(
    planned: Sequence[Plan], processes: int, refused: Mapping[str, str] | None = None
) -> list[str]:
    """Return how many trainings there are, how many are left, and what these take, as lines.

    Every recipe is measured once; its other trainings count as much.

    Args:
        planned: What `plans` returns.
        processes: How many run at a time.
        refused: Recipe that is not played -> why.
    """
    missing = Counter(job.method for plan in planned for job in plan.missing)
    results, peak = list[Estimate](), 0.0
    for plan in planned:
        fresh = set(missing) - {one.method for one in results}
        names = tuple(name for name in plan.methods if name in fresh)
        costs, memory = estimates(replace(plan, methods=names))
        results += [replace(one, jobs=missing[one.method]) for one in costs]
        peak = max(peak, memory)
    total, left = sum(len(plan.jobs) for plan in planned), missing.total()
    lines = [f"trainings: {total}, of which {left} are still to run"]
    unable = dict(refused or {})
    for plan in planned:
        unable |= plan.not_applicable
    lines += [f"not applicable: {name}, which {why}" for name, why in unable.items()]
    lines += [f"warning: {text}" for text in dict.fromkeys(w for p in planned for w in p.warnings)]
    return lines + report(results, peak, processes)
