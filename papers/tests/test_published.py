"""What the papers printed: counted, recomputed, compared with what the texts say of it."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal

import pytest

from unseen.errors import UnseenError
from unseen.studies.settings.named import named_studies
from unseen.studies.settings.published import Figure, exhibits, printed_in
from unseen_papers.published import captions, contents, inconsistent, table, tables

#: Counted by hand in the papers: rows x columns.
COUNTS = {
    "ppdg/table1": 8 * 3,
    "ppdg/table2": 8 * 4,
    "ppdg/table3": 8 * 4,
    "ppdg/table4": 8 * 7,
    "ppdg/table5": 16 * 5,
    "ppdg/table6": 3,
    "ppdg/table7": 2 * 5,
    "csac/table1": 8 * 7,
    "csac/table2": 14 * 5,
    "csac/table3": 9 * 5,
    "csac/table4": 5 * 10,
    "csac/table5": 9 * 10,
    "csac/table6": 3 * 10,
    "fedilc/table2": 6 * 3,
    "fedilc/table3": 4 * 2,
    "fedilc/table4a": 6 * 2,
    "fedilc/table4b": 6 * 2,
    "fedilc/table5": 9 * 4,
    "fedilc/table6": 6 * 3,
    "ga/table1": 19 * 16,
    "ga/table2": 19 * 7,
    "ga/table3": 4 * 8 + 2 * 4,
}


def test_every_number_of_every_table_is_there():
    counted = {name: found.count for name, found in tables().items()}
    assert counted.pop("fedilc/table1") == 9  # angles: what was set, not what was found
    assert counted == COUNTS
    per_paper = Counter[str]()
    for name, count in counted.items():
        per_paper[name.partition("/")[0]] += count
    assert per_paper == {"ppdg": 237, "csac": 341, "fedilc": 104, "ga": 477}
    assert sum(counted.values()) == 1159


def test_22_tables_and_12_data_figures():
    names = contents()
    assert len(names) == 34
    assert sum("/table" in name for name in names) == 22
    assert len(captions()) == 35  # FedILC's Table 4 is two


def test_every_row_is_as_wide_as_its_columns_and_every_text_is_a_number():
    for found in tables().values():
        assert len(found.tasks) == len(found.metrics) == len(found.columns)
        assert sum(found.groups.values()) in (0, len(found.columns))
        assert set(found.cited) <= set(found.rows)
        for row in found.rows.values():
            assert len(row) == len(found.columns)
            for figure in row:
                assert figure.value.is_finite()
                assert figure.error is None or Decimal(figure.error) > 0


def test_standard_errors_are_those_of_the_rows_that_the_authors_ran():
    for name in ("csac/table1", "csac/table2", "csac/table3"):
        found = table(name)
        without = [k for k, row in found.rows.items() if all(f.error is None for f in row)]
        assert set(without) == set(found.cited)
        assert all(f.error for k, row in found.rows.items() if k not in without for f in row)


def test_the_averages_that_do_not_follow_from_their_cells():
    """Every other average is within what rounding of cells and average explains."""
    assert [(i.table, i.row, i.column, i.printed, i.recomputed) for i in inconsistent()] == [
        ("ppdg/table1", "PCGrad", "Average", "77.5", "77.950"),
        ("csac/table4", "Semantic average", "Average", "81.85", "81.6025"),
        ("ga/table1", "RSC", "Avg.", "82.91", "82.8375"),
        ("ga/table2", "FedCSA+GA", "Avg.", "59.72", "59.7517"),
    ]


def test_the_tables_agree_with_each_other_and_with_the_texts():
    """A row that two tables share is the same in both; figures that the prose repeats."""
    for table_, part in ((4, "pacs"), (4, "vlcs"), (5, "pacs"), (5, "vlcs")):
        again = table(f"csac/table{table_}/{part}").rows["CSAC"]
        first = table("csac/table3" if part == "pacs" else "csac/table2/resnet18").rows["CSAC"]
        assert again == first
    assert (
        table("ppdg/table6").rows["FedAvg"][0] == table("ppdg/table5/resnet50").rows["FedAvg"][-1]
    )
    assert table("ppdg/table6").rows["PPDG"][0] == table("ppdg/table5/resnet50").rows["PPDG"][-1]
    uniform, fixed = (table("ga/table3").rows[row][-1] for row in ("0", "Fix"))
    assert (uniform.text, fixed.text) == ("63.79", "63.10")
    assert fixed == table("ga/table1").rows["FedAvg"][-1]
    assert table("ga/table3").rows["0.05 w."][-1] == table("ga/table1").rows["FedAvg+GA"][-1]
    # the ratio of run times that CSAC calls about three
    times = table("csac/table6")
    assert [
        round(times.rows["FedDG"][i].value / times.rows["FedAvg"][i].value, 1) for i in (4, 9)
    ] == [Decimal("2.9"), Decimal("3.4")]
    # Table 3's entropies are those of nine values at most
    assert all(f[1].value < Decimal("21.973") for f in table("fedilc/table3").rows.values())


def test_parts_are_columns_or_rows_of_the_whole():
    whole = table("ga/table1")
    assert whole.parts == ("pacs", "office-home", "terra-incognita", "all")
    assert table("ga/table1/office-home").columns == ("P", "A", "C", "R", "Avg.")
    assert table("ga/table1/office-home").rows["AM"] == whole.rows["AM"][5:10]
    assert table("csac/table2/alexnet").cited == ("Epi-FCR", "JiGen", "MASF", "DGER", "EISNet")
    assert "JiGen" in table("csac/table2/resnet18").by_metric()["accuracy"]
    assert sum(table(f"ga/table1/{part}").count for part in whole.parts) == whole.count


def test_shown_figures_have_the_units_of_our_tables():
    shown = table("fedilc/table6/color-mnist").by_metric()
    assert shown["accuracy"]["FedSGD"] == {"target": Figure("78.1", "0.1")}
    assert table("fedilc/table2/eicu").by_metric()["loss"]["FedSGD"]["target"].text == "0.302"
    worst = table("ppdg/table3").by_metric()["worst accuracy@region"]["PPDG"]
    assert worst == {"target": Figure("33.9")}
    assert "CrossGrad" not in table("csac/table1").by_metric()["accuracy"]


def test_unknown_tables_parts_and_wholes_that_are_several():
    with pytest.raises(UnseenError, match="unknown published table 'csac/tabel1'; did you mean"):
        table("csac/tabel1")
    with pytest.raises(UnseenError, match="unknown part of csac/table4 'pac'; did you mean 'pacs'"):
        table("csac/table4/pac")
    with pytest.raises(UnseenError, match="csac/table4 has columns of several data sets"):
        table("csac/table4").by_metric()


def test_every_table_and_figure_names_studies_that_exist():
    known = named_studies()
    for name, studies in contents().items():
        assert studies, name
        assert set(studies) <= set(known), name
    made = {study for studies in contents().values() for study in studies}
    assert {n for n in known if re.match("(ppdg|csac|fedilc|ga)/", n)} - made == {"csac/ablations"}


def test_what_stands_under_our_tables_is_what_was_printed():
    assert set(exhibits()) >= {*tables(), *contents()}
    for found in tables().values():
        for one in (found, *map(found.part, found.parts)):
            shown = exhibits()[one.name]
            if not shown.parts:
                assert (shown.figures, shown.tests) == (one.by_metric(), one.tests())
    with pytest.raises(UnseenError, match="csac/table4 has figures of several data sets"):
        printed_in("csac/table4")
