"""`unseen new`: a first method or data set, with its test and its page, to write over."""

import builtins
import importlib.util
import keyword
import re
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from unseen.errors import UnseenError, choice
from unseen.expression import fold

__all__ = ["check_name", "new", "rendered", "write"]

Kind = Annotated[str, typer.Argument(metavar="method|dataset")]

#: Kind -> template -> the file that it becomes.
FILES = {
    kind: {
        f"{kind}.py.txt": "{}.py",
        f"{kind}_test.py.txt": "test_{}.py",
        f"{kind}.md.txt": "{}.md",
    }
    for kind in ("method", "dataset")
}
#: What to try next.
NEXT = {
    "method": 'unseen study digits --methods "fedavg,{0}:{0}"',
    "dataset": "unseen study digits dataset={0}:{0} --out results/{0}",
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")


def new(kind: Kind, name: str, out: Path = Path()) -> None:
    """Write a first method or data set of your own, with its test and its page.

    They pass as they are; write over them. Existing files are not overwritten.

    Args:
        kind: What to write.
        name: Of the file and of what is in it, such as my_rule.
        out: Folder to write into.
    """
    for path in write(kind, name, out):
        print(path)
    where = "" if out == Path() else f"cd {out} && "
    print(f"try:   {where}pytest test_{name}.py")
    print(f"then:  {where}{NEXT[kind].format(name)}")


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a new method or data set; existing files are not touched."""
    choice("unseen new", kind, tuple(FILES))
    check_name(kind, name, folder)
    templates = {folder / target.format(name): source for source, target in FILES[kind].items()}
    if there := [str(path) for path in templates if path.exists()]:
        raise UnseenError(
            f"{', '.join(there)} exists, and nothing is overwritten.",
            remedy="Choose another name, or another folder by --out.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in templates.items():
        path.write_text(rendered(source, name), "utf-8")
    return list(templates)


def rendered(template: str, name: str) -> str:
    """Return a template with NAME and CLASS filled in."""
    text = (resources.files("unseen.cli.skeletons") / template).read_text("utf-8")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return re.sub(r"NAME|CLASS(?!ES)", lambda m: name if m[0] == "NAME" else class_name, text)


def check_name(kind: str, name: str, folder: Path) -> None:
    """Refuse a name that cannot be a module's, or that is already used."""
    if not _NAME.fullmatch(name) or name.startswith("test"):
        raise UnseenError(
            "a name is that of a file and a function: 1 to 30 lower-case letters, digits and "
            f"underscores, with a letter first, and not test...; found {name!r}, such as my_rule."
        )
    why = ""
    if keyword.iskeyword(name) or name in keyword.softkwlist or hasattr(builtins, name):
        why = f"{name!r} is a Python keyword or builtin."
    elif fold(name) in {fold(other) for other in existing_names(kind)}:
        why = f"unseen has a {kind} {fold(name)!r}."
    elif (folder / f"{name}.py").exists():
        return  # `write` says it better
    elif name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        why = (
            f"there is a module {name!r}, which a file {name}.py would hide from all that import "
            "it."
        )
    if why:
        raise UnseenError(why, remedy="Choose another name.")


def existing_names(kind: str) -> Iterable[str]:
    """Return the names that already mean something."""
    if kind == "method":
        from unseen.methods import METHODS, MODIFIERS

        return (*METHODS, *MODIFIERS)
    from unseen.data import datasets

    return datasets()
