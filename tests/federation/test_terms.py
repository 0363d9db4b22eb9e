"""What sites agree on: classes of images that not every site has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import Hall, kits
from test_hall import SITES, _quick, written

from unseen import Study
from unseen.data import DataSet, Domain
from unseen.data.tables.encoding import Schema
from unseen.errors import UnseenError
from unseen.sites.flower import model_run, server_run
from unseen.sites.flower.site import Site
from unseen.sites.flower.terms import Facts, Terms
from unseen.sites.policy import ledger_check
from unseen.sites.policy.site_ledger import SiteLedger

__all__ = ["_quick"]  # the fixture of test_hall


def site(name: str, classes: tuple[str, ...], kind: str = "folder") -> DataSet:
    x = torch.zeros(len(classes), 3, 4, 4, dtype=torch.uint8)
    return DataSet(kind, (Domain(name, x, torch.arange(len(classes))),), classes, "", "", "")


def test_a_folder_may_lack_a_class_that_another_site_has() -> None:
    sites = [site("north", ("cat", "owl")), site("south", ("cat", "dog"))]
    terms = Terms.agree([Facts.of(data, "train", "", {}) for data in sites])
    assert terms.classes == ("cat", "dog", "owl")
    assert [terms.coded(data).domains[0].y.tolist() for data in sites] == [[0, 2], [0, 1]]


def test_classes_that_are_listed_keep_their_order() -> None:
    sites = [site(name, ("owl", "cat")) for name in ("north", "south")]
    assert Terms.agree([Facts.of(d, "train", "", {}) for d in sites]).classes == ("owl", "cat")


def test_other_data_sets_have_one_list_of_classes() -> None:
    sites = [site("north", ("cat", "owl"), "pacs"), site("south", ("cat",), "pacs")]
    with pytest.raises(UnseenError, match="do not fit together: classes"):
        Terms.agree([Facts.of(data, "train", "", {}) for data in sites])


def test_the_positive_class_is_the_last_at_all_sites() -> None:
    """Also at one that has it alone, or not at all."""
    rows = {"north": ("died", "survived"), "south": ("survived",), "west": ("died",)}
    facts = [
        Facts(name, "train", "table", own, {"age": "number"}, {}, {}, (1,), "", positive="died")
        for name, own in rows.items()
    ]
    terms = Terms.agree(facts)
    assert terms.classes == ("survived", "died")
    sites = [
        replace(site(name, own, "table"), schema=Schema(("age",))) for name, own in rows.items()
    ]
    assert [terms.coded(data).domains[0].y.tolist() for data in sites] == [[1, 0], [0], [1]]
    with pytest.raises(UnseenError, match="do not fit together: positive class died at the one, N"):
        Terms.agree([facts[0], replace(facts[1], positive=None)])
    with pytest.raises(UnseenError, match=r"unknown class \(for positive\) 'dead'"):
        Terms.agree([replace(own, positive="dead") for own in facts])


def test_columns_that_one_site_lacks_are_named_with_what_to_do() -> None:
    none: dict[str, tuple[str, ...]] = {}

    def facts(name: str, *columns: str) -> Facts:
        kinds = dict.fromkeys(columns, "number")
        return Facts(name, "train", "table", ("no", "yes"), kinds, none, none, (len(kinds),), "")

    assert Terms.agree([facts("a", "age", "crp"), facts("b", "crp", "age")]).schema is not None
    with pytest.raises(UnseenError) as caught:
        Terms.agree([facts("a", "age", "crp"), facts("b", "age", "CRP", "sex")])
    assert caught.value.what == (
        "sites 'a' and 'b' do not fit together: of the columns 'a' alone has crp and 'b' alone "
        "has CRP, sex."
    )
    assert "[columns] in its site.toml" in caught.value.remedy


def spelled(folder: Path) -> Path:
    """The study of test_hall, with classes no and yes, at one site No and yes."""
    file, table = written(folder, "fedavg", rounds=1), folder / "visits.csv"
    head, *rows = table.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[-1] = "yes" if row[-1] == "1" else "No" if row[0] == "30" else "no"
    table.write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    return file


NOTES = (
    "the classes 'No' and 'no' differ in capitals or spaces alone: they are taken as 2 classes; "
    "write them alike in the file if they are one",
    "a class occurs at one site alone, 'No' at 30: is that right, or a misspelling?",
)


def test_spellings_that_differ_at_one_site_are_noted(tmp_path: Path) -> None:
    """In the same words as in one process, under the table and while the study runs."""
    file = spelled(tmp_path)
    with pytest.warns(UserWarning, match="differ in capitals"):
        one = Study.read(file).run(tmp_path / "one", data_dir=tmp_path)
    hall, out = Hall(kits(tmp_path, SITES, tmp_path)), tmp_path / "out"
    there = server_run.run(str(file), str(out), hall, list(SITES))
    assert there.notes == one.notes == NOTES
    table = (out / "table.txt").read_text()
    assert all(f"of the data: {note}" in table for note in NOTES)
    assert json.loads((out / "federation.json").read_text())["remarks"] == list(NOTES)


def test_sites_are_not_told_which_of_them_has_a_class(tmp_path: Path) -> None:
    file, out = spelled(tmp_path), tmp_path / "model"
    file.write_text(file.read_text().replace('save = ["final"]\n', ""))
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    model_run.train(str(file), str(out), hall, list(SITES))
    assert json.loads((out / "training" / "study.json").read_text())["notes"] == list(NOTES)
    assert [q for _, q in hall.sent if q["kind"] == "keep"]
    lines = SiteLedger(Site.read(hall.kits[1]).account).lines()
    assert ledger_check.against(lines, "0", out) == ([], [])
    assert not [q for _, q in hall.sent if "at one site alone" in str(q)]
