"""A site: what its kit says, its data, and the client that it is in a study."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.datasets import heart
from unseen.datasets import load as load_named
from unseen.datasets.dataset import DataSet
from unseen.datasets.delimited import READING, assemble
from unseen.datasets.sheet import Sheet, read
from unseen.datasets.standin import marker
from unseen.errors import UnseenError, choice, nearest
from unseen.expression import Call, parse
from unseen.spec.study import StudySpec

ROLES = ("train", "evaluate")
#: The column that a site's own table is given: all of its rows are the site's.
SITE = "site of these rows"


@dataclass(frozen=True)
class Site:
    """What `site.toml` in a kit says.

    Attributes:
        name: The site's name.
        data: Folder or csv file of this site's data.
        state: Folder of its memories.
        role: `train`, or `evaluate` for a site that never trains.
        kit: Folder of the kit.
        allow: The user's own parts, `module:function`, that a study may name here. A study comes
            from the server: a part that is not allowed is not called.
    """

    name: str
    data: Path
    state: Path
    role: str = "train"
    kit: Path | None = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choice("role", self.role, ROLES)

    @classmethod
    def read(cls, kit: str | Path) -> Site:
        folder = Path(kit)
        file = folder / "site.toml"
        try:
            settings = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UnseenError(f"{file} is not a site's settings: {error}.") from None
        for key in ("name", "data"):
            if not isinstance(settings.get(key), str):
                raise UnseenError(f'{file} must say {key} = "..."; found {settings.get(key)!r}.')
        data, state = folder / settings["data"], folder / settings.get("state", "state")
        role, allow = settings.get("role", "train"), tuple(settings.get("allow", ()))
        return cls(settings["name"], data, state, role, folder, allow)


def load(site: Site, study: StudySpec) -> DataSet:
    """Return the site's own data, as a data set of the one domain that has the site's name.

    Note:
        A table is read from the site's csv file, images of `folder` from the site's domain/class or
        class folders, heart disease from the one hospital's file; of every other data set the
        domain of the site's name is taken.
    """
    (call,) = parse(study.dataset)
    check_parts(site, [study.dataset])
    loaders = {"heart-disease": _heart, "table": _table, "folder": _folder}
    if call.name in loaders:
        data = loaders[call.name](site, call)
    else:
        data = load_named(call.name, site.data, **call.arguments)
    domains = [domain for domain in data.domains if domain.name == site.name]
    if not domains:
        raise nearest(f"domain of {study.dataset} (the site's name)", site.name, data.names)
    stand_in = data.stand_in or marker([site.data]) is not None
    return replace(data, domains=tuple(domains), stand_in=stand_in)


def check_parts(site: Site, expressions: Sequence[str]) -> None:
    """Refuse what would run code or read files that the site has not agreed to."""
    for expression in expressions:
        for call in parse(expression):
            if ":" in call.name and call.name not in site.allow:
                what = f"the study names {call.name!r}, which is not a part of unseen."
                allow = f'allow = ["{call.name}"] in its site.toml'
                raise UnseenError(what, remedy=f"Site {site.name!r} may allow it: {allow}.")
            for option, value in call.arguments.items():
                if isinstance(value, str) and (Path(value).is_absolute() or ".." in value):
                    what = f"the option {option} = {value!r} of {call.name} leads out of the data"
                    raise UnseenError(f"{what}; a study names paths below it.")


def expressions(study: StudySpec, method: str, model: str | None) -> list[str]:
    """Return all that names parts: a study's settings, and what a message says next to them."""
    recipe = study.training
    texts = [study.dataset, method, recipe.optimiser, recipe.schedule, recipe.server]
    return [*texts, *filter(None, (study.model, recipe.augment, model))]


def _heart(site: Site, call: Call) -> DataSet:
    if site.data.is_dir() and site.name in heart.HOSPITALS:
        sheet = heart.hospital(heart.path_of(site.data, site.name), site.name)
    else:  # one more hospital, in a file of the same form
        sheet = heart.hospital(_only(site, (".data", ".csv")), site.name)
    options = {"domain": "hospital", "label": "num", "categorical": heart.CATEGORICAL}
    return _own(sheet, site, options, "heart-disease")


def _table(site: Site, call: Call) -> DataSet:
    options: dict[str, Any] = dict(call.arguments)
    path = site.data / str(options.pop("path", ""))
    file = path if site.data.is_dir() and path.is_file() else _only(site, (".csv", ".csv.gz"))
    needs = [str(options[key]) for key in ("label", "unit") if options.get(key) is not None]
    sheet = read(file, needs, **{key: options.pop(key) for key in READING if key in options})
    return _own(sheet, site, options, "table")


def _only(site: Site, suffixes: tuple[str, ...]) -> Path:
    """The site's one file: its data themselves, or what lies alone in the folder of its data."""
    if site.data.is_file():
        return site.data
    files = sorted(p for p in site.data.glob("*") if p.name.endswith(suffixes))
    if len(files) != 1:
        names = ", ".join(p.name for p in files) or "none"
        form = f"a file, or a folder with one file {' or '.join(suffixes)}"
        raise UnseenError(f"the data of {site.name!r}, {site.data}, must be {form}; found {names}.")
    return files[0]


def _own(sheet: Sheet, site: Site, options: Mapping[str, Any], name: str) -> DataSet:
    """The data set of a site's sheet, whose rows are the site's: all, or those that say so."""
    column = str(options["domain"])
    columns = dict(sheet.columns)
    owners = columns.pop(column, None)
    if owners is not None and {*owners} != {site.name}:
        if site.name not in owners:
            names = ", ".join(sorted({str(owner) for owner in owners})[:5])
            what = f"the column {column!r} of {sheet.name} says {names}; the site is {site.name!r}."
            raise UnseenError(what, remedy="Rename the site, or leave the column out.")
        rows = [i for i, owner in enumerate(owners) if owner == site.name]
        columns = {key: [cells[i] for i in rows] for key, cells in columns.items()}
        sheet = replace(sheet, lines=[sheet.lines[i] for i in rows])
    columns[SITE] = [site.name] * len(sheet.lines)
    reading = {**options, "domain": SITE}
    for key in ("categorical", "groups", "drop"):
        if isinstance(reading.get(key), str):
            reading[key] = (reading[key],)
    return replace(assemble(replace(sheet, columns=columns), **reading), name=name)


def _folder(site: Site, call: Call) -> DataSet:
    above = site.data
    if not (site.data / site.name).is_dir():
        # The site's folder holds the classes themselves: a link makes it a domain of its name.
        above = site.state / "images"
        above.mkdir(parents=True, exist_ok=True)
        link = above / site.name
        if not link.is_symlink() or link.resolve() != site.data.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(site.data.resolve(), target_is_directory=True)
    return load_named("folder", above, **{**call.arguments, "path": "."})
