"""The answer that looks at no input: what it is, how it does, which recipes are better."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import fmean

from unseen.studies.choice.expectation import LEVEL, mean_interval
from unseen.studies.choice.texts import figure_text
from unseen.studies.choice.trials import CONSTANT, REFERENCES, Trial, Trials, average
from unseen.studies.results.study_folder import JobFolder

#: What is always answered, in words: by metric, and for numbers and for other metrics of classes.
SCORES = ("auroc", "auroc-ovr", "auprc")
SHARES = ("loss", "log-loss", "brier", "ece")
MEAN, SCORE = "the mean of the training sites' labels", "the same score"
RISKS = "integrated-brier"  # which Cox's model does not have
RISK = "the same risk"
HAZARDS = "how often the event happened in each interval at the training sites"
SHARE = "the training sites' shares of the classes"
CLASS = "the most frequent class of the training sites"
#: Metrics that reward always answering the most frequent class, and others to look at.
FLATTERED = ("accuracy", "f1-micro")
OTHERS = "metric=balanced-accuracy, or metric=auroc where there are two classes,"


@dataclass(frozen=True)
class Constant:
    """The recommended recipe against the constant answer.

    Attributes:
        what: What is always answered, in words.
        mean: Its figure, the mean over sites.
        gap: What the recipe is better by, the mean over sites; below 0 where it is worse.
        low, high: The interval of this mean over sites, by Student's t.
        better: All recipes whose interval lies above 0; for others than the recommended one,
            corrected for their number.
    """

    what: str
    mean: float
    gap: float
    low: float
    high: float
    better: tuple[str, ...]


def constant_trial(
    jobs: Iterable[JobFolder], metric: str
) -> tuple[Trial | None, str, dict[str, float]]:
    """Return how the constant answer does at the sites left out, and what it answers.

    Args:
        jobs: Of one recipe, each with a group of sites left out; the constant is that of the other
            groups' training rows, judged at the same rows as the recipe.
        metric: The study's.

    Returns:
        The trial and the words, None and "" where no job has recorded such a figure; and site ->
        the share of the positive class, which is the area of equal scores under precision and
        recall.
    """
    figures, judged = defaultdict[str, list[float]](list), set[str]()
    positives: dict[str, float] = {}
    for job in jobs:
        for record in job.constant:
            judged |= record.keys()
            if record.get("auprc") is not None:
                positives[record["domain"]] = record["auprc"]
            if record.get(metric) is not None:
                figures[record["domain"]].append(record[metric])
    means = {site: average(own) for site, own in sorted(figures.items())}
    if not means:
        return None, "", positives
    return Trial(CONSTANT, means), answer_of(metric, judged), positives


def answer_of(metric: str, judged: Collection[str]) -> str:
    """Return in words what is always answered.

    Args:
        metric: The study's.
        judged: All metrics that the answer was judged by, which tell the kind of the labels.

    Example:
        >>> answer_of("auroc", ["accuracy", "auroc"])
        'the same score'
    """
    if "rmse" in judged:
        return MEAN
    if "concordance" in judged:
        return HAZARDS if metric in ("loss", "integrated-brier") and RISKS in judged else RISK
    return SCORE if metric in SCORES else SHARE if metric in SHARES else CLASS


def against_constant(trials: Trials, recipe: str) -> Constant | None:
    """Return a recipe against the constant answer; None where there is none.

    Args:
        trials: All recipes.
        recipe: The one that is recommended.
    """
    figures = trials.at(trials.sites)
    if CONSTANT not in figures:
        return None
    gaps = {name: trials.gaps(name, CONSTANT) for name in figures if name not in REFERENCES}
    low, high = mean_interval(gaps[recipe])
    strict = 1 - (1 - LEVEL) / max(1, len(gaps) - 1)
    better = tuple(
        name
        for name, gap in gaps.items()
        if (low if name == recipe else mean_interval(gap, strict)[0]) > 0
    )
    mean = fmean(figures[CONSTANT])
    return Constant(trials.constant, mean, fmean(gaps[recipe]), low, high, better)


def constant_text(constant: Constant, recipe: str, metric: str) -> str:
    """Return what is said of a recipe that the sites cannot tell from a constant; else "".

    Args:
        constant: The comparison.
        recipe: The recipe.
        metric: What they are compared by.
    """
    if recipe in constant.better:
        return ""
    answer = f"always answering {constant.what}, which has {figure_text(constant.mean, metric)}"
    ends = " to ".join(figure_text(end, metric) for end in (constant.low, constant.high))
    if constant.gap <= 0:
        first = f"{recipe} is no better than {answer}."
    else:
        ahead = figure_text(constant.gap, metric, gap=True)
        first = f"These sites do not show that {recipe} is better than {answer}: it is ahead by "
        first += f"{ahead} on average, with a {LEVEL:.0%} interval from {ends}."
    return " ".join([first, *others_text(constant, metric)])


def others_text(constant: Constant, metric: str) -> list[str]:
    """Return what is said of the other recipes, and of the metric."""
    if constant.better:
        return [f"Better than that are: {', '.join(constant.better)}."]
    lines = [
        "No recipe is shown to be better: by this metric, nothing shows that the inputs predict "
        "the label at a new site."
    ]
    if metric in FLATTERED:
        lines += [f"Check the metric: {OTHERS} does not reward answering the most frequent class."]
    return lines
