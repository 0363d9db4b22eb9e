"""Seeds of methods, site by site: a comparison takes those that both have."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from unseen.studies.results.formats import counted
from unseen.studies.results.statistics import mean

#: Site -> seed -> a method's figure.
BySeed = Mapping[str, Mapping[int, float]]


def over_seeds(by_seed: Mapping[str, BySeed]) -> dict[str, dict[str, float]]:
    """Return method -> site -> the mean over all seeds that the method has there."""
    return {
        method: {site: mean([*own.values()]) for site, own in sites.items()}
        for method, sites in by_seed.items()
    }


def difference(ours: BySeed, theirs: BySeed, site: str) -> float:
    """Return the difference of two methods' means at a site over the seeds that both have there.

    Where they share none, the means are over their own.

    Example:
        >>> difference({"x": {0: 0.75, 1: 0.25}}, {"x": {0: 0.5}}, "x")
        0.25
    """
    common = ours[site].keys() & theirs[site].keys()
    a, b = (mean([own[site][seed] for seed in common or own[site]]) for own in (ours, theirs))
    return a - b


def uneven(by_seed: Mapping[str, BySeed]) -> tuple[str, ...]:
    """Return the note of seeds that some methods have at a site and others lack there.

    Args:
        by_seed: Method -> its figures.

    Example:
        >>> uneven({"a": {"x": {0: 0.5, 1: 0.7}}, "b": {"x": {0: 0.6}}})[0]
        'seed 1 of `a` alone at x; a comparison takes the seeds that both methods have, if any'
    """
    having: dict[tuple[str, int], list[str]] = defaultdict(list)
    methods: dict[str, int] = defaultdict(int)
    for method, sites in by_seed.items():
        for site, own in sites.items():
            methods[site] += 1
            for seed in own:
                having[site, seed].append(f"`{method}`")
    alone: dict[tuple[int, str], list[str]] = defaultdict(list)
    for (site, seed), names in having.items():
        if len(names) < methods[site]:
            alone[seed, ", ".join(sorted(names))].append(site)
    texts = [
        f"seed {seed} of {names} alone at {', '.join(sorted(sites))}"
        if len(sites) < max(len(methods), 2)
        else f"seed {seed} of {names} alone, at every site"
        for (seed, names), sites in sorted(alone.items())
    ]
    rule = "a comparison takes the seeds that both methods have, if any"
    return (f"{'; '.join(texts)}; {rule}",) if texts else ()


def without_end(diverged: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the note of jobs that diverged, which enter as no figure.

    Args:
        diverged: Method and task of each.

    Example:
        >>> without_end([("a", "x"), ("a", "y"), ("a", "x")])
        ('diverged, and without a figure, which favours them: 3 jobs of `a` (x, y)',)
    """
    tasks: dict[str, list[str]] = defaultdict(list)
    for method, task in diverged:
        tasks[method].append(task)
    texts = [
        f"{counted(len(own), 'job')} of `{method}` ({', '.join(sorted(set(own)))})"
        for method, own in sorted(tasks.items())
    ]
    why = "diverged, and without a figure, which favours them"
    return (f"{why}: {'; '.join(texts)}",) if texts else ()
