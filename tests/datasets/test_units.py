"""Examples that belong together: one patient is never on both sides of a split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.cli.data import show
from unseen.core.turn import keyed
from unseen.data import DataSet, Domain, check, load
from unseen.data.summary import inspect
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.execution import Study
from unseen.studies.execution.prepare import held_back, prepare, rows_of
from unseen.studies.execution.setting import digest_of
from unseen.studies.settings.holdout import Task


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=2, max_size=60),
    st.floats(0.05, 0.9),
    st.integers(0, 99),
)
def test_a_unit_is_on_one_side(pairs: list[tuple[int, int]], share: float, seed: int) -> None:
    units, y = (torch.tensor(column) for column in zip(*pairs, strict=True))
    if len(units.unique()) < 2:
        return
    rows = held_back(y, units, share, keyed(str(seed)))
    assert 0 < int(rows.sum()) < len(y)
    assert not set(units[rows].tolist()) & set(units[~rows].tolist())
    again = held_back(y, units, share, keyed(str(seed)))
    assert torch.equal(rows, again)


def test_units_of_one_row_are_split_by_class_to_the_nearest_row() -> None:
    y = torch.tensor([0] * 83 + [1] * 14 + [2] * 3)
    units = torch.randperm(100, generator=keyed("names"))
    for seed in range(5):
        rows = held_back(y, units, 0.2, keyed(str(seed)))
        assert y[rows].bincount().tolist() == [17, 3, 1]  # of 16.6, 2.8 and 0.6


def test_numbers_as_labels_count_rows_alone() -> None:
    y, units = torch.linspace(0, 1, 60), torch.arange(60) // 3
    assert int(held_back(y, units, 0.2, keyed("a")).sum()) == 12


def test_larger_units_stay_near_the_share_of_every_class() -> None:
    draw = keyed("units")
    units = torch.randint(200, (600,), generator=draw)
    y = (torch.rand(600, generator=draw) < 0.1).long()
    n, held = y.bincount(), y[held_back(y, units, 0.25, keyed("b"))].bincount()
    assert (held / n - 0.25).abs().max() < 0.03


def domain(name: str, units: list[int] | None, **options: object) -> Domain:
    n = 20 if units is None else len(units)
    codes = None if units is None else torch.tensor(units)
    x, y = torch.arange(float(n))[:, None], torch.arange(n) % 2
    return replace(Domain(name, x, y, units=codes), **options)  # type: ignore[arg-type]


def made(*domains: Domain) -> DataSet:
    return DataSet("made", domains, ("no", "yes"), "", "", "")


def test_without_units_the_rows_are_those_of_a_plain_permutation() -> None:
    for seed in (0, 7):
        order = torch.randperm(20, generator=keyed(f"{seed}/split/a"))
        train, held = rows_of(domain("a", None), 0.25, seed)
        assert held.tolist() == sorted(order[:5].tolist())
        assert train.tolist() == sorted(order[5:].tolist())


def test_a_study_holds_back_whole_units() -> None:
    data = made(domain("a", [i // 4 for i in range(20)]), domain("b", None), domain("c", None))
    for seed in range(4):
        found = prepare(data, Task("c", ("a", "b"), ("c",)), Study(validation=0.2), seed)
        client = found.sources["a"]
        rows = {n: client.split(n).x.flatten().long() // 4 for n in ("train", "validation")}
        assert not set(rows["train"].tolist()) & set(rows["validation"].tolist())
        assert len(rows["validation"]) == 4
    with pytest.raises(UnseenError, match="split = 'separate'"):
        prepare(data, Task("c", ("a", "b"), ("c",)), Study(split="shared"), 0)


def test_one_unit_cannot_be_split() -> None:
    with pytest.raises(UnseenError, match="all 20 examples of site 'a' are of one unit"):
        rows_of(domain("a", [3] * 20), 0.2, 0)


def test_units_are_checked_and_belong_to_the_digest() -> None:
    units = [0, 0, 1, 1]
    check(made(domain("a", units, validation=torch.tensor([0, 1]))))
    with pytest.raises(UnseenError, match="1 units with examples on both sides of its official"):
        check(made(domain("a", units, validation=torch.tensor([0, 1, 2]))))
    with pytest.raises(UnseenError, match="units that do not give every example a code"):
        check(made(replace(domain("a", None), units=torch.tensor([0, 1]))))
    plain = made(domain("a", None))
    assert digest_of(plain) == digest_of(made(domain("a", None)))
    assert digest_of(plain) != digest_of(made(domain("a", list(range(20)))))


VISITS = "site,patient,age,died\n" + "".join(
    f"{site},{site[0]}{i // 3},{40 + i},{i % 2}\n" for site in ("north", "south") for i in range(30)
)


def test_the_unit_of_a_table_is_no_feature_and_names_its_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VISITS)
    data = load("table", tmp_path, path="t.csv", domain="site", label="died", unit="patient")
    assert data.schema is not None and data.schema.columns == ("age",)
    assert not data.levels and not data.notes
    for own in data.domains:
        assert own.units is not None
        first = int(own.units.min())
        assert sorted((own.units - first).tolist()) == sorted(i // 3 for i in range(30))
    north, south = data.domains
    assert not set(north.units.tolist()) & set(south.units.tolist())  # type: ignore[union-attr]
    with pytest.raises(UnseenError, match="cannot be the column of the domain"):
        load("table", tmp_path, path="t.csv", domain="site", label="died", unit="site")
    (tmp_path / "t.csv").write_text(VISITS.replace("n0,", ",", 2))
    with pytest.raises(UnseenError, match="2 of 60 rows .* 'patient', the column of the unit"):
        load("table", tmp_path, path="t.csv", domain="site", label="died", unit="patient")


def test_a_unit_at_two_sites_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VISITS.replace(",s4,", ",n4,"))
    data = load("table", tmp_path, path="t.csv", domain="site", label="died", unit="patient")
    (note,) = data.notes
    assert note.startswith("1 of 19 values of the unit 'patient' occur at more than one site")
    assert "n4 at north and south" in note


def test_a_site_of_a_federation_splits_as_one_process_does(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from unseen.sites.flower.site import Site
    from unseen.sites.flower.site import load as load_site

    (tmp_path / "t.csv").write_text(VISITS)
    expression = "table(path='t.csv', domain='site', label='died', unit='patient')"
    study = Study(dataset=expression)
    whole = load(expression, tmp_path)["south"]
    own = "".join(
        line.replace(",", ";") for line in VISITS.splitlines(True) if not line.startswith("n")
    )
    (tmp_path / "own.csv").write_text(own)
    (found,) = load_site(Site("south", tmp_path / "own.csv", tmp_path), study).domains
    for seed in range(3):
        expected, rows = rows_of(whole, 0.2, seed), rows_of(found, 0.2, seed)
        assert all(torch.equal(a, b) for a, b in zip(expected, rows, strict=True))


def images(root: Path) -> Path:
    for site in ("x", "y"):
        for label in ("cat", "dog"):
            (root / site / label).mkdir(parents=True)
            for i in range(4):
                name = f"P{i}_{label}_{site}.png"
                Image.new("RGB", (4, 4), (i, 0, 0)).save(root / site / label / name)
    return root


def test_a_pattern_names_the_unit_of_an_image(tmp_path: Path) -> None:
    root = images(tmp_path / "photos")
    data = load(r"folder(size=4, unit=r'(P\d+)_')", root)
    for own in data.domains:
        assert own.units is not None and own.units.tolist() == [0, 1, 2, 3] * 2
    assert "4 of 4 values of the unit '(P\\\\d+)_' occur at more than one site" in data.notes[1]
    assert "4 different images occur at more than one site" in data.notes[0]
    held = rows_of(data["x"], 0.25, 0)[1]
    assert len(held) == 2 and held[1] == held[0] + 4
    for pattern, fault in (
        ("P[0-9]+", "has no group in brackets"),
        ("(P", "is not a regular expression"),
        ("(P[12])_", "finds no unit in the names of 8 of 16 images, the first x/cat/P0_cat_x.png"),
    ):
        with pytest.raises(UnseenError, match=fault):
            load("folder", root, size=4, unit=pattern)
    with pytest.raises(UnseenError, match="before a text with backslashes write r"):
        load(r"folder(unit='(P\d+)_')", root)


def visits(path: Path) -> Path:
    """40 patients with three visits each, at four sites."""
    rows = [f"s{p % 4},P{p},{p % 7 + v},{(p + v) % 2}" for p in range(40) for v in range(3)]
    path.write_text("\n".join(["site,patient,age,died", *rows]) + "\n")
    return path


def test_patients_who_become_features_are_said_once(tmp_path: Path) -> None:
    path = visits(tmp_path / "t.csv")
    said = "'patient' looks like the name of a person or thing: 40 different values in 120 rows"
    options = "domain='site', label='died'"
    data = load(f"table(path='{path}', {options})")
    assert f"{said}; write unit='patient' or drop=['patient']" in data.notes
    for settled in ("unit='patient'", "drop=['patient']", "categorical=['patient']"):
        notes = load(f"table(path='{path}', {options}, {settled})").notes
        assert not [note for note in notes if said in note]
    study = Study(
        dataset=f"table(path='{path}', {options})", methods=["fedavg"], targets=["s1"], rounds=1,
        seeds=1, training={"batch_size": 9},
    )  # fmt: skip
    with pytest.warns(UserWarning) as caught:
        study.run(out=tmp_path / "out")
    assert sum(said in str(warning.message) for warning in caught) == 1


def test_a_check_of_patients_as_features_does_not_say_that_nothing_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = visits(tmp_path / "t.csv")
    for more, right in (("", False), (", unit='patient'", True)):
        (call,) = parse(f"table(path='{path}', domain='site', label='died'{more})")
        show(inspect(call, None))
        out = capsys.readouterr().out
        assert ("nothing is wrong" in out) == right
        assert ("to settle before a study: patient" in out) != right
