"""Studies by name: the files of the package, tables and figures of papers, folders of studies."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, nearest
from unseen.spec.published import contents, tables


def named_studies() -> dict[str, str]:
    """Return the studies that come with the package: name -> text of the TOML file."""
    root = Path(__file__).with_name("studies")
    names = {path.relative_to(root).with_suffix(""): path for path in root.rglob("*.toml")}
    texts = {name.as_posix(): path.read_text("utf-8") for name, path in names.items()}
    return dict(sorted(texts.items()))


def members(name: str) -> tuple[str, ...]:
    """Return the studies that a name refers to.

    They are the study itself, those of a paper's table or figure, or those of a folder.

    >>> members("ga/table1")
    ('ga/table1/pacs', 'ga/table1/office-home', 'ga/table1/terra-incognita')
    >>> members("fedilc/table4")
    ('fedilc/color-mnist', 'fedilc/eicu')
    """
    studies = named_studies()
    if name in studies or Path(name).suffix == ".toml":
        return (name,)
    printed = contents()
    if name in printed:
        return printed[name]
    inside = tuple(other for other in studies if other.startswith(f"{name}/"))
    if name.lower().endswith((".csv", ".csv.gz", ".tsv")):
        raise UnseenError(
            f"{name} is a table, not a study.",
            remedy=f"To look at its columns: unseen data check {name}. To study it: unseen study "
            f"table \"dataset=table(path='{name}', domain='SITE', label='LABEL')\", with the "
            "columns of the sites and of the labels for SITE and LABEL.",
        )
    if not inside and Path(name).is_dir():
        raise UnseenError(
            f"{name} is a folder, not a study.",
            remedy="If it holds images as SITE/CLASS/image.png, write: unseen study images "
            f"--data-dir {name}",
        )
    if not inside:
        raise nearest("study", name, {*studies, *printed})
    return inside


def texts(name: str) -> list[str]:
    """Return the files that a name refers to, as they are written; after each the one it builds on.

    >>> texts("ppdg/table4")[0].splitlines()[0]
    '# unseen study ppdg/table4 --data-dir DIR --jobs 2'
    """
    files: dict[str, str] = {}
    wanted = list(members(name))
    for one in wanted:
        files[one] = _written(one)
        base = _toml(files[one], one).get("base", one)
        wanted += [base] if base not in wanted else []
    return list(files.values())


def metrics_of(name: str) -> tuple[str, ...]:
    """Return the metrics that a paper's table shows, where they are not those of its studies.

    >>> metrics_of("fedilc/table4"), metrics_of("csac/table1"), metrics_of("digits")
    (('auroc', 'auprc'), ('accuracy',), ())
    """
    parts = [table for key, table in tables().items() if key.rstrip("ab") == name]
    return tuple(dict.fromkeys(m for table in parts for m in table.metrics if m))


def settings_of(source: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a study by name or file, and its name.

    A file may say `base = "another"`: what it sets itself wins over that study's settings.
    """
    settings = _toml(_written(source), source)
    path = Path(source)
    name = path.stem if path.suffix == ".toml" else source
    if (base := settings.pop("base", None)) is None:
        return settings, name
    # `[training]` changes key by key, all else as a whole.
    below = settings_of(base)[0]
    training = {**below.get("training", {}), **settings.get("training", {})}
    return {**below, **settings} | ({"training": training} if training else {}), name


def _written(name: str) -> str:
    """Return the text of a study's file."""
    if Path(name).suffix != ".toml":
        several = members(name)
        if several != (name,):
            raise UnseenError(
                f"{name!r} stands for several studies.",
                remedy=f"Name one of them: {', '.join(several)}.",
            )
        return named_studies()[name]
    if not Path(name).is_file():
        raise UnseenError(f"no study file {name!r}; `unseen list studies` has names.")
    return Path(name).read_text("utf-8")


def _toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnseenError(f"{origin} is not valid TOML: {error}.") from None
