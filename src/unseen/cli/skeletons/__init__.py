"""`unseen new`: a first method, data set or study, with its test and its page, to write over."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from unseen.errors import UnseenError, choice
from unseen.expression import fold

__all__ = ["check_name", "rendered", "write"]

#: kind -> template -> the file that it becomes.
FILES = {
    "method": {
        "method.py.txt": "{}.py", "method_test.py.txt": "test_{}.py", "method.md.txt": "{}.md"
    },
    "dataset": {
        "dataset.py.txt": "{}.py", "dataset_test.py.txt": "test_{}.py", "dataset.md.txt": "{}.md"
    },
    "study": {
        "study.toml.txt": "{}.toml", "study_test.py.txt": "test_{}.py", "study.md.txt": "{}.md"
    },
}  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a new method, data set or study; nothing that is there is touched."""
    choice("unseen new", kind, tuple(FILES))
    check_name(kind, name, folder)
    templates = {folder / target.format(name): source for source, target in FILES[kind].items()}
    if there := [str(path) for path in templates if path.exists()]:
        raise UnseenError(
            f"{', '.join(there)} exists, and nothing is overwritten. Choose another name, or "
            "another folder by --out."
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
    if keyword.iskeyword(name) or name in keyword.softkwlist or hasattr(builtins, name):
        raise UnseenError(f"{name!r} is a Python keyword or builtin. Choose another name.")
    if fold(name) in {fold(known) for known in taken(kind)}:
        raise UnseenError(f"unseen has a {kind} {fold(name)!r}. Choose another name.")
    if (folder / f"{name}.py").exists():
        return  # said better where files are looked for
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise UnseenError(
            f"there is a module {name!r}, which a file {name}.py would hide from all that import "
            "it. Choose another name."
        )


def taken(kind: str) -> Iterable[str]:
    """Return the names that already mean something."""
    if kind == "method":
        from unseen.methods import METHODS, MODIFIERS

        return (*METHODS, *MODIFIERS)
    if kind == "dataset":
        from unseen.datasets import DATASETS

        return DATASETS
    from unseen.spec.named import named_studies

    return named_studies()
