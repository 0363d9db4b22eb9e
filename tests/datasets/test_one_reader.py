"""A table reads as the same typed columns, however it is written: dialects, quotes, Parquet."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unseen.datasets.tables.cells import Cells, spelt_numbers
from unseen.datasets.tables.delimited import load
from unseen.datasets.tables.dialect import number
from unseen.datasets.tables.frames import expression_of
from unseen.datasets.tables.sheet import MISSING
from unseen.datasets.tables.table_files import read
from unseen.errors import UnseenError
from unseen.expression import parse

NUMBER = st.one_of(
    st.floats(-1e12, 1e12, allow_nan=False).map(repr),
    st.integers(-10_000, 10_000).map(str),
    st.sampled_from(["+1.5", "007", "1e-3", "1.", "-.5", "12E+2"]),
)
WORD = st.sampled_from(
    ["m", "f", "Zürich", "a b", 'say "so"', "x;y", "x,y", "q\nr", "tab\tbed", "-"]
)
GAP = st.sampled_from(["", "NA", "?", "."])
CELL = {"number": NUMBER, "word": WORD}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Draw names and rows of cells; a column holds numbers or words, and gaps."""
    kinds = draw(st.lists(st.sampled_from(["number", "word"]), min_size=2, max_size=4))
    cells = [st.one_of(CELL[kind], CELL[kind], GAP) for kind in kinds]
    rows = draw(st.lists(st.tuples(*cells).map(list), min_size=1, max_size=12))
    return [f"c {j}" for j in range(len(kinds))], rows


def written(names: list[str], rows: list[list[str]], **how: Any) -> str:
    file = io.StringIO()
    writer = csv.writer(file, **how)
    writer.writerow(names)
    writer.writerows(rows)
    return file.getvalue()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tables(),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.booleans(),
)
def test_every_dialect_reads_as_the_same_typed_columns(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[list[str], list[list[str]]],
    separator: str,
    quoting: Any,
    end: str,
    encoding: str,
    packed: bool,
) -> None:
    names, rows = table
    text = written(names, rows, delimiter=separator, quoting=quoting, lineterminator=end)
    path = tmp_path_factory.mktemp("dialect") / ("t.csv.gz" if packed else "t.csv")
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if packed else content)
    sheet = read(path, separator=separator, decimal=".")
    assert [*sheet.columns] == names
    for j, name in enumerate(names):
        expected = [None if row[j] in MISSING else row[j] for row in rows]
        cells = sheet.columns[name]
        assert [*cells] == expected
        values = [float("nan") if cell is None else number(cell) for cell in expected]
        plain = np.array([float("nan") if value is None else value for value in values])
        np.testing.assert_array_equal(cells.numbers, plain)
        assert cells.texts == [*dict.fromkeys(cell for cell in expected if cell is not None)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(NUMBER, WORD, st.text(max_size=6)), min_size=20, max_size=60))
def test_numbers_are_those_that_python_reads(texts: list[str]) -> None:
    array = pyarrow.array(texts, pyarrow.string())
    for decimal in (".", ","):
        values, are_numbers = spelt_numbers(array, decimal)
        for text, value, is_number in zip(texts, values, are_numbers, strict=True):
            expected = number(text, decimal)
            assert is_number == (expected is not None)
            if expected is not None:
                assert value == expected or value != value


def test_blanks_at_the_ends_are_those_of_python(tmp_path: Path) -> None:
    spaces = [chr(c) for c in range(0x3001) if chr(c).isspace() and chr(c) not in "\n\r"]
    lines = "".join(f"{space}a{space},{i}\n" for i, space in enumerate(spaces))
    (tmp_path / "t.csv").write_text(f"x,y\n{lines}", encoding="utf-8", newline="")
    assert read(tmp_path / "t.csv").columns["x"].texts == ["a"]


@pytest.mark.parametrize("text", ['a,b\n"x"y,1\n', 'a,b\n"x,1\n', "a,b\n1\n", 'a,b\n,""z\n'])
def test_what_is_no_csv_file_is_refused_as_before(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(Exception, match="is not a csv file|has 1 cells where 2"):
        read(tmp_path / "t.csv")


def test_rows_that_are_taken_keep_the_order_of_their_first_texts() -> None:
    cells = Cells.of(["a", "b", "a", None, "c"])
    assert cells.take([1, 2, 3]).texts == ["b", "a"]
    assert [*cells.take([4, 3, 0])] == ["c", None, "a"]
    assert [*cells.take([])] == [] and cells[1:4] == ["b", "a", None]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.booleans())
def test_parquet_reads_as_csv_does(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[list[str], list[list[str]]],
    as_dictionary: bool,
) -> None:
    names, rows = table
    folder = tmp_path_factory.mktemp("parquet")
    columns = {}
    for j, name in enumerate(names):
        cells = [row[j] if row[j] not in MISSING else None for row in rows]
        floats = all(cell is None or number(cell) is not None for cell in cells)
        values = [float(cell) if floats and cell is not None else cell for cell in cells]
        array = pyarrow.array(values, pyarrow.float64() if floats else pyarrow.string())
        columns[name] = array.dictionary_encode() if as_dictionary and not floats else array
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    (folder / "t.csv").write_text(written(names, rows), encoding="utf-8", newline="")
    ours, theirs = read(folder / "t.parquet"), read(folder / "t.csv")
    for name in names:
        own, other = ours.columns[name], theirs.columns[name]
        np.testing.assert_array_equal(own.numbers, other.numbers)
        if not own.all_numbers:
            assert [*own] == [*other]
    assert ours.at_row(0) == "row 1"


def test_parquet_columns_that_no_table_has_are_named(tmp_path: Path) -> None:
    lists = pyarrow.table({"a": [[1], [2]], "b": [1, 2]})
    pyarrow.parquet.write_table(lists, tmp_path / "t.parquet")
    with pytest.raises(UnseenError, match=r"column 'a' .* holds list"):
        read(tmp_path / "t.parquet")


FRAME = st.fixed_dictionaries(
    {
        "age": st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=6, max_size=6),
        "sex": st.lists(st.sampled_from(["f", "m", None]), min_size=6, max_size=6),
    }
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FRAME)
def test_a_frame_and_a_csv_file_are_the_same_data_set(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[Any]]
) -> None:
    pandas = pytest.importorskip("pandas")
    known = {"site": ["a", "b"] * 3, "died": [0, 0, 1, 1, 0, 1], "dose": [1, 2, 3, 4, 5, 6]}
    frame = pandas.DataFrame({**known, **columns})
    frame["age"], frame["sex"] = frame["age"].astype(float), frame["sex"].fillna("u")
    folder = tmp_path_factory.mktemp("frame")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        (call,) = parse(expression_of(frame, "site", "died", identifiers="keep"))
    frame.to_csv(folder / "t.csv", index=False)
    ours = load(None, **call.arguments)
    theirs = load(None, **{**call.arguments, "path": str(folder / "t.csv")})
    assert ours.schema == theirs.schema
    for own, other in zip(ours.domains, theirs.domains, strict=True):
        np.testing.assert_array_equal(own.x.numpy(), other.x.numpy())
        assert own.name == other.name and own.y.tolist() == other.y.tolist()
