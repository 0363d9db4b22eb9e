"""Rows that occur twice: copies are remarked upon with their counts, and chance is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

import unseen
from unseen.data import load
from unseen.data.summary import inspect
from unseen.expression import parse

CALL = "table(path='t.csv', domain='site', label='died'{})"


def measured(count: int = 300, seed: int = 0) -> pandas.DataFrame:
    draws = np.random.default_rng(seed)
    return pandas.DataFrame({
        "site": np.array(["east", "north", "south"])[np.arange(count) % 3],
        "age": draws.integers(20, 90, count),
        "dose": draws.normal(size=count).round(3),
        "sex": draws.choice(["f", "m"], count),
        "died": draws.integers(0, 2, count),
    })  # fmt: skip


def notes(frame: pandas.DataFrame, folder: Path, options: str = "") -> tuple[str, ...]:
    frame.to_csv(folder / "t.csv", index=False)
    found = load(CALL.format(options), folder).notes
    return tuple(note for note in found if "exact" in note)


def test_copies_are_counted_within_a_site_and_between_sites(tmp_path: Path) -> None:
    frame = measured()
    assert not notes(frame, tmp_path)
    assert not frame.duplicated(["dose"]).iloc[:12].any()
    east = frame[frame.site == "east"]
    again = pandas.concat([frame, frame.iloc[:12], east.iloc[:7].assign(site="south")])
    inside, across = notes(again, tmp_path)
    assert inside.startswith("12 of 319 rows are exact copies of an earlier row of their site")
    assert "such as line 2 and line 302:" in inside
    assert across.startswith("7 different rows occur at more than one site, exactly alike")
    assert "such as line 2 at east and line 314 at south" in across
    assert {inside, across} <= {*inspect(parse(CALL.format(""))[0], tmp_path).notes}
    (copy,) = notes(pandas.concat([frame, frame.iloc[:12]]), tmp_path)
    assert copy.startswith("12 of 312 rows")
    (copy,) = notes(pandas.concat([frame, east.iloc[:7].assign(site="south")]), tmp_path)
    assert copy.startswith("7 different rows")


def test_a_frame_has_the_remark_with_rows_counted_from_0(tmp_path: Path) -> None:
    frame = pandas.concat([measured(), measured().iloc[:12]])
    study = unseen.Study(dataset=frame, domain="site", label="died", methods=["glm"])
    (note,) = [n for n in load(study.dataset).notes if "exact" in n]
    assert "such as row 0 (counted from 0) and row 300 (counted from 0)" in note


def test_rows_of_one_unit_are_no_copies_and_rows_of_two_units_are(tmp_path: Path) -> None:
    frame = measured().assign(patient=np.arange(300))
    unit = ", unit='patient'"
    assert not notes(pandas.concat([frame, frame.iloc[:12]]), tmp_path, unit)
    other = frame.iloc[:12].assign(patient=np.arange(400, 412))
    (note,) = notes(pandas.concat([frame, other]), tmp_path, unit)
    assert note.startswith("12 of 312 rows")


def categories(draws: np.random.Generator) -> dict[str, object]:
    """81 kinds of rows, all of which occur often."""
    return {name: draws.choice(["a", "b", "c"], 2000) for name in ("x", "y", "z")}


def ages(draws: np.random.Generator) -> dict[str, object]:
    """Ages of a class of passengers, whose fare depends on it."""
    fare = draws.choice([7.25, 7.75, 7.9, 8.05, 13.0, 26.0], 2000)
    age = draws.normal(35, 14, 2000).round().clip(0, 90)
    return {"age": age, "fare": fare, "port": np.where(fare > 10, "south", "west")}


def zeros(draws: np.random.Generator) -> dict[str, object]:
    """Laboratory values that half of the patients do not have, written as 0."""
    there = draws.random(2000) < 0.5
    return {n: np.where(there, draws.normal(size=2000).round(4), 0) for n in ("x", "y", "z")}


def answers(draws: np.random.Generator) -> dict[str, object]:
    """A questionnaire: people who answer alike throughout, and some who do not."""
    usual = draws.integers(1, 6, 2000)
    return {
        f"q{j}": np.where(draws.random(2000) < 0.9, usual, draws.integers(1, 6, 2000))
        for j in range(8)
    }


def counts(draws: np.random.Generator) -> dict[str, object]:
    """Two counts of many values, of which few are frequent."""
    return {"visits": draws.geometric(0.2, 2000), "days": draws.geometric(0.05, 2000)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", [categories, ages, zeros, answers, counts])
def test_rows_that_are_equal_by_chance_are_not_called_copies(
    form: object, seed: int, tmp_path: Path
) -> None:
    draws = np.random.default_rng(seed)
    columns = form(draws)  # type: ignore[operator]
    sites, died = draws.choice(["p", "q", "r"], 2000), draws.integers(0, 2, 2000)
    frame = pandas.DataFrame({"site": sites, **columns, "died": died})
    assert frame.duplicated().sum() > 20  # of one site
    assert not notes(frame, tmp_path)
