"""Which sites of a table are read, and which of them are too small to train at."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unseen.data.dataset import DataSet, Domain
from unseen.data.tables.cells import identity
from unseen.data.tables.sheet import Sheet, coded
from unseen.errors import UnseenError, nearest

#: Sites that a remark names.
FEW = 5


def leave_out(
    sheet: Sheet, domain: str, without: Sequence[str], strict: bool = True
) -> tuple[Sheet, list[str]]:
    """Return the rows of all sites but some, and a remark on the others.

    Args:
        sheet: The table.
        domain: The column of sites.
        without: The sites to leave out.
        strict: Whether to refuse names that no site has; one site's own rows lack the others.
    """
    if not without:
        return sheet, []
    names, codes = coded(sheet.full(domain, "domain"))
    out = {identity(name) for name in without}
    for name in without if strict else ():
        if identity(name) not in set(map(identity, names)):
            raise nearest("site to leave out", name, names)
    unread = [name for name in names if identity(name) in out]
    return _rest(sheet, names, codes.numpy(), unread, "named in 'without'")


def leave_small(sheet: Sheet, domain: str, least: int) -> tuple[Sheet, list[str]]:
    """Return the rows of the sites that have enough of them, and a remark on the others."""
    names, codes = coded(sheet.full(domain, "domain"))
    sizes = codes.bincount().tolist()
    small = [name for code, name in enumerate(names) if sizes[code] < least]
    return _rest(sheet, names, codes.numpy(), small, f"of fewer than {least} rows")


def _rest(
    sheet: Sheet, names: Sequence[str], codes: NDArray[np.int64], out: Sequence[str], why: str
) -> tuple[Sheet, list[str]]:
    if not out:
        return sheet, []
    stays = np.array([name not in out for name in names])
    rows = np.flatnonzero(stays[codes])
    if not len(rows):
        raise UnseenError(
            f"no site of {sheet.name} is left: all {len(names)} are {why}.",
            remedy="Look at the options 'least' and 'without'.",
        )
    few = ", ".join(out[:FEW]) + (f" and {len(out) - FEW} more" if out[FEW:] else "")
    count = len(codes) - len(rows)
    sites, size = "site" + "s" * (len(out) > 1), "row" + "s" * (count > 1)
    return sheet.take(rows), [f"{len(out)} {sites} left out, {why}: {few} ({count:,} {size})"]


def too_small(data: DataSet) -> str:
    """Return why a study that trains at every site stops at those that are too small, or ""."""
    return " ".join(filter(None, unusable(data.domains)))


def unusable(domains: Sequence[Domain]) -> tuple[str, str]:
    """Return which domains have no two examples to divide, and what to do; "" for none.

    Args:
        domains: Those that are to train.
    """
    small = {d.name: fault for d in domains if d.validation is None and (fault := _lone(d))}
    if not small:
        return "", ""
    few, more = ", ".join([*small.values()][:FEW]), len(small) - FEW
    start = f"{len(small)} sites are too small: " if len(small) > 1 else ""
    rest = f" and {more} more" if more > 0 else ""
    sizes = {domain.name: len(domain.y) for domain in domains}
    least = 1 + max(sizes[name] for name in small)
    also = sum(size < least for name, size in sizes.items() if name not in small)
    others = f" (which leaves out {also} more, large enough)" if also else ""
    by_size = f"least={least}{others} or " if least <= max(sizes.values()) else ""
    names = "[...]" if more > 0 else repr([*small])
    return (
        f"{start}{few}{rest}; a source needs one to train on and one to validate on.",
        f"Leave small sites out: of a table by {by_size}without={names} in its "
        "options, of a data set of your own in its function.",
    )


def too_few(data: DataSet) -> str:
    """Return why a study that leaves a site out stops where there is one only, or ""."""
    if len(data.domains) > 1:
        return ""
    only = data.domains[0].name
    return (
        f"all rows are of the site {only!r}; a study of this table alone needs two domains or "
        "more, and a site of a federation has one"
    )


def _lone(domain: Domain) -> str:
    n = len(domain.y)
    if n < 2:
        return f"site {domain.name!r} has {n} example{'s' * (n != 1)}"
    if domain.units is not None and len(domain.units.unique()) < 2:
        return f"all {n} examples of site {domain.name!r} are of one unit"
    return ""
