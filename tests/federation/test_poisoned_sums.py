"""Sums over columns that no rows have, or of other proportions, move nobody's features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import Answer, Hall, kits
from test_bounds_of_answers import SITES, _quick, written

from unseen.core.turn import keyed
from unseen.data.tables.encoding import Schema
from unseen.data.tables.site_sums import typical
from unseen.data.tables.sums_check import far, impossible
from unseen.sites.flower import server_run
from unseen.sites.flower.site_handler import handle

__all__ = ["_quick"]
SCHEMA = Schema(("age", "weight", "sex"), {"sex": ("f", "m")})
ROWS = torch.tensor([[60.0, 70.0, 0.0], [50.0, torch.nan, 1.0], [40.0, 80.0, torch.nan]])
HONEST = SCHEMA.sums(ROWS)


def put(place: int, value: float) -> Callable[[Tensor], Tensor]:
    def changed(sums: Tensor) -> Tensor:
        sums[place] = value
        return sums

    return changed


#: What a site sends in place of its sums, and what is said of it.
LIES: Mapping[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "one sum larger": (lambda s: put(4, float(s[4]) + 1e9)(s), "sums of 'a' that no rows have"),
    "all sums larger": (lambda s: s * 1e6, "rows, and it said that it has"),
    "negative": (lambda s: -s, "counts that are not whole"),
    "half rows": (lambda s: s * 0.51, "counts that are not whole"),
    "more of one column": (lambda s: put(0, float(s[0]) - 1)(s), "other numbers of rows"),
    "squares below 0": (lambda s: put(6, -1.0)(s), "sums of 'a' that no rows have"),
    "NaN": (lambda s: s * torch.nan, "NaN"),
    "one large cell": (
        lambda s: put(6, float(s[6]) + 1e18)(put(4, float(s[4]) + 1e9)(s)),
        "times those of the others",
    ),
    "another unit": (
        lambda s: torch.cat([s[:4], s[4:6] * 1e4, s[6:8] * 1e8, s[8:]]),
        "times those of the others",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_sums_that_lie_are_left_out_by_name(tmp_path: Path, lie: str) -> None:
    changed, why = LIES[lie]

    def tamper(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if site == "north" and "row/statistics" in answer:
            return [{**answer, "row/statistics": changed(answer["row/statistics"].clone())}]
        return [answer]

    file, out = written(tmp_path, 1), tmp_path / "out"
    places = kits(tmp_path, SITES, tmp_path)
    server_run.run(str(file), str(out), Hall(places, tamper), list(SITES))
    (sums,) = out.rglob("statistics.json")
    found = json.loads(sums.read_text())
    without = tmp_path / "without"
    without.mkdir()
    two = written(without, 1)
    two.write_text(two.read_text().replace('"north", ', ""))
    others = {name: role for name, role in SITES.items() if name != "north"}
    server_run.run(str(two), str(without / "out"), Hall(kits(without, others, tmp_path)), [*others])
    (expected,) = (without / "out").rglob("statistics.json")
    assert found == json.loads(expected.read_text())
    remarks = json.loads((out / "federation.json").read_text())["remarks"]
    assert any("without the sums of site north" in text and why in text for text in remarks)
    # What was said of it is said again where the run goes on.
    server_run.run(str(file), str(out), Hall(places), list(SITES))
    assert json.loads(sums.read_text()) == found


def test_a_site_takes_no_sums_that_no_rows_have(tmp_path: Path) -> None:
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    file = written(tmp_path, 1)
    server_run.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    name, asked = next((n, q) for n, q in hall.sent if "statistics" in q)
    site = hall.begun(name, tmp_path / "new", tmp_path)
    for place in (0, 4, 6):
        changed = asked["statistics"].clone()
        changed[place] = -1e9
        answer = handle({**asked, "statistics": changed}, site)
        assert answer["rule"] == "protocol" and "was sent" in str(answer["refused"])
    for wrong in (asked["statistics"][1:], asked["statistics"] * torch.nan):
        assert "was sent sums" in str(handle({**asked, "statistics": wrong}, site)["refused"])


def test_public_ranges_are_what_the_study_says(tmp_path: Path) -> None:
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    file = written(tmp_path, 1)
    file.write_text(file.read_text() + "[privacy]\ncolumns = {a = [-4, 4], b = [-4, 4]}\n")
    server_run.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    name, asked = next((n, q) for n, q in hall.sent if "statistics" in q)
    site = hall.begun(name, tmp_path / "new", tmp_path)
    wider = asked["statistics"] * 2  # sums that rows may have
    refused = str(handle({**asked, "statistics": wider}, site)["refused"])
    assert "other sums than the public ranges" in refused


def test_sums_of_rows_are_possible() -> None:
    assert impossible(SCHEMA, HONEST, 3) is None
    assert impossible(SCHEMA, HONEST + HONEST) is None
    constant = torch.full((1000, 3), 1.7e9, dtype=torch.float64)
    constant[:, 2] = 1
    assert impossible(SCHEMA, SCHEMA.sums(constant), 1000) is None
    assert impossible(SCHEMA, SCHEMA.sums(ROWS[:0]), 3) is None
    assert impossible(Schema(()), torch.zeros(0)) is None


@pytest.mark.parametrize("place", range(len(HONEST)))
@pytest.mark.parametrize("value", [-1.0, 0.5, 1e12, torch.inf])
def test_every_number_of_the_sums_is_looked_at(place: int, value: float) -> None:
    """A sum may be any number that its squares allow."""
    changed = HONEST.clone()
    changed[place] = value
    linear = place in (4, 5) and abs(value) < 1e3
    larger = place in (6, 7) and value == 1e12
    assert (impossible(SCHEMA, changed, 3) is None) == (linear or larger)


def test_values_of_another_order_are_named() -> None:
    numbers = Schema(("age",))
    three = {n: numbers.sums(torch.randn(50, 1) + 50) for n in ("a", "b", "c")}
    assert not far(numbers, three, ("age",))
    three["b"] = numbers.sums(50 * (torch.randn(50, 1) + 50))  # another unit
    assert not far(numbers, three, ("age",))
    three["b"] = numbers.sums(1e4 * (torch.randn(50, 1) + 50))
    assert [*far(numbers, three, ("age",))] == ["b"]
    del three["c"]  # of two nobody can tell
    assert not far(numbers, three, ("age",))
    zeros = {n: numbers.sums(torch.zeros(5, 1)) for n in ("a", "c")}
    assert not far(numbers, {**zeros, "b": three["b"]}, ("age",))


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2),
    st.floats(1e-3, 1e6), st.integers(1, 10**6),
)  # fmt: skip
def test_no_site_moves_a_robust_mean_beyond_those_of_the_others(
    mean: list[float], spread: float, count: int
) -> None:
    numbers = Schema(("a", "b"))
    shift = torch.tensor([[0.0, 50.0], [1.0, 52.0], [0.5, 49.0]])
    own = [numbers.sums(torch.randn(40, 2, generator=keyed(str(i))) + shift[i]) for i in range(3)]
    middle = torch.tensor(mean, dtype=torch.float64)
    lie = torch.cat([
        torch.full((2,), float(count)), torch.zeros(2), count * middle,
        count * (middle.square() + spread**2),
    ])  # fmt: skip
    total = typical(numbers, torch.stack([*own, lie]))
    rows, _, sums, squares = total.view(4, 2)
    means = torch.stack([s.view(4, 2)[2] / s.view(4, 2)[0] for s in own])
    assert bool((sums / rows >= means.min(0).values - 1e-9).all())
    assert bool((sums / rows <= means.max(0).values + 1e-9).all())
    deviation = (squares / rows - (sums / rows).square()).sqrt()
    assert bool(((deviation > 0.7) & (deviation < 1.4)).all())
    assert impossible(numbers, total) is None


def test_sites_that_are_alike_are_scaled_as_by_pooled_sums() -> None:
    alike = torch.stack([HONEST] * 3)
    torch.testing.assert_close(typical(SCHEMA, alike), HONEST * 3)
    torch.testing.assert_close(typical(SCHEMA, HONEST[None]), HONEST)
    empty = SCHEMA.sums(ROWS[:0])
    torch.testing.assert_close(typical(SCHEMA, torch.stack([HONEST, empty])), HONEST)
    flat = SCHEMA.sums(torch.tensor([[60.0, 70.0, 0.0]] * 3))
    mixed = typical(SCHEMA, torch.stack([HONEST, flat, flat]))
    assert float(mixed[4] / mixed[0]) == pytest.approx(60.0)
    assert impossible(SCHEMA, mixed) is None


@pytest.mark.parametrize("standardise", ["pooled", "robust"])
def test_one_lying_site_does_not_break_the_others_model(tmp_path: Path, standardise: str) -> None:
    """All rows of north are said to be larger by 60, which no bound finds."""

    def tamper(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if site == "north" and "row/statistics" in answer:
            sums = answer["row/statistics"].clone()
            own = sums[4:6].clone()
            sums[4:6] += 60 * sums[:2]
            sums[6:8] += 3600 * sums[:2] + 120 * own
            return [{**answer, "row/statistics": sums}]
        return [answer]

    def loss(folder: Path, tamper) -> float:
        folder.mkdir()
        file = written(folder, 6)
        setting = f'standardise = "{standardise}"\n'
        text = file.read_text().replace("holdout =", f"{setting}holdout =")
        file.write_text(text.replace("[training]", '[training]\noptimiser = "sgd(lr=1.0)"'))
        hall = Hall(kits(folder, SITES, folder), tamper)
        server_run.run(str(file), str(folder / "out"), hall, list(SITES))
        (source,) = folder.rglob("source.jsonl")
        lines = [json.loads(line) for line in source.read_text().splitlines()]
        last = max(line["round"] for line in lines)
        return max(line["loss"] for line in lines if line["round"] == last)

    honest = loss(tmp_path / "honest", lambda site, question, answer: [answer])
    lied = loss(tmp_path / "lied", tamper)
    assert (lied < honest + 0.1) == (standardise == "robust"), (honest, lied)
