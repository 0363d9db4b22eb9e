"""Rows that are read in blocks are the rows of the file, whatever the blocks are."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.data.tables.dialect import Dialect
from unseen.data.tables.encoding import Schema
from unseen.serving.reading.batch import RowCells
from unseen.serving.reading.inputs import TableInputs
from unseen.serving.reading.row_files import Block, blocks_of

INPUTS = TableInputs(Schema(("p", "q")), torch.zeros(8), dialect=Dialect(",", "."))
CELL = st.sampled_from(["1", "2.5", "", " a ", "b", "x,y", 'say "so"', "two\nlines", "é"])
ROW = st.one_of(st.lists(CELL, min_size=3, max_size=3), st.lists(CELL, min_size=1, max_size=4))


def read(path: Path, size: int) -> list[tuple[int | None, object]]:
    """Return line and cells, or fault, of every row."""
    return [pair for block in blocks_of(INPUTS, path, size) for pair in of(block)]


def of(block: Block) -> list[tuple[int | None, object]]:
    rows = enumerate(block.lines)
    return [(n, block.faults.get(i) or dict(RowCells(block.columns, i))) for i, n in rows]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=14),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 5),
)
def test_blocks_are_the_rows_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], quoting: int, size: int
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, quoting=quoting, lineterminator="\n")  # type: ignore[arg-type]
    writer.writerows([["p", "q", "r"], *rows])
    path = tmp_path_factory.mktemp("blocks") / "t.csv"
    path.write_text(file.getvalue(), encoding="utf-8", newline="")
    reader = csv.reader(io.StringIO(file.getvalue(), newline=""))
    next(reader)
    expected: list[tuple[int, object]] = []
    for row in filter(None, reader):
        cells = dict(zip("pqr", map(str.strip, row), strict=False))
        fault = f"has {len(row)} cells where 3 were expected"
        expected.append((reader.line_num, cells if len(row) == 3 else fault))
    assert read(path, size) == expected


def test_a_file_that_is_cut_short_has_the_rows_before_the_cut(tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [f"{draw.random()},{draw.random()},{draw.random()}\n" for _ in range(2000)]
    content = gzip.compress(("p,q,r\n" + "".join(lines)).encode())
    (tmp_path / "t.csv.gz").write_bytes(content[: len(content) // 2])
    *rows, (line, fault) = read(tmp_path / "t.csv.gz", 300)
    assert 500 < len(rows) < 1500 and line == rows[-1][0]
    assert "cannot be read further" in str(fault)
