"""Studies by name: the files of the package, those of papers, folders; settings as `key=value`."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unseen import plugins
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.settings.published import contents, exhibits

#: Tables of which a study that builds on another changes single keys; all else it sets as a whole.
BY_KEY = ("training", "tune")


#: The folder of the studies that come with unseen itself.
OWN = Path(__file__).with_name("studies")


def named_studies() -> dict[str, str]:
    """Return the studies of unseen and of installed packages: name -> text of the TOML file."""
    every = _studies(OWN)
    for point, folder in plugins.folders("unseen.studies"):
        own = _studies(folder)
        plugins.joined("study", every, own, plugins.package(point))
        every |= own
    return dict(sorted(every.items()))


def minutes() -> dict[str, dict[str, float]]:
    """Return `estimated` and `ran` -> study -> minutes on two cores, as each folder says."""
    every: dict[str, dict[str, float]] = {"estimated": {}, "ran": {}}
    for folder in (OWN, *(folder for _, folder in plugins.folders("unseen.studies"))):
        if (file := folder / "minutes.json").is_file():
            for key, values in json.loads(file.read_text("utf-8")).items():
                every[key] |= values
    return every


def members(name: str) -> tuple[str, ...]:
    """Return the studies that a name refers to.

    They are the study itself, those of a paper's table or figure, or those of a folder.

    Example:
        >>> members("digits")
        ('digits',)
    """
    studies, printed = named_studies(), contents()
    if name in studies or Path(name).suffix == ".toml":
        return (name,)
    if name in printed:
        return printed[name]
    inside = tuple(other for other in studies if other.startswith(f"{name}/"))
    if name.lower().endswith((".csv", ".csv.gz", ".tsv")):
        raise UnseenError(
            f"{name} is a table, not a study.",
            remedy=f"To look at its columns: unseen data check {name}. To study it: unseen study "
            f"table \"dataset=table(path='{name}', site='SITE', label='LABEL')\", with the "
            "columns of the sites and of the labels for SITE and LABEL.",
        )
    if not inside and Path(name).is_dir():
        raise UnseenError(
            f"{name} is a folder, not a study.",
            remedy="If it holds images as SITE/CLASS/image.png, write: unseen study images "
            f"--data-dir {name}",
        )
    if not inside:
        raise plugins.unknown("study", name, {**studies, **printed})
    return inside


def texts(name: str) -> list[str]:
    """Return the files that a name refers to, as they are written; after each the one it builds on.

    Example:
        >>> texts("heart")[0].splitlines()[0]
        '# unseen study heart'
    """
    files: dict[str, str] = {}
    queue = list(members(name))
    for one in queue:
        files[one] = _text(one)
        base = _toml(files[one], one).get("base", one)
        queue += [base] if base not in queue else []
    return list(files.values())


def metrics_of(name: str) -> tuple[str, ...]:
    """Return the metrics that a paper's table shows, where they are not those of its studies."""
    exhibit = exhibits().get(name)
    return exhibit.metrics if exhibit is not None and exhibit.studies else ()


def settings_of(source: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a study by name or file, and its name.

    A file may say `base = "another"`: what it sets itself wins over that study's settings.
    """
    settings = _toml(_text(source), source)
    path = Path(source)
    name = path.stem if path.suffix == ".toml" else source
    if (base := settings.pop("base", None)) is None:
        return settings, name
    below = settings_of(base)[0]
    leave_behind(below, settings.get("dataset"))
    tables = {key: {**below.get(key, {}), **settings.get(key, {})} for key in BY_KEY}
    return {**below, **settings, **{key: table for key, table in tables.items() if table}}, name


def _studies(folder: Path) -> dict[str, str]:
    names = {path.relative_to(folder).with_suffix(""): path for path in folder.rglob("*.toml")}
    return {name.as_posix(): path.read_text("utf-8") for name, path in names.items()}


def _text(name: str) -> str:
    if Path(name).suffix != ".toml":
        several = members(name)
        if several != (name,):
            remedy = f"Name one of them: {', '.join(several)}."
            raise UnseenError(f"{name!r} stands for several studies.", remedy=remedy)
        return named_studies()[name]
    if not Path(name).is_file():
        raise UnseenError(f"no study file {name!r}; `unseen list studies` has names.")
    try:
        return Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        what = f"{name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}."
        raise UnseenError(what, remedy="Save it as UTF-8.") from None


def _toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnseenError(f"{origin} is not valid TOML: {error}.") from None


#: Settings that are lists, which may be written with commas on the command line.
LISTS = {
    "methods", "targets", "seeds", "metrics", "groups", "record", "save", "published",
    "holdout.source", "holdout.validation", "holdout.target", "holdout.growing",
    "federation.sites",
}  # fmt: skip


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, the value in TOML's spelling.

    What is not a TOML value is a string, or where a list belongs the parts between its commas.

    Example:
        >>> parse_override("training.epochs=5"), parse_override("model=mlp(widths=[64])")
        (('training.epochs', 5), ('model', 'mlp(widths=[64])'))
        >>> parse_override("methods=fedavg,ppdg(lam=0.2, base='raw')"), parse_override("seeds=0,3")
        (('methods', ['fedavg', "ppdg(lam=0.2, base='raw')"]), ('seeds', ['0', '3']))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UnseenError(f"settings are written key=value, such as rounds=40; found {text!r}.")
    key, value = key.strip(), value.strip()
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    if key not in LISTS or isinstance(parsed, list | dict):
        return key, parsed
    if (key, value) == ("holdout.source", "others") or (key == "seeds" and isinstance(parsed, int)):
        return key, parsed
    return key, split_list(parsed if isinstance(parsed, str) else value)


def toml(settings: Mapping[str, Any]) -> str:
    """Return settings in TOML: texts, numbers and lists as JSON spells them, then the tables.

    Example:
        >>> print(toml({"rounds": 5, "training": {"optimiser": "sgd(lr=0.1)"}}), end="")
        rounds = 5
        <BLANKLINE>
        [training]
        optimiser = "sgd(lr=0.1)"
    """

    def key(name: str) -> str:
        return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)

    def lines(table: Mapping[str, Any], above: str) -> Iterator[str]:
        inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
        for name, value in table.items():
            if name not in inner:
                yield f"{key(name)} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in inner.items():
            yield f"\n[{above}{key(name)}]\n"
            yield from lines(value, f"{above}{key(name)}.")

    return "".join(lines(settings, ""))


def put(settings: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key of nested settings."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = settings.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UnseenError(f"{dotted}: {parent!r} is a single value, not a table.")
        settings = inner
    settings[last] = value


def put_all(settings: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set dotted keys of a file's settings; other methods than its own need not be compared."""
    leave_behind(settings, overrides.get("dataset"))
    methods = overrides.get("methods")
    if methods is not None and settings.get("reference") not in methods:
        settings.pop("reference", None)
    for key, value in overrides.items():
        put(settings, key, value)


def leave_behind(settings: dict[str, Any], dataset: Any) -> None:
    """Take away what settings say of their own data where another data set takes its place."""
    names = [_name_of(expression) for expression in (settings.get("dataset"), dataset)]
    if None not in names and names[0] != names[1]:
        settings.pop("published", None)
        settings["title"] = dataset


def _name_of(expression: Any) -> str | None:
    """Return the name that an expression begins with; None where there is none to read."""
    try:
        return parse(expression)[0].name if isinstance(expression, str) else None
    except UnseenError:
        return None  # whoever reads the setting says what is wrong with it


def split_list(text: str) -> list[str]:
    """Return comma-separated parts; commas inside brackets do not separate, nor in quoted parts.

    Example:
        >>> split_list('fedavg, ppdg(lam=0.2, base="running")+ga')
        ['fedavg', 'ppdg(lam=0.2, base="running")+ga']
        >>> split_list("'Hospital, North', west")
        ['Hospital, North', 'west']
    """
    *names, last = parts(text)
    if "" in names:
        raise UnseenError(
            f"the list {text!r} has nothing between two commas or before the first.",
            remedy="Write a name there, or take a comma away.",
        )
    return [*names, last] if last else names  # nothing at all, or a comma at the end


#: A part that is a name in quotes, up to the comma behind it or to the end.
_QUOTED = re.compile(r"""\s*(?:'([^']+)'|"([^"]+)")\s*(?:,|$)""")


def parts(text: str, brackets: str = "([)]") -> list[str]:
    """Return what stands between the commas of a text, empty parts as well.

    Args:
        text: The text; a part that is in quotes as a whole is a name without them, commas and all.
        brackets: Those inside which commas do not separate: the opening ones, then the closing.

    Example:
        >>> parts("a(b, c),, 'd, e' ,O'Hara"), parts("a(b, c)", brackets="")
        (['a(b, c)', '', 'd, e', "O'Hara"], ['a(b', 'c)'])
    """
    opening, closing = brackets[: len(brackets) // 2], brackets[len(brackets) // 2 :]
    every, start = list[str](), 0
    while True:
        if match := _QUOTED.match(text, start):
            every.append(match[1] or match[2])
            start = match.end()
            if not match[0].endswith(","):
                return every
            continue
        end = _comma(text, start, opening, closing)
        every.append(text[start:end].strip())
        if end is None:
            return every
        start = end + 1


def _comma(text: str, start: int, opening: str, closing: str) -> int | None:
    """The place of the next comma outside of brackets."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in opening) - (text[place] in closing)
        if text[place] == "," and depth == 0:
            return place
    return None
