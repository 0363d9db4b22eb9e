"""The column of sites is called `site`; `domain`, its name in version 0.1, means the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Command
from support.federations import write_table

import unseen as package
from unseen.data import load
from unseen.errors import UnseenError
from unseen.expression import parse, text

OPTIONS = "label='died', drop=['id', 'score']"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("visits") / "visits.csv")


def test_choose_takes_either_name(table: Path, unseen: Command) -> None:
    words = ("--label", "died", "drop=['id', 'score']", "--recipes", "glm", "--dry-run")
    one, other = (unseen("choose", table, name, "site", *words) for name in ("--site", "--domain"))
    assert one.code == other.code == 0, one.err + other.err
    assert one.out.splitlines()[0] == other.out.splitlines()[0]


def test_evaluate_takes_either_name(table: Path, tmp_path: Path, unseen: Command) -> None:
    dataset = f"table(path='{table}', site='site', {OPTIONS})"
    package.train(package.Study(dataset=dataset, methods=["glm"]), tmp_path / "model")
    said = []
    for column, only in (("--site", "--sites"), ("--domain", "--domains")):
        few = (column, "site", only, "north,west")
        said.append(unseen("evaluate", tmp_path / "model", "--data", table, *few))
    assert said[0].code == said[1].code == 0 and said[0].out == said[1].out
    assert "north" in said[0].out and "south" not in said[0].out


def test_a_table_takes_either_name(table: Path) -> None:
    names = [load(f"table(path='{table}', {name}='site', {OPTIONS})").names
             for name in ("site", "domain")]  # fmt: skip
    assert names[0] == names[1] and "north" in names[0]
    with pytest.raises(UnseenError, match="'site' and 'domain' are one option"):
        load(f"table(path='{table}', site='site', domain='site', {OPTIONS})")


def test_an_expression_has_one_text_and_other_parts_keep_their_options() -> None:
    assert text(parse("table(site='a', label='b')")) == "table(domain='a', label='b')"
    assert text(parse("my_data:table(site='a')")) == "my_data:table(site='a')"


def test_a_frame_takes_either_name(table: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")
    frame = pandas.read_csv(table).drop(columns=["id", "score"])
    studies = [
        package.Study(dataset=frame, label="died", methods=["glm"], **{name: "site"})
        for name in ("site", "domain")
    ]
    assert studies[0].dataset == studies[1].dataset
