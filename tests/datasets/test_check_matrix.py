"""The matrix of checks and roles: each cell that claims a check has a table in which it shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from unseen import data as datasets
from unseen.data.dataset import DataSet
from unseen.data.summary import Report, inspect
from unseen.data.tables.check_matrix import (
    COLUMN,
    MATRIX,
    MERGED,
    NOTE,
    REFUSED,
    ROLES,
    Remark,
    as_markdown,
    ranked,
    way_of,
)
from unseen.data.tables.delimited import load
from unseen.expression import Call

N = 120
Columns = dict[str, list[Any]]
#: Role -> the column that the examples change, and the options that give it the role.
COLUMN_OF = {
    "site": ("site", {}), "class": ("y", {}), "number": ("y", {"task": "regression"}),
    "time": ("y", {"event": "seen"}), "feature": ("x", {}), "category": ("x", {}),
    "text": ("x", {"text": ["x"]}), "unit": ("x", {"unit": "x"}), "group": ("x", {"groups": ["x"]}),
}  # fmt: skip


def usual(role: str) -> Columns:
    """Return a table in which nothing is wrong."""
    columns: Columns = {
        "site": [f"s{i // 40}" for i in range(N)],
        "y": [i * 7 % 5 // 3 for i in range(N)],
        "x": [i * 37 % 101 / 8 for i in range(N)],
        "other": [i * 53 % 113 / 8 for i in range(N)],
    }
    if role in ("number", "time"):
        columns["y"] = [i * 29 % 97 + 1 for i in range(N)]
    if role == "time":
        columns["seen"] = [i * 3 % 7 // 4 for i in range(N)]
    if role in ("category", "group"):
        columns["x"] = ["abc"[i * 37 % 101 % 3] for i in range(N)]
    if role == "unit":
        columns["x"] = [f"{'pqr'[i // 40]}{i // 2}" for i in range(N)]
    if role == "text":
        columns["x"] = [f"word{i * 37 % 11} and word{i * 31 % 13} again" for i in range(N)]
    return columns


def at(places: slice, value: Callable[[int, Any], Any]) -> Callable[[list[Any]], list[Any]]:
    def change(cells: list[Any]) -> list[Any]:
        rows = range(N)[places]
        return [value(i, cell) if i in rows else cell for i, cell in enumerate(cells)]

    return change


EVERY, FEW = slice(None), slice(0, N, 17)
Example = tuple[Callable[[list[Any]], list[Any]], str]
#: Check -> role -> how its column is changed, and words that then show.
EXAMPLES: dict[str, dict[str, Example]] = {
    "gives the label away": {
        "feature": (at(EVERY, lambda i, _: 3 + (i * 7 % 5 // 3)), "alone gives the label away"),
        "category": (at(EVERY, lambda i, _: "nu"[i * 7 % 5 // 3]), "alone gives the label away"),
    },
    "identifier or name": {
        "feature": (at(EVERY, lambda i, _: i * 37 % 1009), "looks like an identifier"),
        "category": (at(EVERY, lambda i, _: f"A{i}"), "looks like an identifier"),
    },
    "spelling of names": {
        "site": (at(slice(0, 9), lambda *_: "S0"), "'S0' and 's0' differ in capitals"),
        "class": (at(EVERY, lambda i, y: ("Yes" if i % 2 else "yes") if y else "no"), "'Yes' and"),
        "category": (at(FEW, lambda *_: "A"), "'A' and 'a' differ in capitals"),
        "unit": (at(FEW, lambda i, u: u.upper()), "differ in capitals"),
        "group": (at(FEW, lambda *_: "A"), "'A' and 'a' differ in capitals"),
    },
    "level of one site alone": {
        "class": (at(slice(0, 5), lambda *_: 2), "at one site alone"),
        "category": (at(slice(0, 40), lambda i, c: c + "!"), "that no other site has"),
    },
    "word or code for missing": {
        "site": (at(FEW, lambda *_: "N/A"), "missing=['N/A']"),
        "class": (at(FEW, lambda *_: "N/A"), "missing=['N/A']"),
        "number": (at(FEW, lambda *_: -999), "missing=['-999']"),
        "time": (at(FEW, lambda *_: 99999), "missing=['99999']"),
        "feature": (at(FEW, lambda *_: -999), "missing=['-999"),
        "category": (at(FEW, lambda *_: "N/A"), "missing=['N/A']"),
        "unit": (at(FEW, lambda *_: "N/A"), "missing=['N/A']"),
        "group": (at(FEW, lambda *_: "N/A"), "missing=['N/A']"),
    },
    "nearly a number": {
        "number": (at(FEW, lambda i, y: f"1_{y}"), "is not a number"),
        "time": (at(FEW, lambda i, y: f"1_{y}"), "is not a number"),
        "feature": (at(FEW, lambda i, x: f"\u2212{x}"), "nearly a number"),
        "class": (at(EVERY, lambda i, _: f"{i % 19},5"), "nearly numbers"),
    },
    "words among numbers": {
        "number": (at(slice(0, 3), lambda *_: "high"), "is not a number"),
        "time": (at(slice(0, 3), lambda *_: "late"), "is not a number"),
        "feature": (at(slice(0, 3), lambda *_: "high"), "words in others"),
    },
    "spellings of one number": {
        "site": (at(EVERY, lambda i, _: f"{i // 40 + 1}" if i % 2 else f"0{i // 40 + 1}"), "also"),
    },
    "date": {
        "category": (at(EVERY, lambda i, _: f"2021-01-{1 + i % 28}"), "looks like dates"),
        "number": (at(EVERY, lambda i, _: f"2021-01-{1 + i % 28}"), "is not a number"),
        "time": (at(EVERY, lambda i, _: f"2021-01-{1 + i % 28}"), "is not a number"),
    },
    "unit of measurement in cells": {
        "category": (at(EVERY, lambda i, _: f"{i % 19} kg"), "'kg' behind the number"),
        "number": (at(EVERY, lambda i, _: f"{i % 19} kg"), "is not a number"),
        "time": (at(EVERY, lambda i, _: f"{i % 19} kg"), "is not a number"),
    },
    "too large to be squared": {
        role: (at(slice(3, 4), lambda *_: 1e200), "squares of numbers")
        for role in ("number", "time", "feature")
    },
    "spread drowns in size": {
        "feature": (at(EVERY, lambda i, _: 1e12 + i % 2 * 1e-3), "counts as constant"),
    },
    "constant": {
        "feature": (at(EVERY, lambda *_: 7), "the same in every row"),
        "category": (at(EVERY, lambda *_: "a"), "the same in every row"),
        "class": (at(EVERY, lambda *_: 1), "nothing to learn"),
        "site": (at(EVERY, lambda *_: "s"), "two domains or more"),
    },
    "empty": {
        "feature": (at(EVERY, lambda *_: ""), "leave it out"),
        "category": (at(EVERY, lambda *_: ""), "leave it out"),
        "text": (at(EVERY, lambda *_: "-"), "has no words in any row"),
        **{
            role: (at(FEW, lambda *_: ""), "have no value")
            for role in ("class", "number", "time", "site", "unit")
        },
    },
    "class as a number": {
        "class": (at(EVERY, lambda i, _: i * 37 % 101), "write task='regression'"),
    },
    "copies": {"feature": (at(slice(0, 40), lambda i, _: i % 20 / 8), "exact copies of an")},
    "unit at several sites": {"unit": (at(FEW, lambda *_: "p0"), "occur at more than one site")},
    "too small": {"site": (at(slice(0, 1), lambda *_: "tiny"), "needs one to train on and one")},
    "left out": {
        "site": (at(slice(0, 1), lambda *_: "tiny"), "1 site left out"),
        **{
            role: (at(FEW, lambda *_: ""), "rows left out, which have no label")
            for role in ("class", "number", "time")
        },
    },
}  # fmt: skip


def report_of(folder: Path, check: str, role: str) -> Report:
    columns = usual(role)
    name, options = COLUMN_OF[role]
    columns[name] = EXAMPLES[check][role][0](columns[name])
    if check == "identifier or name" and role == "feature":
        columns["visit_id"] = columns.pop("x")
    if check == "copies":
        columns["other"] = [columns["other"][i % 20 if i < 40 else i] for i in range(N)]
        columns["y"] = [columns["y"][i % 20 if i < 40 else i] for i in range(N)]
    if check == "left out":
        options = {**options, "least": 2, "missing_label": "drop"}
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f'"{cell}"' for cell in row) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    call = Call("table", {"path": "t.csv", "domain": "site", "label": "y", **options})
    return inspect(call, folder)


CELLS = [(check, role) for check, roles in EXAMPLES.items() for role in roles]


@pytest.mark.parametrize(("check", "role"), CELLS)
def test_a_check_shows_where_the_matrix_says_so(check: str, role: str, tmp_path: Path) -> None:
    report, words = report_of(tmp_path, check, role), EXAMPLES[check][role][1]
    way = way_of(check, role)
    if way == REFUSED:
        assert words in report.refused and not report.sound
    elif way == NOTE:
        (note, *_) = [note for note in report.notes if words in note]
        assert isinstance(note, Remark) and (note.check, note.role) == (check, role)
    else:
        assert way == COLUMN and words in str([column.remark for column in report.columns])


@pytest.mark.parametrize("role", [*COLUMN_OF])
def test_nothing_is_said_of_a_table_in_which_nothing_is_wrong(role: str, tmp_path: Path) -> None:
    EXAMPLES["nothing"] = {role: (lambda cells: cells, "")}
    report = report_of(tmp_path, "nothing", role)
    del EXAMPLES["nothing"]
    assert not report.notes and not report.refused and report.sound


def test_every_cell_has_an_example_or_a_reason() -> None:
    claimed = {(c, r) for c in MATRIX for r in ROLES if way_of(c, r) in (REFUSED, NOTE, COLUMN)}
    of_files = {(c, r) for c, r in claimed if r in ("image", "mask")}
    assert claimed - of_files == {*CELLS}
    assert of_files == {(check, role) for role, own in OF_FILES.items() for check in own}
    assert all(way_of(check, role) for check in MATRIX for role in ROLES)


@pytest.mark.parametrize(
    "role", [r for r in ROLES if way_of("spellings of one number", r) == MERGED]
)
def test_spellings_of_one_number_are_read_as_one(role: str, tmp_path: Path) -> None:
    columns = usual(role)
    name, options = COLUMN_OF[role]
    columns[name] = [f"{'0' * (i % 2)}{i // 2 % 5}" for i in range(N)]
    options = {"identifiers": "keep", "categorical": [name], **options} if name == "x" else options
    options = {} if role == "feature" else options
    lines = [
        ",".join(columns),
        *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    options = {k: v for k, v in options.items() if k != "categorical" or role == "category"}
    data = load(tmp_path, path="t.csv", domain="site", label="y", **options)
    assert data.schema is not None
    y = [value for domain in data.domains for value in domain.y.reshape(N // 3, -1)[:, 0].tolist()]
    different = {
        "class": len(data.classes or ()), "number": len({*y}), "time": len({*y}),
        "category": len(data.schema.categories.get("x", ())),
        "feature": len({*data.domains[0].x[:, 0].tolist()}),
        "group": len(data.levels.get("x", ())),
        "unit": len({u for d in data.domains if d.units is not None for u in d.units.tolist()}),
    }  # fmt: skip
    assert different[role] == 5


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade or len(str(path.relative_to(path.parents[2]))), 0, 0)).save(
        path
    )


OF_FILES = {
    "image": {
        "spelling of names": "differ in capitals",
        "level of one site alone": "at one site alone",
        "empty": "empty folders: C/x",
        "passed over": "notes.txt",
        "copies": "2 different images occur at more than one site, exactly alike, such as A/",
    },
    "mask": {
        "spelling of names": "differ in capitals",
        "empty": "empty folders: C/x",
        "passed over": "notes.txt",
        "copies": "1 of 6 images are exact copies of an earlier image of their site",
    },
}


@pytest.mark.parametrize(("role", "check"), [(r, c) for r, own in OF_FILES.items() for c in own])
def test_checks_of_files_show(role: str, check: str, tmp_path: Path) -> None:
    kinds = ("x", "y") if role == "image" else ("images", "masks")
    shades = iter(range(1, 99))
    places = [f"{site}/{kind}/{i}.png" for site in "AB" for kind in kinds for i in (1, 2)]
    for place in places:
        picture(tmp_path / place, 0 if "masks" in place else next(shades))
    if role == "mask":
        for place in places[2:4] + places[6:]:
            Image.new("L", (8, 8), 1).save(tmp_path / place)
    call = Call("folder" if role == "image" else "masks", {"path": str(tmp_path)})
    assert not load_any(call).notes
    if check == "spelling of names":
        for kind in kinds:
            (tmp_path / "a" / kind).mkdir(parents=True)
            mode = "L" if kind == "masks" else "RGB"
            Image.new(mode, (8, 8), 1 if mode == "L" else (0, 9, 0)).save(
                tmp_path / "a" / kind / "1.png"
            )
    if check.startswith("level"):
        picture(tmp_path / "B/z/2.png", 200)
    if check == "empty":
        (tmp_path / "C" / "x").mkdir(parents=True)
    if check == "passed over":
        (tmp_path / "A" / kinds[0] / "notes.txt").write_text("no image")
    if check == "copies" and role == "image":
        for kind in kinds:
            shutil.copy(tmp_path / "A" / kind / "1.png", tmp_path / "B" / kind / "1.png")
    if check == "copies" and role == "mask":
        for kind in kinds:
            shutil.copy(tmp_path / "A" / kind / "1.png", tmp_path / "A" / kind / "3.png")
            shutil.copy(tmp_path / "B" / kind / "1.png", tmp_path / "B" / kind / "3.png")
            Image.new("RGB" if kind == "images" else "L", (8, 8)).save(
                tmp_path / "B" / kind / "3.png"
            )
    words = OF_FILES[role][check]
    (note, *_) = [note for note in load_any(call).notes if words in note]
    assert isinstance(note, Remark) and (note.check, note.role) == (check, role)


def load_any(call: Call) -> DataSet:
    return datasets.load(call.name, None, **call.arguments)


def test_the_most_important_remark_comes_first() -> None:
    last = Remark.of("left", "left out", "site")
    first = Remark.of("leak", "gives the label away", "feature", drop=["x"])
    assert ranked(["other", last, first]) == [first, last, "other"]


def test_the_page_has_the_matrix() -> None:
    page = Path(__file__).parents[2] / "docs" / "your-data.md"
    assert as_markdown() in page.read_text()
