"""Every two groups of sites, which a nested search leaves out at a time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.results.records import slug


def check_pairs(groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse a nested search of groups of which any two leave too few sites."""
    sizes = sorted(map(len, groups.values()))
    if sum(sizes[:-2]) < 2:
        raise UnseenError(
            f"a nested search leaves two groups out at a time, and of {sum(sizes)} sites in "
            f"{len(groups)} groups fewer than two are left to train on.",
            remedy="Take more groups, or leave nested out.",
        )


def pairs(
    groups: Mapping[str, Sequence[str]], out: Path
) -> Iterator[tuple[tuple[str, str], dict[str, Any], Path]]:
    """Yield every two groups, the plan that leaves both out, and its folder."""
    for first, second in combinations(groups, 2):
        plan = {"source": "others", "target": [*groups[first], *groups[second]]}
        yield (first, second), plan, out / f"without-{slug(first)}" / f"and-{slug(second)}"
