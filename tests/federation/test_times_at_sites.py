"""Times until an event at sites: two columns are the label, and rules of columns hold for both."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, contents, kits
from support.times import write

from unseen import Study
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_messages
from unseen.sites.flower.terms import Facts, Terms
from unseen.sites.policy.study_rules import columns_of

SITES = ("north", "south", "west")
OPTIONS = "path='times.csv', domain='site', label='days', event='died'"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)


def prepared(folder: Path, loss: str, policy: str = OPEN) -> tuple[Path, Hall]:
    """A study's file, its data in one place, and sites with a file each."""
    whole = write(folder / "times.csv", 40, SITES).read_text().splitlines()
    study = folder / "study.toml"
    study.write_text(
        f'dataset = "table({OPTIONS})"\nmodel = "logistic"\nmethods = ["fedavg", "ppdg"]\n'
        'rounds = 3\nseeds = 1\ntargets = ["west"]\n[training]\nbatch_size = 16\n'
        f'loss = "{loss}"\n[federation]\npatience = 0\n'
    )
    found = kits(folder, dict.fromkeys(SITES, "train"), folder, policy)
    for kit in found.values():
        own = folder / f"{kit.name}.csv"
        own.write_text("\n".join([whole[0], *(r for r in whole if r.startswith(kit.name))]) + "\n")
        text = (kit / "join.toml").read_text().replace(f'data = "{folder}"', f'data = "{own}"')
        (kit / "join.toml").write_text(text)
    return study, Hall(found)


@pytest.mark.parametrize("loss", ["cox()", "hazards(intervals=4)", "hazards(cuts=[90, 365, 1000])"])
def test_sites_give_the_records_of_one_process(tmp_path: Path, loss: str) -> None:
    study, hall = prepared(tmp_path, loss)
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    federated.run(str(study), str(tmp_path / "sites"), hall, list(SITES))
    assert contents(tmp_path / "one") == contents(tmp_path / "sites")
    assert '"times":["days","died"]' in (tmp_path / "sites" / "terms.json").read_text().replace(
        " ", ""
    ).replace("\n", "")


def test_both_columns_are_labels_to_a_sites_rules(tmp_path: Path) -> None:
    uses = columns_of(f"table({OPTIONS}, unit='patient')")
    assert uses == [("site", "domain"), ("days", "label"), ("died", "label"), ("patient", "unit")]
    every = '"*" = ["feature", "text", "label", "group", "unit", "domain", "levels"]'
    closed = OPEN.replace(every, 'days = "label"\na = "feature"\nb = "feature"\nc = "feature"')
    study, hall = prepared(tmp_path, "cox()", closed)
    with pytest.raises(UnseenError, match="the column 'died' may not be used as label"):
        federated.run(str(study), str(tmp_path / "sites"), hall, list(SITES))


def test_sites_whose_event_is_another_column_do_not_fit() -> None:
    fields = {
        "site": "a", "role": "train", "data": "table", "classes": None, "columns": {"x": "number"},
        "categories": {}, "levels": {}, "shape": (1,), "digest": "", "times": ("days", "died"),
    }  # fmt: skip
    one = Facts.read(fields)
    other = Facts.read({**fields, "site": "b", "times": ("days", "left")})
    with pytest.raises(UnseenError, match="do not fit together: columns of time and event"):
        Terms.agree([one, other])
    assert Terms.agree([one]).empty().times == ("days", "died")
