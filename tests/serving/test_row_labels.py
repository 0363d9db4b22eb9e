"""Labels, sites and cells of new rows are read by columns, and say what is wrong row by row."""

from __future__ import annotations

import numpy as np
import torch

from unseen.data.tables.column_texts import Texts
from unseen.data.tables.encoding import Schema
from unseen.serving.reading.batch import Batch
from unseen.serving.reading.inputs import TableInputs
from unseen.serving.reading.row_labels import LabelColumns, sites_of

INPUTS = TableInputs(Schema(("age",)), torch.zeros(4), missing=("", "NA", "-9"))


def batch(**columns: list[str | None]) -> Batch:
    rows = len(next(iter(columns.values())))
    texts = {name: Texts.of(cells) for name, cells in columns.items()}
    return Batch(["t.csv"] * rows, range(2, 2 + rows), columns=texts)


def test_a_number_that_means_missing_is_no_label() -> None:
    rows = batch(stay=["1.5", "-9", "-9.0", "NA", "", "long"])
    labels = LabelColumns("stay", "", None, False, "t.csv").read(INPUTS, rows)
    assert labels.values[0] == 1.5
    missing = dict.fromkeys((1, 2, 3, 4), "its label stay is missing")
    assert labels.faults == missing | {5: "its label stay = 'long' is not a finite number"}


def test_rows_without_a_label_are_left_out_where_training_did_so() -> None:
    columns = LabelColumns("died", "", ("no", "yes"), True, "t.csv")
    labels = columns.read(INPUTS, batch(died=["yes", "", "no", "1"]))
    assert labels.left is not None
    assert labels.left.tolist() == [False, True, False, False]
    assert labels.values[[0, 2]].tolist() == [1, 0]
    assert labels.faults[3] == "its label died = '1' is not a class of the model: ('no', 'yes')"


def test_times_need_an_event_that_was_seen_or_not() -> None:
    rows = batch(days=["3", "-1", "4", ""], died=["yes", "0", "perhaps", "1"])
    labels = LabelColumns("days", "died", None, False, "t.csv").read(INPUTS, rows)
    assert labels.values[0].tolist() == [3, 1]
    assert sorted(labels.faults) == [1, 2, 3]
    assert labels.faults[3] == "its label days is missing"


def test_equal_numbers_name_one_site_and_rows_without_one_are_the_file_s() -> None:
    rows = batch(site=["3.0", "4", "", "03", None])
    names, codes = sites_of(INPUTS, rows, "site", "t", {(False, 3, ""): "3"})
    assert [names[code] for code in codes] == ["3", "4", "t", "3", "t"]


def test_a_number_whose_square_overflows_is_a_fault_of_its_row_alone() -> None:
    raw = INPUTS.values({"age": Texts.of(["61", "1e200", "x", "-9"])})
    assert sorted(raw.faults) == [1, 2]
    assert raw.faults[1] == "age = '1e200' is beyond 1e+150, whose squares overflow"
    assert np.isnan(raw.x[3, 0]) and raw.x[0, 0] == 61
