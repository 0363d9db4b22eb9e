"""What was not finished: networks that were not flat, and rates at the edge of those tried."""

from collections import defaultdict
from collections.abc import Mapping

from unseen.methods.compose import method as compose
from unseen.studies.execution.flat import is_flat, source_losses
from unseen.studies.results.study_results import Results

#: By which factor rates beyond those tried differ from the last of them.
FURTHER = 5.0


def edges(best: Mapping[str, float], tried: Mapping[str, Mapping[float, object]]) -> dict[
    float, list[str]
]:  # fmt: skip
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
