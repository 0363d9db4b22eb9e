"""Lines of the package, by folder: all of them, and without the sections of docstrings.

    python tools/lines.py

A section of a docstring (`Args:`, `Returns:`, ...) is reference, not program: it is counted apart.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "unseen"
SECTIONS = {
    f"{name}:"
    for name in (
        "Args", "Attributes", "Returns", "Yields", "Raises", "Source", "Departs from", "Example",
        "Examples", "Note",
    )
}  # fmt: skip


def section_lines(text: str) -> int:
    """Lines of a file that belong to sections of docstrings."""
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            inside = False
            for line in (docstring or "").split("\n"):
                if line in SECTIONS:
                    inside = True
                elif line and not line[0].isspace():
                    inside = False
                count += inside
    return count


def main() -> None:
    """Print the table."""
    total: Counter[str] = Counter()
    sections: Counter[str] = Counter()
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        folder = parts[0] if len(parts) > 1 else "(loose)"
        text = path.read_text()
        total[folder] += text.count("\n")
        sections[folder] += section_lines(text)
    print(f"{'package':12}{'lines':>8}{'sections':>10}{'without':>9}")
    for folder, lines in sorted(total.items()):
        print(f"{folder:12}{lines:8}{sections[folder]:10}{lines - sections[folder]:9}")
    whole, apart = total.total(), sections.total()
    print(f"{'all':12}{whole:8}{apart:10}{whole - apart:9}")


if __name__ == "__main__":
    main()
