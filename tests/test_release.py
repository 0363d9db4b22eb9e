"""The release: a wheel with all of the package's files, run where nothing else of the tree is.

The environment of the wheel is a new one. Its dependencies are links to those that are installed
here, and only to those that the wheel asks for, extra by extra: installing torch once more would
take minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from test_extras import CASES

from unseen import __version__
from unseen.version import RELEASED

ROOT = Path(__file__).parents[1]
EXTRAS = sorted({case.extra for case in CASES})


def test_all_files_name_one_version_and_its_date() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], str(citation["date-released"])) == (__version__, RELEASED)
    changes = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", changes, re.MULTILINE)
    assert f"[{__version__}] - {RELEASED}" == next(
        h for h in headings if h.strip("[]") != "Unreleased"
    )
    kinds = re.findall(r"^### (\w+)$", changes, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture(scope="module")
def package_metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the metadata that pyproject.toml gives now, whatever is installed."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("metadata")
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/unseen/version.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    code = "import sys, setuptools.build_meta as b; b.prepare_metadata_for_build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return out


def test_what_is_cited_is_what_the_project_says(package_metadata: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    addresses = project["urls"]
    title = f"{project['name']}: {project['description']}"
    (author,) = project["authors"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["title"], citation["authors"]) == (title, [author])
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    assert {citation["url"], citation["repository-code"]} == {addresses["Repository"]}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package_metadata), str(ROOT / "src")])}
    command = [sys.executable, "-c", "from unseen.cli.main import main; main()", "cite"]
    ran = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    fields = re.findall(r"^  (\w+) += \{(.*)\},?$", ran.stdout, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert ran.stdout in readme or "@software{" not in readme
    assert {name: re.sub("[{}]", "", value) for name, value in fields} == {
        "author": author["name"], "title": title, "version": __version__, "year": RELEASED[:4],
        "url": addresses["Repository"],
    }  # fmt: skip


def test_every_address_of_the_project_is_below_its_repository() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    repository = urls["Repository"]
    assert all(url == repository or url.startswith(f"{repository}/") for url in urls.values())
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for found in re.findall(r"\bgit clone (\S+)", page.read_text("utf-8")):
            assert found.removesuffix(".git") == repository, page


def test_workflows_and_templates_are_read() -> None:
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) >= 6
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in files:
        text = file.read_text("utf-8")
        assert yaml.safe_load(text)
        assert set(re.findall(r"\bmake ([\w-]+)", text)) <= targets, file
        for path in re.findall(r"\btests/\w+", text):
            assert (ROOT / path).exists(), f"{file}: {path}"


def test_the_first_page_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert project["optional-dependencies"].keys() - {"dev"} <= set(re.findall(r"`([a-z]+)`", page))


def needs(extra: str = "") -> Iterator[str]:
    """The names of all packages that the wheel asks for with an extra, and that these ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"": [], **project["optional-dependencies"]}
    lines = [(line, "") for line in (*project["dependencies"], *extras[extra])]
    seen: set[tuple[str, str]] = set()
    while lines:
        line, chosen = lines.pop()
        one = Requirement(line)
        if one.marker is not None and not one.marker.evaluate({"extra": chosen}):
            continue
        for more in ("", *one.extras):
            if (one.name, more) not in seen:
                seen.add((one.name, more))
                lines += [(other, more) for other in requirements(one.name)]
    yield from sorted({each for each, _ in seen})


def requirements(package: str) -> list[str]:
    try:
        return distribution(package).requires or []
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")


def link(package: str, folder: Path) -> None:
    """Link a package's files, by what lies at the top."""
    files = distribution(package).files or ()
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        source, target = Path(str(distribution(package).locate_file(top))), folder / top
        if source.exists() and not target.exists():
            target.symlink_to(source)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    clean = out / "tree"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (clean / name).parent.mkdir(exist_ok=True)
        (clean / name).write_bytes((ROOT / name).read_bytes())
    (clean / "src").mkdir()
    for path in (ROOT / "src" / "unseen").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = clean / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    subprocess.run([sys.executable, *command, str(clean)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path, extra: str = "") -> Path:
    """A new environment with the wheel and what it asks for; its folder of programs."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    # A checkout on the path would count as installed.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, env=env)
    for package in needs(extra):
        link(package, packages)
    return folder / "bin"


def run(programs: Path, folder: Path, *command: str) -> str:
    """What a program of the environment prints, without anything of this one."""
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"unseen-{__version__}-py3-none-any.whl"
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "unseen").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("unseen/")}
    assert packed == files


@pytest.mark.slow
def test_a_wheel_alone_runs_a_study_and_the_first_tutorial(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "fresh", wheel)
    place = "import unseen, importlib.util as u; print(unseen.__file__, u.find_spec('optuna'))"
    said = run(programs, tmp_path, str(programs / "python"), "-c", place).split()
    assert said[0].startswith(str(tmp_path)) and said[1] == "None"
    table = run(programs, tmp_path, "unseen", "study", "digits", "rounds=2", "--seeds", "1",
                "--out", "first")  # fmt: skip
    assert "fedavg" in table and "average" in table
    page = (ROOT / "docs" / "tutorials" / "compare-methods.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for kind, text in blocks:
        if kind == "toml":
            (tmp_path / "mine.toml").write_text(text)
        elif kind == "sh":
            run(programs, tmp_path, "sh", "-ec", text)
    assert (tmp_path / "results" / "digits" / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_brings_what_it_needs(wheel: Path, tmp_path: Path, extra: str) -> None:
    packages = dict.fromkeys(case.package for case in CASES if case.extra == extra)
    programs = environment(tmp_path / "fresh", wheel, extra)
    code = "; ".join(f"import {name}" for name in ("unseen.cli.main", *packages))
    run(programs, tmp_path, str(programs / "python"), "-c", code)
