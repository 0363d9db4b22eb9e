"""A site: what its kit says, its data, and the client that it is in a study."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.atomic import write_atomically
from unseen.data import heart
from unseen.data import load as load_named
from unseen.data.dataset import DataSet
from unseen.data.standin import marker
from unseen.data.tables.cells import Cells
from unseen.data.tables.delimited import assemble
from unseen.data.tables.sheet import Sheet, names_of
from unseen.data.tables.table_files import READING, read
from unseen.engine.messages import Value
from unseen.errors import UnseenError, choice, nearest
from unseen.expression import Call, parse
from unseen.sites.flower.terms import Refused
from unseen.sites.kits.closed import closed
from unseen.sites.kits.kit import ACCOUNT, START
from unseen.sites.policy.approvals import check_table
from unseen.sites.policy.few_rows import without_rare
from unseen.sites.policy.site_policy import SitePolicy
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.execution.setting import digest_of
from unseen.studies.settings.study import StudySpec

LOG = logging.getLogger("flwr")

ROLES = ("train", "evaluate")
#: The secret of the digest by which a site's data are known to be the same.
DIGEST_KEY = "digest.key"
#: The column that a site's own table is given: all of its rows are the site's.
SITE = "site of these rows"


@dataclass(frozen=True)
class Site:
    """A site as `join` started it, and what it allows.

    `data` is a folder or a csv file, `state` the folder of its memories. The role `evaluate` is of
    a site that never trains.
    """

    name: str
    data: Path
    state: Path
    role: str = "train"
    kit: Path | None = None
    federation: str = ""
    policy: SitePolicy = field(default_factory=SitePolicy)

    def __post_init__(self) -> None:
        choice("role", self.role, ROLES)

    @property
    def account(self) -> Path:
        """Where approvals and the ledger lie."""
        return (self.kit or self.state) / ACCOUNT

    def digest(self, data: DataSet) -> str:
        """Return sixteen digits that change with the site's data, and say nothing of them.

        Without a secret, whoever knows all rows but one could try what that one holds.
        """
        path = self.account / DIGEST_KEY
        if not path.exists():
            with closed():
                write_atomically(path, secrets.token_bytes(32))
        return hmac.new(path.read_bytes(), digest_of(data).encode(), "sha256").hexdigest()[:16]

    @classmethod
    def read(cls, kit: str | Path) -> Site:
        folder = Path(kit)
        state, file = folder / "state", folder / START
        try:
            settings = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            remedy = "unseen federation join writes it."
            raise UnseenError(f"{file} cannot be read: {error}.", remedy=remedy) from None
        for key in ("name", "data"):
            if not isinstance(settings.get(key), str):
                raise UnseenError(f'{file} must say {key} = "..."; found {settings.get(key)!r}.')
        policy = SitePolicy.read(folder)
        code = {"code": (*policy.code, *settings.get("allow", ()))}
        return cls(
            settings["name"], folder / settings["data"], state, settings.get("role", "train"),
            folder, settings.get("federation", ""), policy.model_copy(update=code),
        )  # fmt: skip


def load(site: Site, study: StudySpec) -> DataSet:
    """Return the site's own data, as a data set of the one domain that has the site's name.

    A table is read from the site's csv file, images of `folder` from the site's domain/class or
    class folders, those of `masks` from its domain/images and domain/masks, or images and masks,
    heart disease from the one hospital's file; of every other data set the domain of the site's
    name is taken.
    """
    check_table(study)
    (call,) = parse(study.dataset)
    loaders = {"heart-disease": _heart, "table": _table, "folder": _folder, "masks": _folder}
    if call.name in loaders:
        data = loaders[call.name](site, call)
    else:
        check_links(site.data)
        data = load_named(call.name, site.data, **call.arguments)
    domains = [domain for domain in data.domains if domain.name == site.name]
    if not domains:
        raise nearest(f"domain of {study.dataset} (the site's name)", site.name, data.names)
    stand_in = data.stand_in or marker([site.data]) is not None
    own = replace(data, domains=tuple(domains), stand_in=stand_in)
    return without_rare(own, site.policy.least.rows_per_value)


def sums_received(study: StudySpec, data: DataSet, sums: Value | None) -> Tensor | None:
    """Return the sums that came with a message, by which this site standardises its columns."""
    totals = totals_of(data, study)
    if totals is None or not isinstance(sums, Tensor):
        return sums if isinstance(sums, Tensor) else None
    if why := totals.impossible(sums) if study.privacy.columns is None else None:
        raise Refused(f"was sent {why}.")
    if study.privacy.columns is not None:
        expected = totals.of_ranges(study.privacy.columns)
        if sums.shape != expected.shape or not torch.equal(sums.double(), expected):
            raise Refused("was sent other sums than the public ranges of the study give.")
    return sums


def _heart(site: Site, call: Call) -> DataSet:
    if site.data.is_dir() and site.name in heart.HOSPITALS:
        sheet = heart.hospital(_inside(site, heart.path_of(site.data, site.name)), site.name)
    else:  # one more hospital, in a file of the same form
        sheet = heart.hospital(_file(site, "", (".data", ".csv")), site.name)
    options = {"domain": "hospital", "label": "num", "categorical": heart.CATEGORICAL}
    return _own(sheet, site, options, "heart-disease")


def _table(site: Site, call: Call) -> DataSet:
    options: dict[str, Any] = dict(call.arguments)
    file = _file(site, str(options.pop("path", "")), (".csv", ".csv.gz"))
    needs = [
        str(options[key]) for key in ("label", "event", "unit") if options.get(key) is not None
    ]
    sheet = read(file, needs, **{key: options.pop(key) for key in READING if key in options})
    return _own(sheet, site, options, "table")


def _file(site: Site, path: str, suffixes: tuple[str, ...]) -> Path:
    """The one file of a table: the data themselves, the one that the site names, or has alone."""
    if site.data.is_file():
        return site.data
    names = [p.name for p in sorted(site.data.glob("*")) if p.name.endswith(suffixes)]
    allowed = list(site.policy.files or names)
    if len(allowed) != 1 and not (site.policy.files and path in allowed):
        LOG.warning("the data of %s hold %s", site.name, ", ".join(names) or "no table")
        raise _no_table(site, path, suffixes, several=bool(allowed))
    return _inside(site, site.data / (path if path in allowed else allowed[0]))


def _no_table(site: Site, path: str, suffixes: tuple[str, ...], several: bool) -> Refused:
    """The refusal of a folder in which nothing says which table is meant, without its names."""
    what = f"the data of {site.name!r} are a folder"
    if not several:
        remedy = "The site puts its table there, or joins with --data FILE."
        return Refused(f"{what} without a table ({', '.join(suffixes)}).", "files", remedy)
    if site.policy.files:
        what += f", and the study asks for {path!r}, which `files` in site.toml does not list."
        return Refused(what, "files", "The study names one that the site lists.")
    what += " of several tables, and its site.toml does not say which is meant."
    return Refused(what, "files", 'The site names it: files = ["..."] in site.toml.')


def _inside(site: Site, file: Path) -> Path:
    """The file, if it lies in the data's folder and no link leads out of it."""
    if not file.resolve().is_relative_to(site.data.resolve()):
        LOG.warning("%s leads to %s", file, file.resolve())
        raise Refused(f"a link leads out of the data of {site.name!r}", "files")
    return file


def check_links(folder: Path) -> None:
    """Refuse a folder with a link out of it."""
    root = folder.resolve()
    for above, folders, files in os.walk(root):
        for entry in (Path(above) / name for name in (*folders, *files)):
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                LOG.warning("%s leads to %s", entry, entry.resolve())
                raise Refused("a link leads out of the folder of the site's data", "files")


def _own(sheet: Sheet, site: Site, options: Mapping[str, Any], name: str) -> DataSet:
    """The data set of a site's sheet, whose rows are the site's: all, or those that say so."""
    options = _allowed(site, sheet, options)
    column = str(options["domain"])
    columns = dict(sheet.columns)
    owners = columns.pop(column, None)
    if owners is not None and {*owners} != {site.name}:
        if site.name not in owners:
            names = ", ".join(sorted({str(owner) for owner in owners})[:5])
            what = f"the column {column!r} of {sheet.name} says {names}; the site is {site.name!r}."
            raise UnseenError(what, remedy="Rename the site, or leave the column out.")
        rows = [i for i, owner in enumerate(owners) if owner == site.name]
        columns = {key: cells.take(rows) for key, cells in columns.items()}
        sheet = replace(sheet, lines=[sheet.lines[i] for i in rows])
    columns = {key: cells for key, cells in columns.items() if key not in options["drop"]}
    _check_names(replace(sheet, columns=columns), options)
    columns[SITE] = Cells.repeated(site.name, len(sheet.lines))
    reading = {**options, "domain": SITE, "drop": ()}
    return replace(assemble(replace(sheet, columns=columns), **reading), name=name)


def _check_names(sheet: Sheet, options: Mapping[str, Any]) -> None:
    """Refuse unknown columns before the sheet has `SITE`, which is not a column of the file."""
    single = [options[role] for role in ("label", "event", "unit") if options.get(role)]
    several = [name for role in ("groups", "text") for name in options.get(role) or ()]
    for name in (*single, *several):
        sheet.column(name)


def _allowed(site: Site, sheet: Sheet, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a table that drop every column which the site does not let be read.

    What the study names and may not use so is refused; see `study_rules.columns_of`.
    """
    policy, reading = site.policy, dict(options)
    for key in ("categorical", "groups", "drop", "text"):
        if reading.get(key) is not None:
            reading[key] = names_of(reading[key])
    for name in reading.get("drop", ()):
        sheet.column(name)  # a name that is not there is an error, as in one process
    single = [reading.get(role) for role in ("label", "event", "domain", "unit")]
    roles = [*filter(None, single), *reading.get("groups", ())]
    texts = reading.get("text", ())
    features = [name for name in sheet.columns if name not in (*roles, *texts)]
    closed = [name for name in features if not policy.allows(name, "feature")]
    drop = tuple(dict.fromkeys([*reading.get("drop", ()), *closed]))
    if reading.get("categorical") is not None:
        reading["categorical"] = tuple(n for n in reading["categorical"] if n not in drop)
    return {**reading, "drop": drop}


def _folder(site: Site, call: Call) -> DataSet:
    above = site.data
    check_links(site.data)
    if not (site.data / site.name).is_dir():
        # The site's folder holds the classes, or images and masks, themselves: a link makes it a
        # domain of its name.
        above = site.state / "images"
        above.mkdir(parents=True, exist_ok=True)
        link = above / site.name
        if not link.is_symlink() or link.resolve() != site.data.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(site.data.resolve(), target_is_directory=True)
    return load_named(call.name, above, **{**call.arguments, "path": "."})
