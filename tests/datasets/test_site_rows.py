"""Sites that a table leaves out, sites that are too small, and names that no site may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.summary import Report, inspect
from unseen.data.tables.delimited import assemble
from unseen.data.tables.table_files import read
from unseen.errors import UnseenError
from unseen.expression import parse

ROLES = {"domain": "site", "label": "died"}
CALL = "table(path='t.csv', domain='site', label='died'{})"


def write(folder: Path, labels: str = "01", **sizes: int) -> Path:
    rows = [f"{s},{i},{labels[i % len(labels)]}\n" for s, n in sizes.items() for i in range(n)]
    (folder / "t.csv").write_text("site,age,died\n" + "".join(rows))
    return folder


def table(folder: Path, **options: object) -> DataSet:
    return load("table", folder, path="t.csv", **ROLES, **options)


def report(folder: Path, options: str = "") -> Report:
    return inspect(parse(CALL.format(options))[0], folder)


def test_small_sites_and_sites_by_name_are_left_out_with_a_remark(tmp_path: Path) -> None:
    write(tmp_path, north=12, south=12, west=1, east=3)
    data = table(tmp_path, least=10)
    assert data.names == ("north", "south")
    assert data.notes == ("2 sites left out, of fewer than 10 rows: east, west (4 rows)",)
    data = table(tmp_path, without="west")
    assert data.names == ("east", "north", "south")
    assert data.notes == ("1 site left out, named in 'without': west (1 row)",)
    assert table(tmp_path, without=["west", "east"], least=12).names == ("north", "south")
    with pytest.raises(UnseenError, match="unknown site to leave out 'wset'; did you mean 'west'"):
        table(tmp_path, without=["wset"])
    with pytest.raises(UnseenError, match="no site of t.csv is left: all 4 are of fewer than 99"):
        table(tmp_path, least=99)
    with pytest.raises(UnseenError, match="least"):
        table(tmp_path, least=0)


def test_codes_of_sites_are_left_out_however_they_are_spelt(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,age,died\n1.0,1,0\n01,2,1\n2,3,1\n2,4,0\n")
    assert table(tmp_path, without=["1"]).names == ("2",)


def test_a_site_without_labels_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, north=4, south=4)
    with (tmp_path / "t.csv").open("a") as file:
        file.write("west,1,\n")
    assert table(tmp_path, without=["west"]).names == ("north", "south")


def test_one_sites_own_sheet_need_not_have_the_sites_to_leave_out(tmp_path: Path) -> None:
    sheet = read(write(tmp_path, "0", north=4) / "t.csv")
    assert assemble(sheet, **ROLES, without=["west"]).classes == ("0",)


def test_check_ends_with_an_error_where_a_site_cannot_be_split(tmp_path: Path) -> None:
    found = report(write(tmp_path, north=12, south=12, west=1))
    assert not found.sound and [d.count for d in found.domains] == [12, 12, 1]
    assert "site 'west' has 1 example" in found.refused
    assert "least=2 " in found.refused and "without=['west']" in found.refused
    found = report(tmp_path, ", least=2")
    assert found.sound and found.columns[0].values == "2 different: north, south"
    text = (tmp_path / "t.csv").read_text().replace("site", "p,site").replace("\n", "\nx,")[:-2]
    (tmp_path / "t.csv").write_text(text)
    found = report(tmp_path, ", unit='p', without=['west']")
    assert "all 12 examples of site 'north' are of one unit" in found.refused
    # Both sites are of one unit: a size that leaves them out leaves none.
    assert "of a table by without=['north', 'south'] in" in found.refused


def test_one_class_in_all_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "0", north=12, south=12)
    with pytest.raises(UnseenError, match="all 24 rows of t.csv have the label '0'"):
        table(tmp_path)
    found = report(tmp_path)
    assert not found.sound and found.counts == {"0": 24} and "nothing to learn" in found.refused
    assert report(write(tmp_path, "01", north=12, south=12)).sound


@pytest.mark.parametrize("name", ["average", "worst", "rank", "method", "x" * 201])
def test_names_that_results_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{name: 4, "south": 4})
    fault = "has 201 letters" if name[0] == "x" else f"a domain is called {name!r}, as is a column"
    with pytest.raises(UnseenError, match=fault):
        table(tmp_path)
    assert fault in report(tmp_path).refused
    assert table(write(tmp_path, **{"x" * 200: 4, "Average": 4})).names[0] == "Average"
