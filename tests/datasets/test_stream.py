"""Named columns of a csv file, read row by row."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from unseen.data.tables.table_files import stream
from unseen.errors import UnseenError


def test_columns_come_in_the_order_asked_for_packed_or_not(tmp_path: Path) -> None:
    text = '\ufeffa,b,c\n1, 2 ,"x, y"\n3,,"two\nlines"\n'
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("t.csv", "t.csv.gz"):
        assert list(stream(tmp_path / name, ("c", "b"))) == [("x, y", "2"), ("two\nlines", "")]


def test_a_missing_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("hospital,died\n1,0\n")
    with pytest.raises(UnseenError, match="did you mean 'hospital'"):
        list(stream(tmp_path / "t.csv", ("hospitl",)))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(UnseenError, match="line 3 .* has 1 cells where 2"):
        list(stream(path, ("a",)))
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(b"a,b\n" + 999 * b"1,2\n")[:-9])
    with pytest.raises(UnseenError, match="is not a csv file"):
        list(stream(packed, ("a",)))
    with pytest.raises(UnseenError, match="is not a csv file"):
        list(stream(tmp_path / "none.csv", ("a",)))
