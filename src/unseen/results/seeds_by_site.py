"""Seeds of a study's methods, site by site: a comparison pairs those that both have."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from unseen.results.formats import counted

#: Method -> site -> seed -> its figures, one for each task in which the site was left out.
BySeed = Mapping[str, Mapping[str, Mapping[int, list[float]]]]


def in_common(by_seed: BySeed) -> tuple[BySeed, tuple[str, ...]]:
    """Return the figures of the seeds that all methods with figures at a site have there.

    Where they share none, each keeps its own.

    Returns:
        The figures, and notes of what they leave out.

    Example:
        >>> figures = {"a": {"x": {0: [0.5], 1: [0.7]}}, "b": {"x": {0: [0.6]}}}
        >>> in_common(figures)[0]["a"]
        {'x': {0: [0.5]}}
        >>> in_common(figures)[1]
        ('left out for want of a pair: seed 1 of `a` at x',)
    """
    shared: dict[str, set[int]] = {}
    for sites in by_seed.values():
        for site, own in sites.items():
            shared[site] = shared.get(site, set(own)) & set(own)
    common = {
        method: {
            site: {seed: own[seed] for seed in own if seed in shared[site] or not shared[site]}
            for site, own in sites.items()
        }
        for method, sites in by_seed.items()
    }
    alone: dict[tuple[str, int], list[str]] = defaultdict(list)
    for method, sites in by_seed.items():
        for site, own in sites.items():
            for seed in own.keys() - common[method][site].keys():
                alone[method, seed].append(site)
    texts = [
        f"seed {seed} of `{method}` at {', '.join(sorted(sites))}"
        for (method, seed), sites in sorted(alone.items())
    ]
    notes = [f"left out for want of a pair: {'; '.join(texts)}"] if texts else []
    if apart := sorted(site for site, seeds in shared.items() if not seeds):
        notes.append(f"methods have no seed in common at {', '.join(apart)}: means over their own")
    return common, tuple(notes)


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
