"""Which studies may be put together: those of the same rows, and of one hold-out plan."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from pathlib import Path

from unseen.errors import UnseenError

Groups = frozenset[frozenset[str]]


def check_data(dataset: str, data: str, folder: Path, digests: dict[str, tuple[str, Path]]) -> None:
    """Refuse two folders whose data sets are called alike and are not the same rows.

    Args:
        dataset: What the folder's data set is called.
        data: Its digest.
        folder: The folder.
        digests: Data set -> the digest and the folder that came first; it is filled.
    """
    if not data:  # records of old versions do not say
        return
    digest, first = digests.setdefault(dataset, (data, folder))
    if data != digest:
        raise UnseenError(
            f"{first} and {folder} name the same data set, {dataset}, and were run on other rows "
            f"of it ({digest} and {data}).",
            remedy="Compare runs on the same data.",
        )


def check_plans(plans: Sequence[tuple[str, Groups]]) -> None:
    """Refuse studies that leave sites out in other groups: their models had other sources.

    Args:
        plans: What each study is called, and its groups; those that overlap, as where every site
            trains alone, are no partition and pass.
    """
    disjoint = [(name, own) for name, own in plans if sum(map(len, own)) == len(_all(own))]
    for (first, own), (second, others) in combinations(disjoint, 2):
        for here, there in product(sorted(own, key=sorted), sorted(others, key=sorted)):
            if here & there and here != there:
                raise UnseenError(
                    f"{first} and {second} leave sites out in other groups, "
                    f"{', '.join(sorted(here))} and {', '.join(sorted(there))}, so that their "
                    "models had other sources.",
                    remedy="Compare studies of one hold-out plan.",
                )


def _all(groups: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*groups)
