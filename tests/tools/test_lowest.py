"""The lowest versions that pyproject.toml admits, as constraints."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("lowest", ROOT / "tools" / "lowest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lower_bounds_become_constraints(tool) -> None:
    project = {
        "dependencies": ["torch>=2.6,<2.14", "numpy"],
        "optional-dependencies": {"f": ["Flwr[simulation]<2,>=1.41"], "dev": ["a==1", "unseen[f]"]},
    }
    assert tool.constraints(project, []) == ["torch==2.6"]
    assert tool.constraints(project, ["f", "dev"]) == ["a==1", "Flwr==1.41", "torch==2.6"]
    with pytest.raises(SystemExit, match="no extra 'g'; there are f, dev"):
        tool.constraints(project, ["g"])


def test_every_dependency_has_a_lower_bound(tool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    assert [line for line in lines if tool.lowest(line) is None and "unseen[" not in line] == []
