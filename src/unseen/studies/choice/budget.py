"""How long a choice takes: the time left, and what a budget of time does not hold."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.methods.portfolio import TABLES as MEMBERS
from unseen.studies.choice.trials import BASE
from unseen.studies.results import records
from unseen.studies.results.records import Job
from unseen.studies.tracking.progress_bar import Shown

#: Seconds of the units of a budget.
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
#: Exact fits, which a mixture of them fits once more for each group of sites and for the whole.
EXACT = ("glm", "boost", "forest")
#: Groups, rates and members of a portfolio; see `unseen.methods.portfolio`.
GROUPS, RATES, ENSEMBLE = 5, 3, 3


class Spent(Exception):
    """The budget does not hold what is left of a recipe."""


def seconds_of(text: str) -> float:
    """Return the seconds of a budget.

    Example:
        >>> seconds_of("10min"), seconds_of("1.5 h"), seconds_of("90s")
        (600.0, 5400.0, 90.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    if match is None or not float(match[1]):
        raise UnseenError(
            f"a budget is a time with its unit, s, min or h; found {text!r}.",
            remedy="Write, for example, --budget 10min.",
        )
    return float(match[1]) * UNITS[match[2]]


def foreseen(recipe: str, seconds: Mapping[str, float], sources: int) -> float:
    """Return the seconds of one training of a usual recipe, from its parts; 0 if unknown.

    Args:
        recipe: Its expression.
        seconds: Recipe -> seconds of one training.
        sources: How many sites train.
    """
    network = seconds.get(BASE, 0.0)
    if recipe.startswith("portfolio"):
        groups = min(GROUPS, sources)
        texts = [name for name in EXACT if f"'{name}'" in recipe] if "members" in recipe else EXACT
        fits = sum(seconds.get(name, 0.0) for name in texts) * (groups + 1)
        networks = len(MEMBERS) - len(EXACT) if "members" not in recipe else 0
        return fits + networks * network * ((RATES + ENSEMBLE) * groups + ENSEMBLE)
    return ENSEMBLE * network if f"ensemble(members={ENSEMBLE})" in recipe else 0.0


@dataclass
class Tracker:
    """Follows all trainings of a choice, and ends a recipe that the budget does not hold.

    Attributes:
        left: Recipe -> trainings that are still to run.
        show: Shows how far they are.
        processes: How many run at a time.
        deadline: When the budget is spent, by `clock`; None without one.
        sources: How many sites train.
        always: Recipes that are played whatever they take.
    """

    left: Counter[str]
    processes: int = 1
    deadline: float | None = None
    sources: int = 1
    always: Sequence[str] = ()
    clock: Callable[[], float] = time.monotonic
    show: Shown = lambda count, text, total=None, left=None: None
    count: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many trainings there are."""
        return self.count + sum(max(0, n) for n in self.left.values())

    @property
    def means(self) -> dict[str, float]:
        """Recipe -> seconds of one training."""
        return {name: sum(own) / len(own) for name, own in self.seconds.items()}

    def ended(self, key: Callable[[Job], str], out: Path, job: Job) -> None:
        """Note a training that has ended.

        Args:
            key: Names the recipe of a job.
            out: The folder of the study.
            job: The training.

        Raises:
            Spent: The budget does not hold the other trainings of the recipe.
        """
        name, mark = key(job), records.mark(job.folder(out))
        self.seconds.setdefault(name, []).append(float(mark.get("seconds", 0.0)))
        self.left[name] -= 1
        self.count += 1
        self.show(self.count, f"{name} · {job.task}", total=self.total, left=self.rest)
        if name not in self.always and self.exceeds(self.needs(name)):
            raise Spent(name)

    def needs(self, recipe: str) -> float:
        """Return the seconds that what is left of a recipe takes; 0 if not known."""
        means = self.means
        each = means.get(recipe) or foreseen(recipe, means, self.sources)
        return max(0, self.left[recipe]) * each / self.processes

    def exceeds(self, seconds: float) -> bool:
        """Return whether these seconds are more than the budget has left."""
        return self.deadline is not None and self.clock() + seconds > self.deadline

    @property
    def rest(self) -> float | None:
        """Seconds that the rest takes in the budget; a recipe not known yet counts as the mean."""
        means = self.means
        if not means:
            return None
        usual = sum(means.values()) / len(means)
        every = (
            n * (means.get(name) or foreseen(name, means, self.sources) or usual)
            for name, n in self.left.items()
            if n > 0
        )
        needed = sum(every) / self.processes
        if self.deadline is None:
            return needed
        return min(needed, max(0.0, self.deadline - self.clock()))


def trainings(
    rows: Sequence[str], rates: int, groups: int, seeds: int, alone: Mapping[str, int], out: Path
) -> Counter[str]:
    """Return recipe -> trainings that are still to run.

    Args:
        rows: Recipes.
        rates: How many learning rates.
        groups: How many groups of sites are left out.
        seeds: How many.
        alone: The name of one site's own model -> how many sites, if they are tried.
        out: The folder of the records.
    """
    left = Counter[str]()
    for name in rows:
        place = Job(name, "", 0).folder(Path()).parts[1]
        ran = sum(
            len([*out.glob(f"{folder}/records/{place}/*/*/done.json")])
            for folder in ("exact", "rate-*")
        )
        left[name] = max(0, (rates if compose(name).rounds is None else 1) * groups * seeds - ran)
    for name, sites in alone.items():
        ran = len([*out.glob("alone/records/*/*/*/done.json")])
        left[name] = max(0, sites * seeds - ran)
    return left
