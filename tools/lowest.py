"""Print the lowest versions that pyproject.toml admits, as constraints for pip.

    python tools/lowest.py dev pandas > lowest.txt
    pip install -c lowest.txt -e ".[pandas]" pytest pytest-timeout hypothesis

The dependencies of the package itself are always there, those of extras where they are named.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(line: str) -> str | None:
    """Return `name==version` of a requirement's lower bound; None where it has none.

    Example:
        >>> lowest("flwr[simulation]>=1.41,<1.43"), lowest("torch")
        ('flwr==1.41', None)
    """
    name, bound = re.match(r"[\w.-]+", line), re.search(r"(?:>=|==|~=)\s*([\w.]+)", line)
    return f"{name[0]}=={bound[1]}" if name and bound else None


def constraints(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Return the lowest versions of a project's dependencies and of these extras', sorted.

    Raises:
        SystemExit: If the project has no such extra.
    """
    offered = project["optional-dependencies"]
    if unknown := [name for name in extras if name not in offered]:
        raise SystemExit(f"no extra {unknown[0]!r}; there are {', '.join(offered)}")
    lines = [*project["dependencies"], *(line for name in extras for line in offered[name])]
    return sorted({found for line in lines if (found := lowest(line))}, key=str.lower)


if __name__ == "__main__":
    print("\n".join(constraints(tomllib.loads(PROJECT.read_text())["project"], sys.argv[1:])))
