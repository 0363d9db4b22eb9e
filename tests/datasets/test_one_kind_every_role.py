"""A check that one role has, its neighbours have as well."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import load
from unseen.data.dataset import DataSet
from unseen.data.image_files.images import View
from unseen.errors import UnseenError

pandas = pytest.importorskip("pandas")


def table(folder: Path, columns: dict[str, list[object]], **options: object) -> DataSet:
    pandas.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    options = {"domain": "site", "label": "died", **options}
    return load("table", folder, path="t.csv", **options)


def rows(**columns: list[object]) -> dict[str, list[object]]:
    n = 120
    site = ["abc"[i // 40] for i in range(n)]
    died = [i * 7 % 5 // 3 for i in range(n)]
    age = [(i * 37 % 101) / 7 for i in range(n)]
    return {"site": site, "age": age, "died": died, **columns}


def pairs(*three: str) -> list[object]:
    return [three[i // 40].split("/")[i % 2] for i in range(120)]


@pytest.mark.parametrize(
    ("three", "said"),
    [
        (("M/F", "m/f", "M/f"), "'F' and 'f' differ in capitals"),
        (("True/False", "TRUE/FALSE", "true/false"), "'FALSE' and 'False' and 'false' differ"),
        (("mâle/f", "mâle/f", "ma\u0302le/f"), "differ in spelling alone"),
        (("M/F", "M/F", "male/female"), "40 of 40 rows of site 'c' have a category of 'sex'"),
    ],
)
def test_categories_that_sites_spell_differently_are_named(
    three: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert any(said in note for note in table(tmp_path, rows(sex=pairs(*three))).notes)
    assert not table(tmp_path, rows(sex=pairs("M/F", "M/F", "M/F"))).notes


def test_units_and_groups_that_differ_in_capitals_are_named(tmp_path: Path) -> None:
    ward = pairs("Ward/B", "ward/B", "Ward/B")
    assert "'Ward' and 'ward'" in str(table(tmp_path, rows(ward=ward), groups=["ward"]).notes)
    people = [f"{'pP'[i % 2]}{i // 2}" for i in range(120)]
    assert "units 'P0' and 'p0'" in str(table(tmp_path, rows(who=people), unit="who").notes)


def test_the_point_of_sas_is_missing_and_missing_adds_to_the_usual_words(tmp_path: Path) -> None:
    cells = [[".", "NA", "?", "-9", "", i / 3][i % 6] for i in range(120)]
    data = table(tmp_path, rows(dose=cells), missing=["-9"])
    assert data.schema is not None and not data.schema.categories
    assert all(int(domain.x[:, 1].isnan().sum()) > 30 for domain in data.domains)


@pytest.mark.parametrize("role", ["age", "died"])
def test_numbers_whose_squares_overflow_are_named_by_column_and_line(
    role: str, tmp_path: Path
) -> None:
    columns = rows()
    columns[role][3] = 1e200
    with pytest.raises(UnseenError, match=rf"line 5 of t.csv has '1e\+200' in the column '{role}'"):
        table(tmp_path, columns, task="regression")


@pytest.mark.parametrize("form", ["classes", "missing", "number", "regression"])
def test_a_column_that_gives_the_label_away_is_named(form: str, tmp_path: Path) -> None:
    columns, task = rows(), "regression" if form == "regression" else "classification"
    label = columns["age"] if form == "regression" else columns["died"]
    forms = {
        "classes": lambda y, i: "left" if y else "stayed",
        "missing": lambda y, i: i * 37 % 11 if y else None,
        "number": lambda y, i: 100 * y + i * 37 % 11,
        "regression": lambda y, i: 2 * y + 1,
    }
    leak = [forms[form](y, i) for i, y in enumerate(label)]
    options = {"task": task, "label": "age" if form == "regression" else "died"}
    said = [n for n in table(tmp_path, {**columns, "left": leak}, **options).notes if "away" in n]
    assert len(said) == 1 and "drop=['left']" in said[0]
    assert not [n for n in table(tmp_path, columns, **options).notes if "away" in n]


@pytest.mark.parametrize(("column", "label"), [("age", "died"), ("dose", "age")])
@pytest.mark.parametrize("form", ["{:.1f}", "{:,.1f}"])
def test_a_data_frame_with_decimal_commas_or_thousands_is_refused(
    column: str, label: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unseen.data.tables.frames import expression_of
    from unseen.expression import parse

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = [form.format(1000 + v).replace(".", "" if "," in form else ",") for v in rows()["age"]]
    frame = pandas.DataFrame(rows(age=texts))
    if column == "dose":
        frame = frame.assign(dose=range(120))
    with pytest.raises(UnseenError, match=r"nearly (a )?numbers?.*pandas\.read_csv"):
        (call,) = parse(expression_of(frame, "site", label))
        load(call.name, None, **call.arguments)


def tiff(pixels: np.ndarray) -> bytes:
    h, w, c = pixels.shape
    data = pixels.astype("<u2").tobytes()
    ifd, entries = 8 + len(data), 10
    extra = ifd + 2 + entries * 12 + 4
    tags = [
        (256, 3, 1, w), (257, 3, 1, h), (258, 3, 3, extra), (259, 3, 1, 1), (262, 3, 1, 2),
        (273, 4, 1, 8), (277, 3, 1, c), (278, 3, 1, h), (279, 4, 1, len(data)), (284, 3, 1, 1),
    ]  # fmt: skip
    out = b"II*\0" + struct.pack("<I", ifd) + data + struct.pack("<H", entries)
    for tag, kind, count, value in tags:
        small = kind == 3 and count == 1
        out += struct.pack("<HHI", tag, kind, count)
        out += struct.pack("<HH", value, 0) if small else struct.pack("<I", value)
    return out + struct.pack("<I", 0) + struct.pack("<3H", 16, 16, 16)


DEEP = np.full((4, 4, 3), 2050)


@pytest.mark.parametrize(
    "content",
    [
        tiff(DEEP),
        b"P6\n4 4\n65535\n" + DEEP.astype(">u2").tobytes(),
        b"P6\n4 4\n1023\n" + DEEP.astype(">u2").tobytes(),
        b"P3\n1 1\n65535\n2050 1 2\n",
    ],
    ids=["tiff", "ppm", "ppm10", "plain"],
)
def test_colour_of_more_than_8_bits_is_refused_as_grey_is(content: bytes) -> None:
    for grey in (False, True):
        with pytest.raises(UnseenError, match="more than 8 bits per channel"):
            View(4, grey)(content, "x")


@pytest.mark.parametrize("form", ["TIFF", "PPM", "JPEG2000", "AVIF", "PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_of_8_bits_are_read_in_every_format(form: str, mode: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (8, 8)).save(file, form)
    assert View(8)(file.getvalue(), "x").shape == (3, 8, 8)


@pytest.mark.parametrize("packed", [False, True])
def test_images_that_are_passed_over_are_counted_and_named(packed: bool, tmp_path: Path) -> None:
    def put(name: str, form: str | None = None) -> None:
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (len(name), 0, 0)).save(tmp_path / "p" / name, form)

    for name in ("A/Mice/a.png", "A/y/b.png", "B/mice/c.png", "B/y/d.png", "A/y/h.jfif"):
        put(name, "JPEG" if name.endswith("jfif") else None)
    for name in ("C/y/e.heic", "C/y/f.heic", "A/y/g.raw"):
        put(name, "PNG")
    for name in ("D/y", "A/z"):
        (tmp_path / "p" / name).mkdir(parents=True)
    if packed:
        with tarfile.open(tmp_path / "p.tar", "w") as archive:
            archive.add(tmp_path / "p", arcname=".")
    data = load("folder", tmp_path, path="p.tar" if packed else "p", size=8)
    said = "\n".join(data.notes)
    assert data.names == ("A", "B") and len(data["A"].y) == 3
    assert "2 .heic, 1 .raw, such as A/y/g.raw" in said and "'Mice' and 'mice'" in said
    assert "sites without an image that is read, which are left out: C" in said
    assert packed or "empty folders: A/z, D/y" in said


def test_masks_that_are_passed_over_are_named(tmp_path: Path) -> None:
    for site in "AB":
        for part, mode in (("images", "RGB"), ("masks", "L")):
            (tmp_path / site / part).mkdir(parents=True)
            for i in range(2):
                Image.new(mode, (8, 8)).save(tmp_path / site / part / f"{i}.png")
    (tmp_path / "A/images/9.heic").write_bytes(b"x")
    (tmp_path / "C/images").mkdir(parents=True)
    said = "\n".join(load("masks", tmp_path, size=8).notes)
    assert "1 .heic, such as A/images/9.heic" in said and "left out: C" in said
