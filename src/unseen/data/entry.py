"""What is known of a data set: its file in `catalogue`, BibTeX, and what reads its files."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, TypeAdapter

from unseen.data.dataset import DataSet, Domain
from unseen.data.splits import Lists
from unseen.data.standin import note
from unseen.errors import UnseenError


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file of the catalogue says.

    Attributes:
        name: The data set.
        description: One line.
        source: Where the files come from.
        licence: On what terms.
        model: What a study takes that names no other.
        metrics: What a study records that names no others.
        obtain: How to get the files, as sentences.
        cite: Keys in `references.bib`.
        folders: Where the files may lie below the data folder.
        files: Domain -> the name of its file, where each has one.
        labels: Names of the classes.
        names: Other lists of names, such as of columns.
        totals: Examples per domain, for the loader's default options; this and the next two where a
            source states them or complete files were counted.
        cells: Examples per domain and class.
        classes: Examples per class over all domains.
        checksums: md5 of the files as distributed.
        package: The package that has the file, as `catalogue/NAME.toml`, and `references.bib`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    description: str
    source: str
    licence: str
    model: str
    metrics: tuple[str, ...] = ("loss", "accuracy")
    obtain: str = ""
    cite: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    package: str = "unseen.data"

    @classmethod
    def of(cls, name: str, package: str = "unseen.data") -> Self:
        """Return what the catalogue has under this name; totals follow from cells.

        Args:
            name: Of the file, and of the data set unless the file says another.
            package: The package that has the file.
        """
        table = tomllib.loads(_text(package, f"catalogue/{name}.toml"))
        totals = {domain: sum(own.values()) for domain, own in table.get("cells", {}).items()}
        texts = {key: value.strip() for key, value in table.items() if isinstance(value, str)}
        about = {"name": name, "package": package, "totals": totals, **table, **texts}
        return TypeAdapter(cls).validate_python(about)

    @property
    def about(self) -> dict[str, Any]:
        """Name, source, licence and BibTeX, as `DataSet` calls them."""
        listed = _text(self.package, "references.bib").split("\n\n") if self.cite else []
        entries = {re.findall(r"{([^,]+),", entry)[0]: entry for entry in listed}
        citation = "\n\n".join(entries[key] for key in self.cite)
        return {
            "name": self.name, "source": self.source, "licence": self.licence, "citation": citation
        }  # fmt: skip

    def find(
        self, data_dir: str | Path | None, *names: str, folders: Sequence[str] | None = None
    ) -> Path:
        """Return the first of these files that is there; an error says where it was looked for.

        Args:
            data_dir: The data folder.
            names: Spellings of one file's name, the canonical one first.
            folders: Where to look below the data folder, if not in the usual ones.
        """
        below = self.folders if folders is None else folders
        places = [self.data_folder(data_dir) / folder for folder in below]
        for path in (place / name for place in places for name in names):
            if path.is_file():
                note(path.parent)
                return path
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise UnseenError(
            f"data set {self.name!r} needs the file {names[0]}{others}; it is in none of the "
            f"folders {', '.join(map(str, places))}.",
            remedy=self.obtain,
        )

    def data_folder(self, data_dir: str | Path | None) -> Path:
        """Return the folder that the user named; raise an error where there is none."""
        if data_dir is None:
            raise UnseenError(
                f"data set {self.name!r} reads files:",
                remedy="name their folder by data_dir, by --data-dir on the command line or by the "
                f"variable UNSEEN_DATA. {self.obtain}",
            )
        return Path(data_dir)

    def data(
        self, domains: Sequence[Domain], classes: Sequence[str] | None, **others: Any
    ) -> DataSet:
        """Return the data set of these domains.

        Args:
            domains: In their order.
            classes: Names of the classes, None for a regression.
            others: Further fields of `DataSet`.
        """
        names = None if classes is None else tuple(classes)
        return DataSet(domains=tuple(domains), classes=names, **(self.about | others))


@dataclass(frozen=True, kw_only=True)
class Layout(Facts):
    """How a benchmark lies on disk: root/domain/class/image, or root/domain/part/class/image.

    Case, blanks, dashes and underscores in the names of folders never matter.

    Attributes:
        roots: Names of the folder of the domains, or of a tar archive of it; tried in this order
            below the data folder, then the data folder itself.
        domains: Name -> other spellings of its folder.
        spellings: Class -> other spellings of its folder.
        count: The number of classes where `labels` are not known: folders are named as these.
        parts: Folders that may stand between domain and class -> "all", "train" or "validation".
        lists: The official split, as text files.
        subset: Whether other classes and domains lie there too and are passed over.
        joined: Whether the domains are distributed in more than one folder.
        size: The loader's default for the side of an image.
        split: The loader's default for the validation rows.
        annotated: Reads json files that say, for images distributed in one heap, domain and class
            of each file's name; for imports.
    """

    roots: tuple[str, ...]
    domains: Mapping[str, tuple[str, ...]]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    lists: Lists | None = None
    subset: bool = False
    joined: bool = False
    size: int = 224
    split: Literal["official", "none"] = "none"
    annotated: Callable[[Sequence[Any]], Mapping[str, Sequence[tuple[str, str]]]] | None = None

    @property
    def root(self) -> str:
        """The folder into which it is imported: the first of its usual places."""
        return next(name for name in self.roots if not name.endswith((".tar", ".gz")))

    @cached_property
    def _domains(self) -> dict[str, str]:
        return {folded(s): name for name, own in self.domains.items() for s in (name, *own)}

    @cached_property
    def _classes(self) -> dict[str, str]:
        spelt = {label: (label, *self.spellings.get(label, ())) for label in self.labels}
        return {folded(s): label for label, own in spelt.items() for s in own}

    def domain(self, folder: str) -> str | None:
        return self._domains.get(folded(folder))

    def label(self, folder: str) -> str | None:
        return folder if self.count is not None else self._classes.get(folded(folder))


@dataclass(frozen=True, kw_only=True)
class Info(Facts):
    """A data set that can be asked for by name.

    Attributes:
        loader: (data_dir, *, options) -> DataSet.
        layout: Of images in folders, which can be imported.
        locate: Raises an error where a folder lacks the files.
        amounts: (data_dir, *, options) -> what is counted in the files, as (found, known).
        variants: (data set, *, options) -> cells under these options, of the files that were found;
            empty where none are known but the usual ones.
    """

    loader: Callable[..., DataSet]
    layout: Layout | None = None
    locate: Callable[[Path], object] | None = None
    amounts: Callable[..., Mapping[str, tuple[int, int]]] | None = None
    variants: Callable[..., Mapping[str, Mapping[str, int]]] | None = None


def folded(name: str) -> str:
    """Return a name as folders are compared.

    Example:
        >>> folded("Real World") == folded("real_world") == folded("Real-World")
        True
    """
    return "".join(filter(str.isalnum, name.lower()))


def either(*attempts: Callable[[], object]) -> object:
    """Return what the first attempt finds that finds anything; else raise one error for all."""
    faults = []
    for attempt in attempts:
        try:
            return attempt()
        except UnseenError as error:
            faults.append(str(error))
    raise UnseenError(" Otherwise: ".join(faults))


def below(data_dir: str | Path | None, path: str | Path, dataset: str) -> Path:
    """Return `path` if it is absolute, else below `data_dir`, else below the current folder."""
    if "://" in str(path):
        raise UnseenError(
            f"data set {dataset!r} downloads nothing; found the address {str(path)!r}.",
            remedy="Fetch it, and set 'path' to its place.",
        )
    place = Path(data_dir or ".") / path
    if not place.exists():
        here = Path(path).absolute()
        hint = f" One of that name lies here: write path={str(here)!r}." if here.exists() else ""
        raise UnseenError(
            f"data set {dataset!r} was to be read from {place}, which does not exist.",
            remedy=f"The option 'path' is absolute or relative to the data folder.{hint}",
        )
    note(place)
    return place


def _text(package: str, file: str) -> str:
    return (resources.files(package) / file).read_text("utf-8").strip()
