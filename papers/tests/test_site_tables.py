"""Data sets with natural sites: as distributed, on small files of their forms, and as exported."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from unseen.data import DataSet, datasets, load
from unseen.data.summary import inspect
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen_papers.data.site_tables import TABLES

#: Sites, rows and columns of each set, as its documentation and its files have them.
SIZES = {
    "gusto": (16, 40_830, 23),
    "school": (74, 11_350, 28),
    "wisdm": (33, 5_228, 43),
    "vowel": (15, 990, 10),
    "pm25": (5, 20_226, 9),
    "communities": (9, 1_994, 100),
    "cars": (9, 30_000, 7),
    "youtube": (5, 1_956, 1_024),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_exports_are_what_is_known_of_them(name: str, real_data: Path) -> None:
    report = inspect(parse(f"sites/{name}")[0], real_data)
    assert report.sound and "examples per domain and class" in report.compared
    data = load(f"sites/{name}", real_data)
    rows = sum(len(domain.y) for domain in data.domains)
    assert data.schema is not None
    assert (len(data.domains), rows, data.schema.width) == SIZES[name]
    assert data.citation or name == "cars"


@pytest.mark.parametrize("name", ["pm25", "cars"])
def test_the_number_behind_a_label_can_be_predicted(name: str, real_data: Path) -> None:
    data = load(f"sites/{name}(task='regression')", real_data)
    assert data.classes is None and data.standardise == TABLES[name].number
    assert data.schema is not None and data.standardise not in data.schema.columns
    assert inspect(parse(f"sites/{name}(task='regression')")[0], real_data).sound
    bound = 75 if name == "pm25" else torch.cat([d.y for d in data.domains]).double().median()
    classes = load(f"sites/{name}", real_data)
    for numbers, domain in zip(data.domains, classes.domains, strict=True):
        assert torch.equal((numbers.y > bound).long(), domain.y)


def test_a_missing_or_shortened_export_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    rows = [f"{i},speaker{i:02},{i % 11}" for i in range(15)]
    text = "\n".join(["x0,site,label", *rows]) + "\n"
    (tmp_path / "sites" / "vowel.csv.gz").write_bytes(gzip.compress(text.encode()))
    report = inspect(parse("sites/vowel")[0], tmp_path)
    assert not report.sound and {domain.total for domain in report.domains} == {66}
    with pytest.raises(UnseenError, match=r"vowel-context\.data.*Otherwise.*vowel\.csv\.gz"):
        load("sites/vowel", tmp_path / "sites" / "nowhere")
    with pytest.raises(UnseenError, match="'sites/vowel' reads files"):
        load("sites/vowel")
    with pytest.raises(UnseenError, match="has no number to predict"):
        load("sites/vowel", tmp_path, task="regression")


def vowel(folder: Path) -> None:
    lines = [f"  0 {i % 2} 1 {' '.join(f'{i}.{j}' for j in range(10))} {i % 3}" for i in range(6)]
    (folder / "vowel-context.data").write_text("\n".join(lines) + "\n\n")


def wisdm(folder: Path) -> None:
    rows = [f"{i},{7 if i < 100 else 8},{i if i % 2 else '?'},Walking" for i in range(150)]
    path = folder / "WISDM_ar_v1.1_transformed.csv"
    path.write_text("\n".join(["UNIQUE_ID,user,XPEAK,class", *rows, ""]))


def school(folder: Path) -> None:
    x, y = np.empty((1, 2), object), np.empty((1, 2), object)
    for k, n in enumerate((100, 99)):
        x[0, k] = np.tile(np.array([[1, 0, 3]], np.uint8), (n, 1))
        y[0, k] = np.arange(n, dtype=np.uint8)[:, None]
    savemat(folder / "school.mat", {"X": x, "Y": y})


def communities(folder: Path) -> None:
    names = TABLES["communities"].original.header
    rows = [["?"] * len(names) for _ in range(4)]
    for row, state, crimes in zip(rows, (6, 41, 9, 33), (0.1, 0.4, 0.2, 0.3), strict=True):
        row[names.index("state")], row[names.index("population")] = str(state), "0.5"
        row[names.index("ViolentCrimesPerPop")] = str(crimes)
    (folder / "communities.data").write_text("\n".join(map(",".join, rows)) + "\n")


def pm25(folder: Path) -> None:
    names = ["No", "year", "month", "day", "hour", "PM_US Post", "DEWP", "HUMI", "PRES", "TEMP"]
    names += ["cbwd", "Iws", "precipitation"]
    rows = [
        [1, 2012, 1, 1, 0, 80, 1, 1, 1, 1, "NW", 1, 0],  # another year
        [2, 2013, 1, 1, 0, 76, 2, 1, 1, 1, "NW", 1, "NA"],
        [3, 2013, 1, 1, 1, 80, 3, 1, 1, 1, "cv", 1, 0],  # another hour
        [4, 2015, 1, 1, 6, 75, 4, 1, 1, 1, "cv", 1, 0],
        [5, 2015, 1, 1, 12, "NA", 5, 1, 1, 1, "cv", 1, 0],  # no label
        [6, 2015, 1, 1, 18, 75, "NA", 1, 1, 1, "cv", 1, 0],  # no dew point
    ]
    for place, file in enumerate(TABLES["pm25"].files.values()):
        other = [f"PM_{place}", *["NA"] * len(rows)]  # stations differ
        lines = [[*row, extra] for row, extra in zip([names, *rows], other, strict=True)]
        text = "\n".join(",".join(map(str, line)) for line in lines)
        (folder / file).write_text(text + "\n")


def cars(folder: Path) -> None:
    for place, file in enumerate(TABLES["cars"].files.values()):
        tax = "tax(£)" if file == "hyundi.csv" else "tax"
        head = f"model,year,price,transmission,mileage,fuelType,{tax},mpg,engineSize"
        rows = [f"A {i},20{i},{100 * i + place},Manual,{i},Petrol,1,2,3" for i in (10, 11)]
        (folder / file).write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def youtube(folder: Path) -> None:
    for file in TABLES["youtube"].files.values():
        with (folder / file).open("w", encoding="utf-8-sig", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["COMMENT_ID", "AUTHOR", "DATE", "CONTENT", "CLASS"])
            writer.writerow(["z1", "a", "2013-11-28", "please\nlike, subscribe", "1"])
            writer.writerow(["z2", "b", "", "lovely song\ufeff", "0"])


def rows_of(data: DataSet, site: str) -> list[list[float]]:
    return data[site].x.nan_to_num(-9).tolist()


def read(write: Callable[[Path], None], folder: Path) -> DataSet:
    write(folder)
    data = load(f"sites/{write.__name__}", folder)
    assert data.name == f"sites/{write.__name__}" and data.source == TABLES[write.__name__].source
    return data


def test_cells_with_blanks_between_them(tmp_path: Path) -> None:
    data = read(vowel, tmp_path)
    assert data.names == ("speaker00", "speaker01") and data.classes == ("0", "1", "2")
    assert data.schema is not None and data.schema.columns == tuple(f"x{j}" for j in range(10))
    assert rows_of(data, "speaker01")[0] == [1 + j / 10 for j in range(10)]
    assert data["speaker01"].y.tolist() == [1, 0, 2]
    (tmp_path / "vowel-context.data").write_text("0 1 1 0.5\n")
    with pytest.raises(UnseenError, match="line 1 of .* has 4 cells where 14 were expected"):
        load("sites/vowel", tmp_path)


def test_sites_of_few_rows_are_left_out(tmp_path: Path) -> None:
    data = read(wisdm, tmp_path)
    assert data.names == ("person-7",)  # person 8 has 50 windows
    assert data.schema is not None and data.schema.columns == ("XPEAK",)
    assert rows_of(data, "person-7")[:3] == [[-9], [1], [-9]] and len(data["person-7"].y) == 100


def test_cells_of_matlab(tmp_path: Path) -> None:
    data = read(school, tmp_path)
    assert data.names == ("s0",)  # s1 has 99 pupils
    assert rows_of(data, "s0")[0] == [1, 0, 3]
    assert data["s0"].y.tolist() == [0] * 50 + [1] * 50  # above the median, 49.5
    (tmp_path / "school.mat").write_bytes(b"nothing")
    with pytest.raises(UnseenError, match="is not a MATLAB file of cells X and Y"):
        load("sites/school", tmp_path)


def test_states_belong_to_divisions(tmp_path: Path) -> None:
    data = read(communities, tmp_path)
    assert data.names == ("new-england", "pacific")
    assert data["pacific"].y.tolist() == [0, 1] and data["new-england"].y.tolist() == [0, 1]
    assert data.schema is not None and len(data.schema.columns) == 100
    assert rows_of(data, "pacific")[0] == [0.5] + [-9] * 99
    path = tmp_path / "communities.data"
    path.write_text("99" + path.read_text()[1:])
    with pytest.raises(UnseenError, match="state = '99', which is not a known site"):
        load("sites/communities", tmp_path)


def test_hours_of_cities_and_their_dust(tmp_path: Path) -> None:
    data = read(pm25, tmp_path)
    assert data.names == ("Beijing", "Chengdu", "Guangzhou", "Shanghai", "Shenyang")
    assert data["Chengdu"].y.tolist() == [1, 0]  # above 75
    assert rows_of(data, "Chengdu") == [[1, 0, 2, 1, 1, 1, 0, 1, -9], [1, 6, 4, 1, 1, 1, 1, 1, 0]]
    number = load("sites/pm25(task='regression')", tmp_path)
    assert number["Chengdu"].y.tolist() == [76, 75] and number.classes is None


def test_makers_of_cars(tmp_path: Path) -> None:
    data = read(cars, tmp_path)
    assert len(data.domains) == 9 and [d.y.tolist() for d in data.domains] == [[0, 1]] * 9
    assert data.schema is not None and data.schema.columns[:5] == (
        "year", "mileage", "tax", "mpg", "engineSize",
    )  # fmt: skip
    assert rows_of(data, "hyundi")[0] == [2010, 10, 1, 2, 3, 0, 0]
    assert not data.notes and inspect(parse("sites/cars")[0], tmp_path).sound  # no total is known
    for path in tmp_path.iterdir():
        path.write_text("model\n")
    with pytest.raises(UnseenError, match="no rows"):
        load("sites/cars", tmp_path)


def test_comments_with_line_breaks(tmp_path: Path) -> None:
    data = read(youtube, tmp_path)
    assert data.names == ("Eminem", "KatyPerry", "LMFAO", "Psy", "Shakira")
    assert data.schema is not None and data.schema.names == ("text",)
    assert data["Psy"].y.tolist() == [1, 0]
    assert torch.count_nonzero(data["Psy"].x[0]) == 3  # please, like, subscribe
    assert not inspect(parse("sites/youtube")[0], tmp_path).sound  # two comments of 350


def test_an_export_of_r(tmp_path: Path) -> None:
    head = '"day30","sex","age","ant","tpa","grpl","grps","regl"\n'
    rows = '0,"male",70.5,1,0,1,1,6\n1,"female",NA,0,1,2,2,6\n0,"male",61,1,0,3,3,12\n'
    (tmp_path / "gusto.csv").write_text(head + rows)
    data = load("sites/gusto", tmp_path)
    assert data.names == ("region-12", "region-6")
    assert data.schema is not None and data.schema.columns == ("sex", "age")
    assert rows_of(data, "region-6") == [[1, 70.5], [0, -9]]
    assert data["region-6"].y.tolist() == [0, 1]


def test_every_set_is_listed_with_its_facts() -> None:
    assert {f"sites/{name}" for name in SIZES} <= set(datasets())
    for name, (sites, rows, _) in SIZES.items():
        cells = TABLES[name].exported or TABLES[name].cells
        assert (len(cells), sum(sum(own.values()) for own in cells.values())) == (sites, rows)
