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

from unseen.data.tables.cells import Cells, spelt_numbers
from unseen.data.tables.delimited import load
from unseen.data.tables.dialect import number
from unseen.data.tables.frames import arrow_of, expression_of
from unseen.data.tables.parquet_rows import cells_of_column
from unseen.data.tables.sheet import MISSING
from unseen.data.tables.table_files import read
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


def values_of(rows: list[list[str]], j: int) -> list[float | str | None]:
    """Return a column as a program holds it: numbers if all cells are, else words."""
    cells = [row[j] if row[j] not in MISSING else None for row in rows]
    if all(cell is None or number(cell) is not None for cell in cells):
        return [None if cell is None else float(cell) for cell in cells]
    return list(cells)


def through_parquet(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    sheet = read(folder / "t.parquet")
    assert sheet.at_row(0) == "row 1"
    return {**sheet.columns}


def through_categories(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    table = pyarrow.table(columns)
    for j, name in enumerate(table.column_names):
        if pyarrow.types.is_string(table.column(j).type):
            table = table.set_column(j, name, table.column(j).dictionary_encode())
    pyarrow.parquet.write_table(table, folder / "t.parquet")
    return {**read(folder / "t.parquet").columns}


def of_frame(frame: Any) -> dict[str, Cells]:
    table = arrow_of(frame)
    pairs = zip(table.column_names, table.columns, strict=True)
    return {name: cells_of_column("frame", name, column) for name, column in pairs}


def through_pandas(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    return of_frame(pytest.importorskip("pandas").DataFrame(columns))


def through_objects(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    return of_frame(pytest.importorskip("pandas").DataFrame(columns, dtype=object))


def through_polars(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    return of_frame(pytest.importorskip("polars").DataFrame(columns))


def through_polars_categories(columns: dict[str, list[Any]], folder: Path) -> dict[str, Cells]:
    polars = pytest.importorskip("polars")
    return of_frame(polars.DataFrame(columns).with_columns(polars.col(polars.String).cast(
        polars.Categorical
    )))  # fmt: skip


WAYS = [
    through_parquet, through_categories, through_pandas, through_objects, through_polars,
    through_polars_categories,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_gives_the_typed_columns_of_the_csv_file(
    way: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=40, deadline=None)
    @given(tables(), st.sampled_from([",", ";", "\t"]))
    def same(table: tuple[list[str], list[list[str]]], separator: str) -> None:
        names, rows = table
        folder = tmp_path_factory.mktemp("way")
        ours = way({name: values_of(rows, j) for j, name in enumerate(names)}, folder)
        text = written(names, rows, delimiter=separator)
        (folder / "t.csv").write_text(text, encoding="utf-8", newline="")
        theirs = read(folder / "t.csv", separator=separator, decimal=".")
        for name in names:
            own, other = ours[name], theirs.columns[name]
            np.testing.assert_array_equal(own.numbers, other.numbers)
            if not other.all_numbers:
                assert [*own] == [*other]

    same()


def test_what_single_types_of_columns_become() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "short": np.array([0.1, 2.5], np.float32), "flag": [True, None], "mixed": [1, "a"],
        "whole": pandas.array([3, None], "Int64"), "half": np.array([0.5, np.nan], np.float16),
        "sparse": pandas.arrays.SparseArray([0, 2]),
        "odd": pandas.Series(["\ud800", " b "], dtype=object),
    })  # fmt: skip
    cells = {name: [*own] for name, own in of_frame(frame).items()}
    assert cells == {
        "short": ["0.1", "2.5"], "flag": ["1", None], "mixed": ["1", "a"], "whole": ["3", None],
        "half": ["0.5", None], "sparse": ["0", "2"], "odd": ["?", "b"],
    }  # fmt: skip


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
