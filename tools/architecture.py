"""The packages by their imports: layers, circles, and the picture in docs/design.md.

python tools/architecture.py          # draws the picture again, in docs/design.md
python tools/architecture.py --check  # fails where it is not that of the imports
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "unseen"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- made by tools/architecture.py -->\n", "<!-- end -->\n"
#: Lowest first: a package imports itself and those before it. Imports in functions count.
LAYERS = (
    "errors", "ranges", "expression", "version", "visible", "plugins", "core", "data", "methods",
    "engine", "privacy", "studies", "serving", "sites", "flower", "api", "cli", "unseen",
)  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("unseen", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(module: str) -> Iterator[str]:
    """Every module of ours that a module imports, in functions and for type checking too."""
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{module} imports relatively: write the whole name.")
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in modules():
                name = name.rpartition(".")[0]
            if name:
                yield name


@cache
def imports() -> dict[str, list[str]]:
    """Module -> the modules that it imports."""
    return {module: sorted(set(imported(module)) - {module}) for module in modules()}


def package(module: str) -> str:
    """The package of a module, or the loose file that it is."""
    return module.split(".")[1] if "." in module else module


def circles(graph: Mapping[str, list[str]]) -> list[str]:
    """What is left once all that imports nothing that is left has been taken away, repeatedly."""
    left = {module: set(targets) for module, targets in graph.items()}
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


def packages() -> dict[str, set[str]]:
    """Package -> the packages that it imports."""
    found: dict[str, set[str]] = {name: set() for name in LAYERS}
    for module, targets in imports().items():
        found[package(module)] |= {package(target) for target in targets}
    return {name: targets - {name} for name, targets in found.items()}


def arrows() -> dict[str, list[str]]:
    """Package -> those that it imports; an arrow that two others imply is left out."""
    small = ("errors", "ranges", "expression", "version", "visible", "unseen")
    shown = [name for name in LAYERS if name not in small]
    graph = {name: {t for t in targets if t in shown} for name, targets in packages().items()}

    @cache
    def reach(name: str) -> frozenset[str]:
        below = (reach(target) for target in graph[name])
        return frozenset(graph[name]).union(*below)

    left = {}
    for name in reversed(shown):
        implied = set().union(*(reach(target) for target in graph[name]))
        left[name] = [t for t in reversed(shown) if t in graph[name] - implied]
    return left


def picture() -> str:
    """The packages as a Mermaid flowchart."""
    lines = [f"    {name} --> {t}" for name, targets in arrows().items() for t in targets]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def levels(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """The packages in rows, each below all that import it, near the middle of these."""

    @cache
    def height(name: str) -> int:
        return 1 + max((height(target) for target in graph[name]), default=-1)

    rows: list[list[str]] = [[] for _ in range(1 + max(map(height, graph)))]
    for name in graph:
        rows[-1 - height(name)].append(name)
    at: dict[str, float] = {}
    for row in rows:
        above = {n: [at[m] for m in at if n in graph[m]] for n in row}
        row.sort(key=lambda n: sum(above[n]) / len(above[n]) if above[n] else 0.5)
        at |= {name: (i + 0.5) / len(row) for i, name in enumerate(row)}
    return rows


def svg(width: int = 720, step: int = 74) -> str:
    """The flowchart as SVG in the colours of the page around it."""
    graph = arrows()
    rows = levels(graph)
    place = {
        name: (width * (i + 0.5) / len(row), step * (y + 0.5))
        for y, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    parts = []
    for name, targets in graph.items():
        (x, y) = place[name]
        for u, v in (place[t] for t in targets):
            half = (v - y) / 2
            parts.append(
                f'<path d="M{x:.0f} {y + 14:.0f}C{x:.0f} {y + half:.0f} {u:.0f} {v - half:.0f} '
                f'{u:.0f} {v - 17:.0f}" fill="none" stroke="currentColor" stroke-opacity=".45" '
                'marker-end="url(#tip)"/>'
            )
    for name, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - 45:.0f}" y="{y - 14:.0f}" width="90" height="28" rx="6" '
            'fill="var(--md-default-bg-color,#fff)" stroke="currentColor"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="14" '
            f'fill="currentColor">{name}</text>'
        )
    tip = '<marker id="tip" orient="auto" markerWidth="7" markerHeight="6" refX="6" refY="3">'
    tip += '<path d="M0 0L7 3L0 6z" fill="currentColor"/></marker>'
    said = "; ".join(f"{name} imports {', '.join(ts)}" for name, ts in graph.items() if ts)
    return (
        f'<svg class="packages" viewBox="0 0 {width} {step * len(rows)}" role="img" '
        f'aria-label="{said}"><defs>{tip}</defs>{"".join(parts)}</svg>'
    )


def main() -> int:
    """Draw the picture again, or say whether it is up to date."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{picture()}{END}{after}"
    if "--check" in sys.argv:
        print(f"{PAGE} is {'' if text == wanted else 'not '}what the imports say")
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
