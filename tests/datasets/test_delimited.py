"""A user's csv file: roles of columns, missing cells, and errors with their line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch

from unseen.core.metrics.class_metrics import looked_for
from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.errors import UnseenError

TABLE = """site,age,ward,sex,outcome,id
10,50,surgery,1,yes,a
9,?,medicine,0,no,b
10,NA,surgery,1,no,c
9,61.5,,0,yes,d
"""
ROLES = {"domain": "site", "label": "outcome", "drop": ["id"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


def read(folder: Path, text: str, **options: object) -> DataSet:
    (folder / "t.csv").write_text(text)
    return load("table", folder, path="t.csv", **{"domain": "site", "label": "outcome", **options})


def same(a: torch.Tensor, b: list[list[float]]) -> bool:
    return torch.equal(a.nan_to_num(-9), torch.tensor(b, dtype=torch.float64).nan_to_num(-9))


def test_columns_have_the_roles_that_they_were_given(folder: Path) -> None:
    data = load("table", folder, path="t.csv", groups=["sex"], **ROLES)
    assert data.names == ("9", "10")  # numbers stand in numeric order
    assert data.classes == ("no", "yes")
    assert data.schema is not None and data.schema.columns == ("age", "ward")
    assert dict(data.schema.categories) == {"ward": ("medicine", "surgery")}
    nine, ten = data.domains
    assert same(nine.x, [[math.nan, 0], [61.5, math.nan]]) and nine.y.tolist() == [0, 1]
    assert same(ten.x, [[50, 1], [math.nan, 1]]) and ten.y.tolist() == [1, 0]
    assert data.levels == {"sex": ("0", "1")}
    assert nine.meta["sex"].tolist() == [0, 0] and ten.meta["sex"].tolist() == [1, 1]


def test_the_positive_class_is_the_last_of_two(folder: Path) -> None:
    """By default the last in alphabetic or numeric order; metrics of one class look for it."""
    data = load("table", folder, path="t.csv", positive="no", **ROLES)
    assert data.classes == ("yes", "no")
    assert [domain.y.tolist() for domain in data.domains] == [[1, 0], [0, 1]]
    roles = {"domain": "site", "label": "sex", "drop": ["id", "outcome"]}
    for zero in (0, "0", "0.0"):
        data = load("table", folder, path="t.csv", positive=zero, **roles)
        assert data.classes == ("1", "0") and data.domains[1].y.tolist() == [0, 0]
    assert looked_for(["sensitivity", "auroc"], data.classes) == "sensitivity: of '0'"


def test_a_positive_class_that_is_not_one_of_two_is_refused(folder: Path) -> None:
    with pytest.raises(UnseenError, match=r"\(for positive\) 'No'; did you mean 'no'\?"):
        load("table", folder, path="t.csv", positive="No", **ROLES)
    three = TABLE.replace("10,NA,surgery,1,no", "10,NA,surgery,1,unknown")
    with pytest.raises(UnseenError, match="one of two classes .* found 3 classes"):
        read(folder, three, positive="yes")
    with pytest.raises(UnseenError, match="positive = 'yes' names a class, and the labels here"):
        load("table", folder, path="t.csv", domain="site", label="age", task="regression",
             positive="yes")  # fmt: skip


def test_numbers_stay_numbers_unless_named_as_categories(folder: Path) -> None:
    data = load("table", folder, path="t.csv", **ROLES)
    assert data.schema is not None and set(data.schema.categories) == {"ward"}
    data = load("table", folder, path="t.csv", categorical=["ward", "sex"], **ROLES)
    assert data.schema is not None and data.schema.categories["sex"] == ("0", "1")


def test_a_lone_name_is_not_a_list_of_letters(folder: Path) -> None:
    roles = {**ROLES, "drop": "id"}
    data = load("table", folder, path="t.csv", categorical="ward", groups="sex", **roles)
    assert data.schema is not None and data.schema.columns == ("age", "ward")
    assert set(data.levels) == {"sex"}


def test_packed_files_and_byte_order_marks_are_read(folder: Path) -> None:
    plain = load("table", folder, path="t.csv", **ROLES)
    (folder / "t.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    (folder / "excel.csv").write_bytes(TABLE.replace("\n", "\r\n").encode("utf-8-sig"))
    for path in ("t.csv.gz", str(folder / "excel.csv"), folder / "excel.csv"):
        other = load("table", folder, path=path, **ROLES)
        assert other.names == plain.names and other.schema == plain.schema
        for a, b in zip(other.domains, plain.domains, strict=True):
            assert same(a.x, b.x.tolist()) and torch.equal(a.y, b.y)


def test_regression_targets_are_float32(folder: Path) -> None:
    text = "site,x,outcome\na,1,2.5\nb,2,-1e3\n"
    data = read(folder, text, task="regression")
    assert data.classes is None
    assert torch.equal(data["b"].y, torch.tensor([-1000.0]))
    with pytest.raises(UnseenError, match=r"label 'high' in line 3 of t\.csv"):
        read(folder, text.replace("-1e3", "high"), task="regression")


def test_codes_that_sites_write_differently_are_one_category(folder: Path) -> None:
    text = "site,cp,outcome\na,3.0,0\na,1.0,1\nb,3,0.0\nb,10,1\nb,1,1\n"
    data = read(folder, text, categorical=["cp"])
    assert data.schema is not None and data.schema.categories["cp"] == ("1", "3", "10")
    assert data.classes == ("0", "1")
    assert data["a"].x.flatten().tolist() == [1, 0] and data["b"].x.flatten().tolist() == [1, 2, 0]


def test_long_identifiers_stay_apart_and_leading_zeros_stay(folder: Path) -> None:
    one, two = "9007199254740992", "9007199254740993"  # equal as floats
    text = f"site,x,outcome\n{one},1,0\n{two},2,1\n"
    assert read(folder, text).names == (one, two)
    assert read(folder, "site,x,outcome\n002,1,0\n010,2,1\n").names == ("002", "010")


def test_missing_metadata_is_a_level_of_its_own(folder: Path) -> None:
    text = "site,x,outcome,region\na,1,0,South\na,2,1,?\nb,3,1,West\n"
    data = read(folder, text, groups=["region"])
    assert data.levels["region"] == ("South", "West", "missing")
    assert data["a"].meta["region"].tolist() == [0, 2]
    named = read(folder, text.replace("South", "missing"), groups=["region"])
    assert named.levels["region"] == ("West", "missing")
    assert named["a"].meta["region"].tolist() == [1, 1]


def test_a_number_with_a_slip_is_pointed_out(folder: Path) -> None:
    rows = "".join(f"a,{i},{i % 2}\n" for i in range(60))
    with pytest.warns(UserWarning, match=r"column 'age' .* '> 89'"):
        data = read(folder, f"site,age,outcome\n{rows}a,> 89,1\n")
    assert data.schema is not None and len(data.schema.categories["age"]) == 61
    data = read(folder, f"site,age,outcome\n{rows}a,> 89,1\n", missing=["", "> 89"])
    assert data.schema is not None and not data.schema.categories
    assert bool(data["a"].x[-1].isnan())


@pytest.mark.parametrize("missing", [["NA", "-9"], -9, []])
def test_an_empty_cell_is_missing_whatever_other_signs_there_are(
    folder: Path, missing: object
) -> None:
    text = "site,age,drug,outcome\na,40,x,0\na,,,1\nb,-9,y,1\nb,50,x,0\n"
    data = read(folder, text if missing else text.replace("-9", ""), missing=missing)
    assert data.schema is not None and data.schema.categories == {"drug": ("x", "y")}
    assert [bool(row.isnan().all()) for row in data["a"].x] == [False, True]
    assert data["b"].x[:, 0].isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        (
            "site,x,outcome\na,1,0\n,2,1\n",
            {},
            r"1 of 2 rows of t\.csv have no value in 'site', .*line 3",
        ),
        (
            "site,x,outcome\na,1,0\na,2,NA\n",
            {},
            r"have no value in 'outcome', .*\(a 1 of 2\), .* line 3",
        ),
        ("site,x,outcome\na,1,0\na,2\n", {}, r"line 3 of .*t\.csv has 2 cells where 3"),
        ("site,x,outcome\na,inf,0\n", {}, r"line 2 of t\.csv has 'inf' in the numeric"),
        ("site,x,outcome\na,nan,0\n", {}, r"line 2 of t\.csv has 'nan' in the numeric"),
        ("site,x,x,outcome\na,1,1,0\n", {}, "more than one column called x"),
        ("site,x,outcome\n", {}, "no rows"),
        ("", {}, "no rows"),
        ("site,outcome\na,1\n", {}, "no column left"),
        ("site,x,outcom\na,1,0\n", {}, "did you mean 'outcom'"),
        ("site,x,outcome\na,1,0\n", {"groups": ["sit"]}, "did you mean 'site'"),
        ("site,x1,outcome\na,1,0\n", {"categorical": ["x"]}, "did you mean 'x1'"),
        ("site,x,outcome\na,1,0\n", {"task": "ranking"}, r"table\(task\) must be one of"),
    ],
)
def test_an_error_says_what_and_where(
    folder: Path, text: str, options: dict[str, object], fault: str
) -> None:
    with pytest.raises(UnseenError, match=fault):
        read(folder, text, **options)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00bad", gzip.compress(TABLE.encode(), mtime=0)[:30]]
)
def test_a_file_that_is_no_table_is_named(folder: Path, content: bytes) -> None:
    (folder / "bad.csv.gz").write_bytes(content)
    with pytest.raises(UnseenError, match=r"bad\.csv\.gz is not a csv file"):
        load("table", folder, path="bad.csv.gz", **ROLES)


def test_eicu_patients_are_read_with_their_hospitals(real_data: Path) -> None:
    data = load(
        "table", real_data, path="eicu_demo/patient.csv.gz", domain="hospitalid",
        label="unitstaytype", categorical=["unittype"], groups=["gender"],
        drop=[c for c in EICU if c not in ("admissionheight", "unittype")],
    )  # fmt: skip
    assert len(data.domains) == 186
    assert sum(len(d.y) for d in data.domains) == 2520
    assert max(len(d.y) for d in data.domains) == 40
    assert [int(name) for name in data.names] == sorted(int(name) for name in data.names)


EICU = (
    "patientunitstayid", "patienthealthsystemstayid", "age", "ethnicity", "wardid",
    "apacheadmissiondx", "admissionheight", "hospitaladmittime24", "hospitaladmitoffset",
    "hospitaladmitsource", "hospitaldischargeyear", "hospitaldischargetime24",
    "hospitaldischargeoffset", "hospitaldischargelocation", "hospitaldischargestatus", "unittype",
    "unitadmittime24", "unitadmitsource", "unitvisitnumber", "admissionweight", "dischargeweight",
    "unitdischargetime24", "unitdischargeoffset", "unitdischargelocation", "unitdischargestatus",
    "uniquepid",
)  # fmt: skip


def gaps(label: str = "") -> str:
    rows = [f"north,{i},{label if i < 3 else i % 2}\n" for i in range(10)]
    rows += [f"south,{i},{label if i < 1 else i % 2}\n" for i in range(8)]
    return "site,x,outcome\n" + "".join(rows)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_without_a_label_are_counted_and_dropped_if_asked_for(folder: Path, task: str) -> None:
    fault = (
        r"4 of 18 rows of t\.csv .*\(north 3 of 10, south 1 of 8\), the first in line 2\. .*drop"
    )
    with pytest.raises(UnseenError, match=fault):
        read(folder, gaps(), task=task)
    data = read(folder, gaps(), task=task, missing_label="drop")
    assert {d.name: len(d.y) for d in data.domains} == {"north": 7, "south": 7}
    assert data["south"].x.flatten().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert data.notes == (
        "4 of 18 rows left out, which have no label: north 3 of 10, south 1 of 8",
    )
    whole = gaps().replace("south,1,1", "south,1,").replace("south,2,0", "south,2,")
    only = "".join(
        line for line in whole.splitlines(True) if line[:5] != "south" or line[-2] == ","
    )
    assert (
        "nothing is left of south" in read(folder, only, missing_label="drop", task=task).notes[0]
    )
    with pytest.raises(UnseenError, match="Fill in the values"):
        read(folder, "site,x,outcome\na,1,\n", missing_label="drop", task=task)


def identified(n: int = 30) -> str:
    rows = [
        f"{'ab'[i % 2]},{1000 + i},L-{i * 5 // 6},{i / 7},{100 + 3 * i},w{i % 3},{i % 2}\n"
        for i in range(n)
    ]
    return "site,record_id,lesion,dose,counts,ward,outcome\n" + "".join(rows)


def test_identifiers_are_refused_as_features_unless_asked_for(folder: Path) -> None:
    """Numbers that differ in every row may be measurements; texts, and those called id, are not."""
    with pytest.raises(UnseenError) as caught:
        read(folder, identified())
    said = str(caught.value)
    assert (
        "'record_id' (30 whole numbers, all different) and 'lesion' (25 different texts in" in said
    )
    assert "drop=['record_id', 'lesion']" in said and "identifiers='keep'" in said
    assert "'dose'" not in said and "'counts'" not in said and "unit='lesion'" in said
    data = read(folder, identified(), drop=["record_id", "lesion"])
    assert data.schema is not None and data.schema.columns == ("dose", "counts", "ward")
    data = read(folder, identified(), identifiers="keep")
    assert data.schema is not None and len(data.schema.categories["lesion"]) == 25
    data = read(folder, identified(), categorical=["lesion", "ward"], drop="record_id")
    assert data.schema is not None and len(data.schema.categories["lesion"]) == 25
    data = read(folder, identified(), unit="lesion", groups=["record_id"])
    assert data.schema is not None and data.schema.columns == ("dose", "counts", "ward")
    with pytest.raises(UnseenError, match=r"table\(identifiers\) must be one of"):
        read(folder, identified(), identifiers="no")


def test_few_values_are_no_identifiers(folder: Path) -> None:
    data = read(folder, identified(20))
    assert data.schema is not None and len(data.schema.columns) == 5


def test_numbers_as_classes_and_a_lone_class_are_remarked_upon(folder: Path) -> None:
    text = "site,x,outcome\n" + "".join(f"{'ab'[i % 2]},{i},{i // 2 * 5}.0\n" for i in range(36))
    (note,) = read(folder, text).notes
    assert "18 classes and all are numbers (0.0, 5.0, 10.0, ...)" in note
    assert "task='regression'" in note and not read(folder, text, task="regression").notes
    (note,) = read(folder, "site,x,outcome\na,1,no\na,2,yes\nb,1,no\nb,3,no\n").notes
    assert note == "a class occurs at one site alone, 'yes' at a: is that right, or a misspelling?"
