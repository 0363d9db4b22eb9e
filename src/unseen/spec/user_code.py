"""The code of a user's own parts, as far as it decides what a study computes.

Of `module:name` the file of the module counts, the file where the part is defined if that is
another one, and what these import from their own folder or package, and so on from there. What is
installed beside them, Python's own library and this package do not: their versions stand in the
records. A part of `__main__`, as in a notebook or at Python's prompt, has no file of its own: there
the source of the function or class counts, or else its bytecode, with those of `__main__` that it
names.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from unseen.errors import UnseenError
from unseen.expression import load_object, parse

#: Part -> the digest of its code, by where it stands: a method's name, `model` or `dataset`.
Code = Mapping[str, Mapping[str, str]]
INSTALLED = {"site-packages", "dist-packages"}


def code_of(methods: Iterable[str], **others: str) -> dict[str, dict[str, str]]:
    """The code of the user's own parts among the methods, by their names, and in what else is
    named; what has none is left out."""
    named = {method: method for method in methods} | others
    found = {}
    for where, expression in named.items():
        parts = [path for path in _paths(expression) if _is_own(path)]
        if parts:
            found[where] = {path: digest(path) for path in dict.fromkeys(parts)}
    return found


def changed(before: Code, now: Code) -> dict[str, tuple[str, ...]]:
    """The parts whose code is another one, by where they stand."""
    both = {where: (before[where], now[where]) for where in now if where in before}
    differ = {
        where: tuple(path for path in new if path in old and old[path] != new[path])
        for where, (old, new) in both.items()
    }
    return {where: parts for where, parts in differ.items() if parts}


def remarks(before: Code) -> list[str]:
    """A sentence on the parts whose code is another one today than that of the records.

    Parts that cannot be imported here are left out.
    """
    stale: dict[str, None] = {}
    for path, old in ((path, old) for parts in before.values() for path, old in parts.items()):
        with suppress(UnseenError):
            if digest(path) != old:
                stale[path] = None
    if not stale:
        return []
    return [
        f"the code of {', '.join(stale)} has changed since these records were written: the figures "
        "are of what it was then"
    ]


def digest(path: str) -> str:
    """Sixteen hexadecimal digits that change with the code of `module:name`."""
    part = load_object(path)
    module = sys.modules[path.partition(":")[0]]
    found = hashlib.sha256()
    if module.__name__ == "__main__":
        for text in _spoken(part):
            found.update(text)
        return found.hexdigest()[:16]
    home = sys.modules.get(getattr(part, "__module__", "") or "", module)
    for file in sorted({*_files(module), *(_files(home) if _is_own(home.__name__) else ())}):
        found.update(f"{file.name} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def _paths(expression: str) -> list[str]:
    """The `module:name` of an expression; a model may be one without brackets of its own."""
    return [call.name for call in parse(expression) if ":" in call.name]


def _is_own(path: str) -> bool:
    top = path.partition(":")[0].partition(".")[0]
    return top != "unseen" and top not in sys.stdlib_module_names - {"__main__"}


def _files(module: types.ModuleType) -> set[Path]:
    """The module's file and those that it imports from its own folder or package."""
    first = _file(module)
    if first is None:
        return set()
    depth = module.__name__.count(".") + (first.stem == "__init__")
    root = first.parents[depth]  # the folder in which imports begin
    package = root / module.__name__.partition(".")[0] if depth else None
    found, later = set(), [first]
    while later:
        file = later.pop()
        if file not in found:
            found.add(file)
            later += _imported(file, root, package)
    return found


def _file(module: types.ModuleType) -> Path | None:
    """The source of a module, or what it was made from where that is not to be had."""
    try:
        name = inspect.getsourcefile(module) or getattr(module, "__file__", None)
    except TypeError:
        return None
    return Path(name).resolve() if name and Path(name).is_file() else None


def _imported(file: Path, root: Path, package: Path | None) -> Iterator[Path]:
    """The files of imports, anywhere in a file, that lie in the package or else in the folder."""
    if file.suffix != ".py" or (package is None and INSTALLED & set(root.parts)):
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            begin = file.parents[node.level - 1] if node.level else root
            stem = [node.module] if node.module else []
            names = [(begin, ".".join([*stem, alias.name])) for alias in node.names]
        for begin, name in names:
            for candidate in _candidates(begin, name):
                if package is None or candidate.is_relative_to(package):
                    yield candidate


def _candidates(begin: Path, dotted: str) -> Iterator[Path]:
    """The files that `import a.b.c` would read below a folder, as far as they are there."""
    place = begin
    for word in dotted.split("."):
        place = place / word
        for file in (place.with_name(f"{word}.py"), place / "__init__.py"):
            if file.is_file():
                yield file.resolve()


def _spoken(part: object, seen: set[str] | None = None) -> Iterator[bytes]:
    """The source or the bytecode of a function or class of `__main__`, then of those it names."""
    seen = seen if seen is not None else set()
    name = getattr(part, "__qualname__", "")
    if name in seen or getattr(part, "__module__", None) != "__main__":
        return
    seen.add(name)
    codes = list(_codes(part))
    try:
        yield inspect.getsource(part).encode()  # type: ignore[arg-type]
    except (OSError, TypeError):
        yield from map(_bytecode, codes)
    space = vars(sys.modules["__main__"])
    for word in sorted({word for code in codes for word in _words(code)}):
        if isinstance(space.get(word), types.FunctionType | type):
            yield from _spoken(space[word], seen)


def _codes(part: object) -> Iterator[types.CodeType]:
    """The code of a function, or of a class's own methods."""
    members = [part, *(vars(part).values() if isinstance(part, type) else ())]
    for member in members:
        plain = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        code = getattr(inspect.unwrap(plain) if callable(plain) else plain, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _words(code: types.CodeType) -> set[str]:
    """The names that code looks up, also inside the functions that it makes."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_words, inner))


def _bytecode(code: types.CodeType) -> bytes:
    """Code without its place in a file."""
    consts = [_bytecode(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, consts, code.co_names, code.co_varnames)).encode()
