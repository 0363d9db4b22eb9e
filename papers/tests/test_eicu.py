"""eICU: stays, outcomes and drugs from the files as distributed, real and made."""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from paper_sketches import SKETCHES

from unseen.data.dataset import DataSet, check
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.prepare import prepare
from unseen.studies.settings.holdout import Task
from unseen_papers.data import eicu, eicu_files

PATIENTS = """\
hospitalid,patientunitstayid,uniquepid,gender,age,ethnicity,admissionheight,admissionweight,\
hospitaldischargestatus,hospitaldischargeyear,unitvisitnumber,unitdischargestatus
7,1,p1,Female,> 89,Asian,170,60.5,Alive,2014,2,Alive
7,2,p1,Female,> 89,Asian,1.7,60,Expired,2014,1,Alive
7,3,p2,Male,40,,,,Expired,2015,1,Expired
11,4,p3,,61,Caucasian,180,90,Alive,2015,1,Alive
11,5,p4,Male,50,Caucasian,180,90,,2015,1,Alive
9,6,p5,Male,50,Caucasian,180,90,Alive,2015,1,Alive
"""
HOSPITALS = "hospitalid,teachingstatus,region\n7,f,South\n9,f,\n11,t,West\n"
ORDERS = """\
patientunitstayid,drugstartoffset,drugordercancelled,drugname,drughiclseqno
1,-500,No,WARFARIN SODIUM 5 MG PO TABS,2812
1,2880,No,,549
1,2881,No,LATE,77
2,10,Yes,CANCELLED,78
2,10,No,,
3,10,No,Aspirin 81 mg,
4,10,No,ASPIRIN 325 MG,1820
4,11,No,warfarin tab 2 mg,2812
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {"patient": PATIENTS, "hospital": HOSPITALS, "medication": ORDERS}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


@pytest.fixture
def demo(real_data: Path) -> Path:
    return real_data / "eicu_demo"


def load(folder: Path, **options: Any) -> DataSet:
    return check(eicu.load(folder, **options))


def column(drug: str, size: int = 1399) -> int:
    """The rule as it is documented: the first 16 hexadecimal digits, modulo the columns."""
    return int(hashlib.sha256(drug.encode()).hexdigest()[:16], 16) % size


def used(data: DataSet, domain: str, row: int) -> set[int]:
    return set(data[domain].x[row].nonzero().flatten().tolist())


def test_outcome_and_drugs_are_read_as_documented(files: Path) -> None:
    data = load(files)
    assert data.names == ("South", "West") and data.classes == ("alive", "expired")
    assert data["South"].y.tolist() == [0, 1, 1] and data["West"].y.tolist() == [0]
    assert used(data, "South", 0) == {column("HICL 2812"), column("HICL 549")}
    assert used(data, "South", 1) == set()  # cancelled, or neither code nor name
    assert used(data, "South", 2) == {column("ASPIRIN")}
    assert used(data, "West", 0) == {column("HICL 1820"), column("HICL 2812")}
    assert "6 stays; left out: 1 (outcome unknown), 1 (region unknown)" in data.source
    assert set(data["South"].x.unique().tolist()) == {0.0, 1.0}


def test_window_names_and_frequent_drugs_are_options(files: Path) -> None:
    early, always = load(files, hours=1), load(files, hours=None)
    assert used(early, "South", 0) == {column("HICL 2812")}
    assert column("HICL 77") in used(always, "South", 0)
    named = load(files, drug="name")
    assert used(named, "West", 0) == {column("ASPIRIN"), column("WARFARIN TAB")}
    frequent = load(files, vocabulary="frequent", size=2, demographics=True)
    assert frequent.schema is not None
    assert frequent.schema.columns[5:] == ("HICL 2812", "ASPIRIN")  # two stays, then by name


def test_a_drugs_column_depends_on_no_data(files: Path) -> None:
    before = used(load(files), "South", 0)
    (files / "medication.csv").write_text("\n".join(ORDERS.split("\n")[:3]) + "\n")
    assert used(load(files), "South", 0) == before


def test_demographics_make_a_raw_table_that_a_study_encodes(files: Path) -> None:
    data = load(files, demographics=True, size=8)
    schema = data.schema
    assert schema is not None and schema.columns[:5] == eicu_files.DEMOGRAPHICS
    assert schema.categories["gender"] == ("Female", "Male")
    age, gender, ethnicity, height, weight = data["South"].x[:, :5].nan_to_num(-1).T.tolist()
    assert age == [90, 90, 40] and gender == [0, 0, 1] and ethnicity == [0, 0, -1]
    assert height == [170, -1, -1] and weight == [60.5, 60, -1]  # 1.7 are metres
    prepared = prepare(data, Task("West", ("South",), ("West",)), Study(validation=0.3), 0)
    x = torch.cat([prepared.sources["South"].split(s).x for s in ("train", "validation")])
    assert x.dtype == torch.float32 and bool(torch.isfinite(x).all())
    assert schema.flags == schema.columns[5:]
    plain = load(files, size=8)["South"].x
    drugs = plain[:, plain.any(0)]  # one 0 or 1 for each drug that a source uses, as without
    assert sorted(x[:, -drugs.shape[1] :].tolist()) == sorted(drugs.tolist())


def test_hospitals_stand_by_number_or_by_rank(files: Path) -> None:
    data = load(files, domain="hospital")
    assert data.names == ("7", "9", "11")
    assert {d.name: data.levels["region"][int(d.meta["region"][0])] for d in data.domains} == {
        "7": "South", "9": "unknown", "11": "West"
    }  # fmt: skip
    assert [len(d.y) for d in load(files, domain="rank").domains] == [3, 1, 1]
    assert load(files, domain="hospital", hospitals=2).names == ("7", "9")
    assert load(files, domain="hospital", minimum=2).names == ("7",)
    equal = load(files, domain="rank", equal=2)
    assert [len(d.y) for d in equal.domains] == [1, 1, 1]
    assert "2 (hospitals not kept or drawn down)" in equal.source
    pooled = load(files, domain="rank", equal=1, rest=True)
    assert {d.name: len(d.y) for d in pooled.domains} == {"1": 3, "rest": 2}


def test_a_patient_may_count_once_and_only_with_drugs(files: Path) -> None:
    data = load(files, stays="first")
    assert data["South"].y.tolist() == [1, 1]  # stays 2 and 3: the first visit of p1 is stay 2
    assert load(files, medicated=True)["South"].y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"edition": "demmo"}, "did you mean 'demo'"),
        ({"domain": "ward"}, "domain must be one of"),
        ({"equal": 2}, "Add domain = 'hospital'"),
        ({"domain": "rank", "rest": True}, "Set equal"),
        ({"hours": -1}, "hours must be a number"),
        ({"minimum": 9}, "minimum = 9"),
    ],
)
def test_what_cannot_be_is_said(files: Path, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(UnseenError) as caught:
        load(files, **options)
    assert hint in str(caught.value)


@pytest.mark.parametrize(("edition", "other"), [("full", "demo"), ("demo", "full")])
def test_one_edition_is_not_read_as_the_other(files: Path, edition: str, other: str) -> None:
    stays = {"demo": 2520, "full": 200_859}  # as the documentation of each edition says
    header, *_ = PATIENTS.splitlines()
    lines = (f"7,{i},p{i},Male,40,,,,Alive,2015,1,Alive" for i in range(stays[other]))
    (files / "patient.csv").write_text("\n".join([header, *lines]) + "\n")
    with pytest.raises(UnseenError, match=f"stays of the {other} edition"):
        load(files, edition=edition, size=2)
    assert sum(len(d.y) for d in load(files, edition=other, size=2).domains) == stays[other]


@pytest.mark.parametrize("option", ["hospitals", "equal"])
def test_fewer_hospitals_than_are_asked_for_are_an_error(files: Path, option: str) -> None:
    with pytest.raises(UnseenError, match=f"{option} = 4; 3 hospitals have minimum = 1"):
        load(files, domain="rank", **{option: 4})
    load(files, domain="rank", **{option: 3})


def test_missing_files_and_columns_are_named(files: Path, tmp_path: Path) -> None:
    (files / "patient.csv").write_text(PATIENTS.replace("uniquepid", "person"))
    with pytest.raises(UnseenError, match="uniquepid"):
        load(files)
    (files / "medication.csv").unlink()
    with pytest.raises(UnseenError, match="medication.csv.*physionet"):
        load(files)
    with pytest.raises(UnseenError, match="UNSEEN_DATA"):
        eicu.load(None)
    (files / "patient.csv").write_text(PATIENTS.replace("Expired", "Moved"))
    (files / "medication.csv").write_text(ORDERS)
    with pytest.raises(UnseenError, match="outcome 'Moved'"):
        load(files)


def test_the_sketch_is_read_in_every_form(tmp_path: Path) -> None:
    SKETCHES["eicu"](tmp_path)
    data = load(tmp_path)
    assert data.names == eicu_files.REGIONS and sum(len(d.y) for d in data.domains) == 96
    assert all(len(d.y.unique()) == 2 for d in data.domains)
    assert len(load(tmp_path, domain="hospital", demographics=True, size=32).names) == 8
    assert len(load(tmp_path, domain="rank", hospitals=3, vocabulary="frequent").names) == 3
    papers = {"hospitals": 58, "equal": 20, "rest": True, "medicated": True, "hours": None}
    full = load(tmp_path, edition="full", domain="rank", vocabulary="frequent", **papers)
    assert len(full.names) == 21 and full.names[-1] == "rest"


def test_the_demo_has_the_stays_that_are_in_its_files(demo: Path) -> None:
    """Counts of the documentation (2,520 stays, 186 hospitals), and made with csv alone."""
    data = load(demo)
    assert {d.name: len(d.y) for d in data.domains} == eicu.FACTS.totals
    died = {"Midwest": 58, "Northeast": 19, "South": 63, "West": 50}
    assert {d.name: int(d.y.sum()) for d in data.domains} == died
    assert "2520 stays; left out: 28 (outcome unknown), 209 (region unknown)" in data.source
    hospitals = load(demo, domain="hospital")
    assert len(hospitals.names) == 186 and sum(len(d.y) for d in hospitals.domains) == 2492
    assert len(load(demo, domain="hospital", minimum=20).names) == 11
    first = load(demo, domain="hospital", stays="first", size=16)
    assert sum(len(d.y) for d in first.domains) == 1820


def test_the_demos_most_frequent_drugs_are_those_of_a_plain_count(demo: Path) -> None:
    def table(name: str) -> list[dict[str, str]]:
        with gzip.open(demo / f"{name}.csv.gz", "rt") as file:
            return list(csv.DictReader(file))

    tables = {name: table(name) for name in eicu_files.ROWS["demo"]}
    assert {name: len(found) for name, found in tables.items()} == eicu_files.ROWS["demo"]
    known = {r["patientunitstayid"] for r in tables["patient"] if r["hospitaldischargestatus"]}
    pairs = {
        (row["patientunitstayid"], row["drughiclseqno"])
        for row in tables["medication"]
        if row["drughiclseqno"] and row["drugordercancelled"] == "No"
        and float(row["drugstartoffset"]) <= 48 * 60 and row["patientunitstayid"] in known
    }  # fmt: skip
    counts = Counter(code for _, code in pairs).most_common(3)
    data = load(demo, domain="hospital", vocabulary="frequent", size=3)
    found = torch.cat([d.x for d in data.domains]).sum(0).tolist()
    assert found == [count for _, count in counts]
    assert not math.isnan(found[0])
