"""Which studies may be put together: those of the same rows, and of one hold-out plan."""

from collections.abc import Sequence
from pathlib import Path

from unseen.errors import UnseenError


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


def check_plans(plans: Sequence[tuple[str, str]]) -> None:
    """Refuse studies that leave sites out in other groups: their models had other sources.

    Args:
        plans: What each study is called, and its hold-out.
    """
    for name, plan in plans[1:]:
        first, own = plans[0]
        if plan != own:
            raise UnseenError(
                f"{first} and {name} leave sites out by other plans, {own} and {plan}, so that "
                "their models had other sources.",
                remedy="Compare studies of one hold-out.",
            )
