"""The house by its imports: packages in layers, no circle, few loose files, names of their own."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import unseen

ROOT = Path(__file__).parents[1]
SOURCE = Path(unseen.__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

import architecture  # noqa: E402
from architecture import LAYERS, circles, imports, modules, package  # noqa: E402

pytestmark = pytest.mark.skipif(
    SOURCE != architecture.SOURCE, reason="the package is not that of this checkout"
)
#: What only reads or describes must not reach what runs.
READERS = ("studies.settings", "studies.results", "studies.tracking")
RUNNERS = ("studies.execution", "privacy", "sites", "serving")
#: Of a room with packages: lowest first. A package imports itself, those before it, and files of
#: the room that lie in none.
INSIDE = {
    "methods": ("combine", "images", "gradient", "local", "exact"),
    "studies": ("settings", "results", "tracking", "execution", "report", "choice", "audit"),
}


def part(module: str) -> str:
    """The package of a module within its room, as `room.package`; the room for a loose file."""
    _, room, *rest = f"{module}.".split(".")
    return f"{room}.{rest[0]}" if rest and rest[0] in INSIDE.get(room, ()) else room


def test_the_circle_finder_finds_circles() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": []}) == ["a", "b", "c"]


def test_no_import_goes_in_a_circle() -> None:
    assert circles(imports()) == []


def test_no_package_imports_one_above_it() -> None:
    rank = {name: i for i, name in enumerate(LAYERS)}
    assert {package(module) for module in modules()} == set(LAYERS)
    upward = [
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if rank[package(target)] > rank[package(module)]
    ]
    assert not upward


@pytest.mark.parametrize("room", INSIDE)
def test_no_part_of_a_room_imports_one_above_it(room: str) -> None:
    rank = {f"{room}.{name}": i for i, name in enumerate(INSIDE[room])}
    upward = [
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if rank.get(part(target), 0) > rank.get(part(module), len(rank))
    ]
    assert not upward


def test_what_reads_results_imports_nothing_that_runs() -> None:
    seen = {m for m in modules() if part(m) in READERS}
    queue = list(seen)
    while queue:
        more = set(imports()[queue.pop()]) - seen
        seen |= more
        queue += more
    assert not {m for m in seen if part(m) in RUNNERS or package(m) in RUNNERS}


def test_unseen_works_without_the_papers() -> None:
    """Their package is found by its entry points."""
    assert not [m for m, path in modules().items() if "unseen_papers" in path.read_text()]


def test_few_files_lie_loose() -> None:
    loose = {path.stem for path in SOURCE.glob("*.py")} - {
        "__init__",
        "errors",
        "ranges",
        "expression",
    }
    assert len(loose) <= 4, loose


def test_every_package_says_what_is_public() -> None:
    for module, path in modules().items():
        if path.name == "__init__.py":
            assert "__all__ = [" in path.read_text(), module


def test_files_have_names_of_their_own() -> None:
    """But for a method's parts, which are called after the method."""
    parts = ("methods", "methods.combine", "methods.gradient", "methods.local")
    files = [(part(m), p.name) for m, p in modules().items() if p.stem != "__init__"]
    count = Counter(name for where, name in files if where not in parts)
    assert not [name for name, n in count.items() if n > 1]
    own = {name for where, name in files if where in parts}
    assert not own & count.keys()


def test_no_file_is_too_long_to_be_read() -> None:
    long = {p.name: n for p in modules().values() if (n := p.read_text().count("\n")) > 350}
    assert not long
    tests = {p.name: p.read_text().count("\n") for p in (ROOT / "tests").rglob("*.py")}
    assert not {name: n for name, n in tests.items() if n > 600}


@pytest.mark.parametrize("room", ["api", "cli", "serving"])
def test_no_function_takes_more_than_eight_arguments(room: str) -> None:
    functions = [
        (module, node.name, len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]))
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if package(module) == room and isinstance(node, ast.FunctionDef)
    ]
    assert not [(module, name) for module, name, arguments in functions if arguments > 8]


def test_names_say_what_they_hold() -> None:
    """None is a bare participle, which says what happened to a thing and not what it is."""
    bare = {
        "begun", "chosen", "dealt", "done", "drawn", "found", "given", "gone", "held", "kept",
        "known", "looked", "lost", "made", "meant", "said", "seen", "sent", "shown", "spent",
        "spoken", "taken", "told", "understood", "wanted", "written",
    }  # fmt: skip
    # What every error says, and a key of choice.json.
    apart = {("unseen.errors", "found"), ("unseen.studies.choice.answer", "sent")}
    names = {(module, name) for module, path in modules().items() for name in bound(path)}
    assert not {(m, n) for m, n in names if n.strip("_") in bare} - apart


def bound(path: Path) -> Iterator[str]:
    """Every name that a file binds: variables, parameters, attributes, functions and classes."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def test_the_picture_is_that_of_the_imports() -> None:
    assert architecture.picture() in (ROOT / "docs" / "design.md").read_text("utf-8")


def test_no_method_imports_another() -> None:
    """What methods share lies in these modules; the package's table and `compose` import all."""
    shared = {
        f"unseen.methods.{name}"
        for name in (
            "base",
            "between",
            "new_rule",
            "options",
            "rules",
            "mixed",
            "mixture_replies",
            "together",
            "recipe",
        )
    }
    tables = {"unseen.methods", "unseen.methods.table", "unseen.methods.compose"}
    methods = {m for m in modules() if part(m) == "methods"} - tables
    assert not [(m, t) for m in methods for t in imports()[m] if t in methods - shared]
    assert not [(m, t) for m in shared for t in imports()[m] if t in methods - shared]
