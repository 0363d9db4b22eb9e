"""What other installed packages add to unseen, by entry points: studies, data sets, commands.

An entry point of the group `unseen.studies` names a package whose folder holds study files; one of
`unseen.datasets` an `Info` or several; one of `unseen.published` a function that returns the
tables and figures of papers; one of `unseen.commands` the function of a command. docs/plugins.md
shows how to write each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, nearest

#: How the names begin that the package in the folder `papers` of unseen's repository adds.
PAPERS = {
    "study": (
        "claims", "color-mnist", "csac", "digits-tuned", "eicu-demo", "evidence", "fedilc", "ga",
        "ham10000", "heterogeneity", "methods", "mtae", "pacs", "pacs64", "ppdg", "rotated-mnist",
        "sites",
    ),
    "data set": (
        "camelyon17", "color-mnist", "eicu", "fmow", "ham10000", "povertymap", "rotated-cifar10",
        "rotated-mnist", "sites",
    ),
    "command": ("compare",),
    "published table": ("csac", "fedilc", "ga", "ppdg"),
}  # fmt: skip


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, by name."""
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def plugged(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield the entry points of a group with the objects that they name."""
    for point in installed(group):
        yield point, _loaded(point)


def folders(group: str) -> Iterator[tuple[EntryPoint, Path]]:
    """Yield the entry points of a group with the folders of the packages that they name."""
    for point in installed(group):
        place = _place(point, point.value)
        if place is None or not place.is_dir():
            raise _broken(point, f"there is no package {point.value!r}")
        yield point, place


def joined(kind: str, own: Mapping[str, Any], more: Mapping[str, Any], source: str) -> None:
    """Refuse names that two packages give.

    Args:
        kind: What the names are of.
        own: Those that are known.
        more: Those that a package adds.
        source: The package.
    """
    if twice := sorted(own.keys() & more.keys()):
        raise UnseenError(
            f"the package {source} adds a {kind} {twice[0]!r}, which is there already.",
            remedy=f"Rename it there, or remove the package: pip uninstall {source}",
        )


def names(group: str) -> list[str]:
    """Return the names of the entry points of a group."""
    return [point.name for point in installed(group)]


def command(name: str) -> Any:
    """Return the function of a command that a package adds; None where there is none."""
    for point in installed("unseen.commands"):
        if point.name == name:
            return _loaded(point)
    if name in PAPERS["command"]:
        raise unknown("command", name, {})
    return None


def unknown(kind: str, name: str, every: Mapping[str, Any]) -> UnseenError:
    """Return the error for a name that nothing installed has."""
    if name.partition("/")[0] in PAPERS[kind] and not _papers():
        return UnseenError(
            f"the {kind} {name!r} comes with the package unseen-papers, which is not installed.",
            remedy="Install it from a checkout of unseen's repository: pip install ./papers",
        )
    return nearest(kind, name, every)


def package(point: EntryPoint) -> str:
    """Return the name under which the package of an entry point is installed."""
    return point.module.partition(".")[0] if point.dist is None else point.dist.name


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever a package of others does when it is imported
        raise _broken(point, f"{type(error).__name__}: {error}") from error


def _place(point: EntryPoint, module: str) -> Path | None:
    """The folder of a package, or the file of a module; packages above it alone are imported."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    if spec is None:
        return None
    return Path(next(iter(spec.submodule_search_locations or [spec.origin or "."])))


def _papers() -> bool:
    return any(package(point) == "unseen-papers" for point in installed("unseen.studies"))


def _broken(point: EntryPoint, why: str) -> UnseenError:
    return UnseenError(
        f"the entry point {point.name} = {point.value!r} of the package {package(point)}, group "
        f"{point.group}, cannot be used: {why}.",
        remedy=f"Repair the package, or remove it: pip uninstall {package(point)}",
    )
