"""No text of a prediction is a formula in a spreadsheet, and no number is lost by it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import Command
from support.federations import write_table

from unseen.serving.directory import Trained
from unseen.serving.spreadsheet import FORMULA, as_text, restored

CELLS = st.text(st.sampled_from("'=+-@\t\r15.e nax"), max_size=6)


@given(CELLS)
def test_every_text_comes_back_and_none_is_a_formula(text: str) -> None:
    cell = as_text(text)
    assert restored(cell) == text
    try:
        float(cell)
    except ValueError:
        assert not cell.startswith(FORMULA)


@given(CELLS, CELLS)
def test_two_texts_are_two_cells(one: str, other: str) -> None:
    assert (as_text(one) == as_text(other)) == (one == other)


@pytest.mark.parametrize("value", [-5, -0.25, 1e-300, "-5", "+3", "-1e5", "-inf", None])
def test_numbers_stay_numbers(value: object) -> None:
    assert as_text(value) == value


@pytest.mark.parametrize(
    "text", ["=1+1", '=HYPERLINK("http://x","y")', "-5+1", "@SUM(A1)", "-", " "]
)
def test_what_is_kept_of_a_file_is_no_formula(
    of_rows: Trained, tmp_path: Path, unseen: Command, text: str
) -> None:
    table = write_table(tmp_path / "visits.csv")
    (head, *lines) = csv.reader(io.StringIO(table.read_text()))
    lines[0][head.index("id")] = text
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    ran = unseen("predict", of_rows.folder, table, "--accept-unseen", "--keep", "id")
    first = next(csv.DictReader(io.StringIO(ran.out)))
    assert not first["id"].startswith(FORMULA) and restored(first["id"]) == text.strip()
    assert float(first["p(no)"]) + float(first["p(yes)"]) == pytest.approx(1)
