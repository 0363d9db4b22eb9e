"""Data sets: files on disk become named domains in memory.

Example:
    >>> "rotated-digits" in datasets()
    True
    >>> data = load("rotated-digits")
    >>> data.names, [len(domain.y) for domain in data.domains]
    (('0', '15', '30', '45', '60', '75'), [300, 300, 300, 299, 299, 299])
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from unseen import plugins
from unseen.data import digits, ellipses, heart, lung
from unseen.data.dataset import DataSet, Domain, check
from unseen.data.entry import Info
from unseen.data.image_files import folder, layout, mask_files
from unseen.data.label_faults import check_several
from unseen.data.standin import marker, note, noted
from unseen.data.tables import delimited
from unseen.errors import UnseenError
from unseen.expression import Call, fold, own_part, parse, resolve

__all__ = ["DataSet", "Domain", "Info", "check", "datasets", "info", "load"]

#: The data sets of unseen itself.
OWN = (
    digits.INFO, heart.INFO, *layout.INFOS, lung.INFO, ellipses.INFO, folder.INFO, mask_files.INFO,
    delimited.INFO,
)  # fmt: skip


@cache
def datasets() -> dict[str, Info]:
    """Return the data sets of unseen and of installed packages, by name."""
    every = {info.name: info for info in OWN}
    for point, added in plugins.plugged("unseen.datasets"):
        own = {info.name: info for info in ([added] if isinstance(added, Info) else added)}
        plugins.joined("data set", every, own, plugins.package(point))
        every |= own
    return every


def info(name: str) -> Info:
    """Return the entry of that name; for your own loader, `module:function`, one for any data.

    Example:
        >>> info("pacs").model, info("random:Random").metrics
        ('resnet18', ('loss', 'accuracy'))
    """
    if ":" in name:
        loader = cast("Callable[..., DataSet]", own_part("data set", name))
        return Info(
            name=name, description="your own loader", source="your files", licence="yours",
            model="mlp(widths=[64])", loader=loader,
        )  # fmt: skip
    if fold(name) not in datasets():
        raise plugins.unknown("data set", name, datasets())
    return datasets()[fold(name)]


def load(name: str, data_dir: str | Path | None = None, **options: object) -> DataSet:
    """Load a data set and check it.

    Args:
        name: A name in `datasets()`, with options in brackets, as studies name data sets, or
            without; or `module:function` for your own loader, (data_dir, *, options) -> DataSet.
        data_dir: The folder that holds the files.
        options: The loader's own options.

    Raises:
        UnseenError: A name or an option does not exist (with the nearest one that does), files are
            missing (with where they were looked for and how to get them), or the data are not
            sound.

    Note:
        Files of a synthetic stand-in are recognised by the marker next to them.
    """
    calls = parse(name) if "(" in name else [Call(name)]  # a bare name may be spelt in any way
    if len(calls) > 1:
        raise UnseenError(f"expected one data set; found {len(calls)}, joined by +, in {name!r}.")
    call = calls[0]
    loaders = {} if ":" in call.name else {fold(call.name): info(call.name).loader}
    options = {**call.arguments, **options}
    plain = {key: str(o) if isinstance(o, Path) else o for key, o in options.items()}
    with noted() as places:
        if ":" in call.name and data_dir is not None:
            note(Path(data_dir))  # your own loader may find its files in its own way
        data = resolve("data set", Call(call.name, plain), loaders, (data_dir,), own=True)
    if not isinstance(data, DataSet):
        raise UnseenError(
            f"{name!r} must give an unseen.data.DataSet; found {type(data).__name__}."
        )
    if ":" in call.name:
        check_several(data.name, data.classes)
    return check(replace(data, stand_in=data.stand_in or marker(places) is not None))
