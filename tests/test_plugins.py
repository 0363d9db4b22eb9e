"""What other packages add: a package made by hand, found by its entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import Command

from unseen import plugins
from unseen.data import datasets, info, load
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.settings.named import members, named_studies

Write = Callable[[dict[str, str], str], None]
PUBLISHED = '''"""What a paper printed."""

from unseen.studies.settings.published import Exhibit, Figure


def exhibits():
    figures = {"accuracy": {"FedAvg": {"average": Figure("81.0")}}}
    return {"lab/table1": Exhibit("A table.", ("lab/first", "lab/second"), ("accuracy",), figures)}
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Put files where packages are installed, as those of the package `lab-of-unseen`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(files: dict[str, str], entries: str) -> None:
        about = "Metadata-Version: 2.1\nName: lab-of-unseen\nVersion: 1\n"
        meta = "lab_of_unseen-1.dist-info"
        for path, text in {
            **files, f"{meta}/METADATA": about, f"{meta}/entry_points.txt": entries
        }.items():  # fmt: skip
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        plugins.installed.cache_clear()

    yield write
    monkeypatch.undo()
    plugins.installed.cache_clear()
    datasets.cache_clear()


def test_a_folder_of_studies_is_found_by_its_entry_point(package: Write) -> None:
    package(
        {
            "lab_a/__init__.py": "raise RuntimeError('never imported')\n",
            "lab_a_studies/lab/first.toml": 'title = "First"\nrounds = 3\n',
            "lab_a_studies/lab/second.toml": 'base = "lab/first"\nrounds = 4\n',
        },
        "[unseen.studies]\nlab = lab_a_studies\n",
    )
    assert members("lab") == ("lab/first", "lab/second")
    assert Study.read("lab/second").rounds == 4
    assert "digits" in named_studies()


def test_a_table_of_a_paper_stands_for_its_studies_and_under_ours(package: Write) -> None:
    package(
        {
            "lab_b/__init__.py": PUBLISHED,
            "lab_b_studies/lab/first.toml": 'published = "lab/table1"\n',
            "lab_b_studies/lab/second.toml": "rounds = 4\n",
        },
        "[unseen.studies]\nlab = lab_b_studies\n[unseen.published]\nlab = lab_b:exhibits\n",
    )
    assert members("lab/table1") == ("lab/first", "lab/second")
    assert Study.read("lab/first").published == "lab/table1"
    with pytest.raises(UnseenError, match="unknown published table 'lab/table2'; did you mean"):
        Study(published="lab/table2")


def test_a_name_that_is_there_already_is_refused(package: Write) -> None:
    package({"lab_c/digits.toml": "rounds = 3\n"}, "[unseen.studies]\nlab = lab_c\n")
    with pytest.raises(UnseenError, match="lab-of-unseen adds a study 'digits', which is there"):
        named_studies()


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ("[unseen.studies]\nlab = lab_d.nowhere\n", "ModuleNotFoundError"),
        ("[unseen.studies]\nlab = lab_d_nowhere\n", "there is no package 'lab_d_nowhere'"),
        ("[unseen.published]\nlab = lab_e:exhibits\n", "ZeroDivisionError"),
    ],
)
def test_a_broken_package_is_named(package: Write, entries: str, why: str) -> None:
    package({"lab_e.py": "1 / 0\n"}, entries)
    with pytest.raises(UnseenError, match=f"of the package lab-of-unseen.*cannot be used: {why}"):
        members("anything")


def test_studies_of_the_papers_are_named_with_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "installed", lambda group: ())
    with pytest.raises(UnseenError, match=r"'ppdg/table4' comes with the package unseen-papers"):
        members("ppdg/table4")
    with pytest.raises(UnseenError, match=r"'csac/table1' comes.*pip install \./papers"):
        Study(published="csac/table1")
    with pytest.raises(UnseenError, match="unknown study 'digit'"):
        members("digit")


DATA = '''"""Two data sets."""

from unseen.data import Info
from unseen.data.digits import load

TEXTS = {"description": "d", "source": "s", "licence": "l", "model": "logistic"}
ONE = Info(name="lab-digits", loader=load, **TEXTS)
TWO = [ONE, Info(name="lab/again", loader=load, **TEXTS)]
'''


@pytest.mark.parametrize(("name", "names"), [("ONE", ["lab-digits"]), ("TWO", ["lab/again"])])
def test_data_sets_are_loaded_by_name(
    package: Write, unseen: Command, name: str, names: list[str]
) -> None:
    module = f"lab_{name.lower()}"
    package({f"{module}.py": DATA}, f"[unseen.datasets]\nlab = {module}:{name}\n")
    datasets.cache_clear()
    for one in names:
        assert one in datasets() and info(one).model == "logistic"
        assert len(load(one).domains) == 6
    with pytest.raises(UnseenError, match="unknown data set 'lab-digit'; did you mean"):
        load("lab-digit")
    assert names[0] in unseen("list", "datasets").out


def test_data_sets_of_the_papers_are_named_with_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "installed", lambda group: ())
    datasets.cache_clear()
    for name in ("rotated-mnist", "sites/vowel", "camelyon17"):
        with pytest.raises(UnseenError, match=f"data set '{name}' comes with .* unseen-papers"):
            load(name)


def test_a_command_is_that_of_a_function(package: Write, unseen: Command) -> None:
    text = '''"""A command."""


def rank(name: str, top: int = 3) -> None:
    """Rank something.

    Args:
        name: What to rank.
        top: How many to print.
    """
    print(f"{name}: {top}")
'''
    package({"lab_g.py": text}, "[unseen.commands]\nrank-all = lab_g:rank\n")
    assert unseen("rank-all", "x", "--top", "5").out == "x: 5\n"
    assert "How many to print." in unseen("rank-all", "--help").out
    assert "rank-all" in unseen("--help").out


def test_a_command_of_the_papers_is_named_with_where_it_is(
    monkeypatch: pytest.MonkeyPatch, unseen: Command
) -> None:
    monkeypatch.setattr(plugins, "installed", lambda group: ())
    ran = unseen("compare", "results/digits")
    assert ran.code == 2 and "'compare' comes with the package unseen-papers" in ran.err
