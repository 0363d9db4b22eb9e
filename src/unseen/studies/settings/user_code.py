"""The code of a user's own parts, as far as it decides what a study computes.

Of `module:name` that is the file of the module, the one where the part is defined, and what these
import from their own folder or package; versions of all else stand in the records. Of a part of
`__main__` it is the source, or else the bytecode, with those of `__main__` that it names.
"""

import ast
import hashlib
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from unseen.errors import UnseenError
from unseen.expression import load_object, nested

#: Part -> the digest of its code, by where it stands: a method's name, `model` or `dataset`.
Code = Mapping[str, Mapping[str, str]]
INSTALLED = {"site-packages", "dist-packages"}


def code_of(methods: Iterable[str], **others: str) -> dict[str, dict[str, str]]:
    """Return the code of the user's own parts; an expression without any is left out.

    Args:
        methods: The methods' expressions, which are their names.
        others: The other expressions by name, such as `model`.
    """
    codes = {}
    for where, expression in ({method: method for method in methods} | others).items():
        paths = (call.name for call in nested(expression) if ":" in call.name)
        if parts := {path: digest(path) for path in paths if _is_own(path)}:
            codes[where] = parts
    return codes


def changed(before: Code, now: Code) -> dict[str, tuple[str, ...]]:
    """Return the parts whose code differs, by their expression."""
    differ = {
        where: tuple(p for p, new in now[where].items() if before[where].get(p, new) != new)
        for where in now
        if where in before
    }
    return {where: parts for where, parts in differ.items() if parts}


def remarks(before: Code) -> list[str]:
    """Return a sentence on the parts whose code is no longer that of the records, if any."""
    stale: dict[str, None] = {}
    for path, old in (pair for parts in before.values() for pair in parts.items()):
        with suppress(UnseenError):  # of a part that cannot be imported here
            stale |= {path: None} if digest(path) != old else {}
    what = f"the code of {', '.join(stale)} has changed since these records were written: the "
    return [f"{what}figures are of what it was then"] if stale else []


def digest(path: str) -> str:
    """Return sixteen hexadecimal digits that change with the code of `module:name`."""
    part = load_object(path)
    module = sys.modules[path.partition(":")[0]]
    home = sys.modules.get(getattr(part, "__module__", "") or "", module)
    if module.__name__ == "__main__":
        texts = b"".join(_sources(part, set()))
    else:
        texts = _contents({*_files(module), *(_files(home) if _is_own(home.__name__) else ())})
    return hashlib.sha256(texts).hexdigest()[:16]


def _is_own(path: str) -> bool:
    top = path.partition(":")[0].partition(".")[0]
    return top != "unseen" and top not in sys.stdlib_module_names - {"__main__"}


def source_of(path: str) -> Path | None:
    """Return the file of `module:name`, found without importing anything; None: there is none."""
    name = path.partition(":")[0]
    if loaded := sys.modules.get(name):
        return _file(loaded)
    places, words = [os.getcwd(), *sys.path], name.split(".")
    for i in range(len(words)):
        spec = PathFinder.find_spec(".".join(words[: i + 1]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return origin.resolve() if origin is not None and origin.is_file() else None


def digest_of_source(path: str) -> str:
    """Return sixteen hexadecimal digits of the code of `module:name`, which is not imported."""
    if (first := source_of(path)) is None:
        return ""
    return hashlib.sha256(_contents(_related(first, path.partition(":")[0]))).hexdigest()[:16]


def _contents(files: Iterable[Path]) -> bytes:
    pairs = (
        (f"{f.name} ".encode(), hashlib.sha256(f.read_bytes()).digest()) for f in sorted(files)
    )
    return b"".join(name + inner for name, inner in pairs)


def _files(module: types.ModuleType) -> set[Path]:
    """Return the module's file and those that it imports from its own folder or package."""
    first = _file(module)
    return _related(first, module.__name__) if first is not None else set()


def _related(first: Path, name: str) -> set[Path]:
    """Return a module's file and those that it imports from its own folder or package."""
    depth = name.count(".") + (first.stem == "__init__")
    root = first.parents[depth]  # the folder in which imports begin
    package = root / name.partition(".")[0] if depth else None
    files, later = {first}, [first]
    for file in later:
        new = set(_imported(file, root, package)) - files
        files |= new
        later += new
    return files


def _file(module: types.ModuleType) -> Path | None:
    """Return the source of a module, or its compiled file where there is no source."""
    with suppress(TypeError):
        name = inspect.getsourcefile(module) or getattr(module, "__file__", None)
        return Path(name).resolve() if name and Path(name).is_file() else None
    return None


def _imported(file: Path, root: Path, package: Path | None) -> Iterator[Path]:
    """Yield the files of imports, anywhere in a file, in the package or else in the folder."""
    if file.suffix != ".py" or (package is None and INSTALLED & set(root.parts)):
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level, stem = 0, ""
        if isinstance(node, ast.ImportFrom):
            level, stem = node.level, f"{node.module}." if node.module else ""
        begin = file.parents[level - 1] if level else root
        for alias in node.names:
            for candidate in _candidates(begin, stem + alias.name):
                if package is None or candidate.is_relative_to(package):
                    yield candidate


def _candidates(begin: Path, dotted: str) -> Iterator[Path]:
    """Yield the files that `import a.b.c` would read below a folder, as far as they exist."""
    place = begin
    for word in dotted.split("."):
        place = place / word
        for file in (place.with_name(f"{word}.py"), place / "__init__.py"):
            if file.is_file():
                yield file.resolve()


def _sources(part: object, visited: set[str]) -> Iterator[bytes]:
    """Yield the source or bytecode of a function or class of `__main__`, then of those it names."""
    name = getattr(part, "__qualname__", "")
    if name in visited or getattr(part, "__module__", None) != "__main__":
        return
    visited.add(name)
    codes = list(_codes(part))
    try:
        yield inspect.getsource(part).encode()  # type: ignore[arg-type]
    except (OSError, TypeError):
        yield from map(_bytecode, codes)
    space = vars(sys.modules["__main__"])
    for word in sorted({word for code in codes for word in _words(code)}):
        if isinstance(space.get(word), types.FunctionType | type):
            yield from _sources(space[word], visited)


def _codes(part: object) -> Iterator[types.CodeType]:
    """Yield the code of a function, or of a class's own methods."""
    members = [part, *(vars(part).values() if isinstance(part, type) else ())]
    for member in members:
        plain = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        code = getattr(inspect.unwrap(plain) if callable(plain) else plain, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _words(code: types.CodeType) -> set[str]:
    """Return the names that code looks up, also inside the functions that it makes."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_words, inner))


def _bytecode(code: types.CodeType) -> bytes:
    """Return code without its place in a file."""
    consts = [_bytecode(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, consts, code.co_names, code.co_varnames)).encode()
