"""Studies by name: the files of the package, tables and figures of papers, folders of studies."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, nearest
from unseen.spec.published import contents, tables


def named_studies() -> dict[str, str]:
    """Return the studies that come with the package: name -> text of the TOML file."""
    root = resources.files("unseen.spec") / "studies"
    studies: dict[str, str] = {}
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        prefix, folder = stack.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                stack.append((f"{prefix}{entry.name}/", entry))
            elif entry.name.endswith(".toml"):
                studies[prefix + entry.name.removesuffix(".toml")] = entry.read_text("utf-8")
    return dict(sorted(studies.items()))


def members(name: str) -> tuple[str, ...]:
    """Return the studies that a name refers to: itself, those of a paper's table or figure, or
    those of a folder.

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
            f"{name} is a table, not a study. To look at its columns: unseen data check {name}. To "
            f"study it: unseen study table \"dataset=table(path='{name}', domain='SITE', "
            "label='LABEL')\", with the columns of the sites and of the labels for SITE and LABEL."
        )
    if not inside and Path(name).is_dir():
        raise UnseenError(
            f"{name} is a folder, not a study. If it holds images as SITE/CLASS/image.png, write: "
            f"unseen study images --data-dir {name}"
        )
    if not inside:
        raise nearest("study", name, {*studies, *printed})
    return inside


def texts(name: str) -> list[str]:
    """Return the files that a name refers to, as they are written; after each the one it builds on.

    >>> texts("ppdg/table4")[0].splitlines()[0]
    '# unseen study ppdg/table4 --data-dir DIR --jobs 2'
    """
    studies, files = named_studies(), list[str]()
    wanted = list(members(name))
    for one in wanted:
        path = Path(one)
        files.append(path.read_text("utf-8") if path.suffix == ".toml" else studies[one])
        base = _toml(files[-1], one).get("base")
        wanted += [base] if base is not None and base not in wanted else []
    return files


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
    path = Path(source)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UnseenError(f"no study file {source!r}; `unseen list studies` has names.")
        settings, name = _toml(path.read_text("utf-8"), source), path.stem
    else:
        studies = named_studies()
        if source not in studies:
            several = members(source)
            raise UnseenError(
                f"{source!r} stands for several studies; name one of them: {', '.join(several)}."
            )
        settings, name = _toml(studies[source], source), source
    base = settings.pop("base", None)
    return (settings if base is None else _over(settings_of(base)[0], settings)), name


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with changes; `[training]` changes key by key, all else as a whole."""
    training = {**base.get("training", {}), **changes.get("training", {})}
    return {**base, **changes} | ({"training": training} if training else {})


def _toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnseenError(f"{origin} is not valid TOML: {error}.") from None
