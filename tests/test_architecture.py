"""The house by its imports: packages in layers, no circle, few loose files, names of their own."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import unseen

ROOT = Path(unseen.__file__).parent
#: Lowest first: a package imports itself and those before it. Imports in functions count.
LAYERS = (
    "errors", "expression", "version", "core", "combine", "images", "models", "datasets", "recipe",
    "gradient", "local", "methods", "engine", "spec", "results", "follow", "privacy", "study",
    "report", "audit", "serving", "federation", "flower", "cli", "unseen",
)  # fmt: skip
#: What only reads or describes must not reach what runs.
READERS, RUNNERS = ("spec", "results", "follow"), ("study", "privacy", "federation", "serving")


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("unseen", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(module: str) -> Iterator[str]:
    """Every module of ours that a module imports, in functions and for type checking too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name:
                yield name


IMPORTS = {module: sorted(set(imported(module)) - {module}) for module in MODULES}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def circles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """What is left once all that imports nothing that is left has been taken away, repeatedly."""
    left = {module: set(targets) for module, targets in graph.items()}
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    return [sorted(left)] if left else []


def test_the_circle_finder_finds_circles() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": []}) == [["a", "b", "c"]]


def test_no_import_goes_in_a_circle() -> None:
    assert circles(IMPORTS) == []


def test_no_package_imports_one_above_it() -> None:
    rank = {name: i for i, name in enumerate(LAYERS)}
    assert {package(module) for module in MODULES} == set(LAYERS)
    upward = [
        f"{module} imports {target}"
        for module, targets in IMPORTS.items()
        for target in targets
        if rank[package(target)] > rank[package(module)]
    ]
    assert not upward


def test_what_reads_results_imports_nothing_that_runs() -> None:
    seen = {m for m in MODULES if package(m) in READERS}
    queue = list(seen)
    while queue:
        more = set(IMPORTS[queue.pop()]) - seen
        seen |= more
        queue += more
    assert not {module for module in seen if package(module) in RUNNERS}


def test_few_files_lie_loose() -> None:
    loose = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "errors", "expression"}
    assert len(loose) <= 4, loose


def test_every_package_says_what_is_public() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            assert "__all__ = [" in path.read_text(), module


def test_files_have_names_of_their_own() -> None:
    """But for a method's parts, which are called after the method."""
    parts = ("combine", "gradient", "local", "methods")
    others = [p for m, p in MODULES.items() if package(m) not in parts and p.stem != "__init__"]
    count = Counter(path.name for path in others)
    assert not [name for name, n in count.items() if n > 1]
    own = {p.name for m, p in MODULES.items() if package(m) in parts and p.stem != "__init__"}
    assert not own & count.keys()


def test_no_method_imports_another() -> None:
    """What methods share lies in these modules; the package's table and `compose` import all."""
    shared = {f"unseen.methods.{name}" for name in ("base", "options", "rules")}
    tables = {"unseen.methods", "unseen.methods.compose"}
    methods = {m for m in MODULES if package(m) == "methods"} - tables
    assert not [(m, t) for m in methods for t in IMPORTS[m] if t in methods - shared]
    assert not [(m, t) for m in shared for t in IMPORTS[m] if t in methods - shared]
