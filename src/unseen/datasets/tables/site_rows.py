"""Which sites of a table are read, and which of them are too small to train at."""

from collections import Counter
from collections.abc import Sequence

from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.tables.sheet import Sheet, coded, identity
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
    return _rest(sheet, names, codes.tolist(), unread, "named in 'without'")


def leave_small(sheet: Sheet, domain: str, least: int) -> tuple[Sheet, list[str]]:
    """Return the rows of the sites that have enough of them, and a remark on the others."""
    names, codes = coded(sheet.full(domain, "domain"))
    sizes = Counter(codes.tolist())
    small = [name for code, name in enumerate(names) if sizes[code] < least]
    return _rest(sheet, names, codes.tolist(), small, f"of fewer than {least} rows")


def _rest(
    sheet: Sheet, names: Sequence[str], codes: Sequence[int], out: Sequence[str], why: str
) -> tuple[Sheet, list[str]]:
    if not out:
        return sheet, []
    rows = [i for i, code in enumerate(codes) if names[code] not in out]
    if not rows:
        raise UnseenError(
            f"no site of {sheet.name} is left: all {len(names)} are {why}.",
            remedy="Look at the options 'least' and 'without'.",
        )
    few = ", ".join(out[:FEW]) + (f" and {len(out) - FEW} more" if out[FEW:] else "")
    count = len(codes) - len(rows)
    sites, size = "site" + "s" * (len(out) > 1), "row" + "s" * (count > 1)
    return sheet.take(rows), [f"{len(out)} {sites} left out, {why}: {few} ({count:,} {size})"]


def too_small(data: DataSet) -> str:
    """Return why a study that trains at every site stops at the first that is too small, or ""."""
    for domain in data.domains:
        if domain.validation is None and (fault := _lone(domain)):
            return (
                f"{fault}; a site needs one to train on and one to validate on. To leave small "
                f"sites out, write least=10 in table(...), or without={[domain.name]!r}."
            )
    return ""


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
    if len(domain.y) < 2:
        return f"site {domain.name!r} has {len(domain.y)} example"
    if domain.units is not None and len(domain.units.unique()) < 2:
        return f"all {len(domain.y)} examples of site {domain.name!r} are of one unit"
    return ""
