"""Sites with a frozen trunk: each has its own cache, and the records are those of one process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.federations import SITES, write_photos
from support.hall import Hall, contents, kits

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.errors import UnseenError
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_messages
from unseen.studies.execution import Study

STUDY = """
dataset = "folder(path='photos', size=16)"
methods = ["fedavg"]
seeds = 1
rounds = 2
model = "resnet18"
weights = "{weights}"
freeze = "{freeze}"
on_bad_reply = "drop"
targets = ["west"]
[training]
batch_size = 4
[federation]
deadline = 60
patience = 0
minimum = 2
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos")
    torch.save(build("resnet18", (3, 16, 16), 2, keyed("a")).state_dict(), tmp_path / "net.pth")
    return tmp_path


def test_sites_compute_their_features_and_send_the_rest(place: Path) -> None:
    file = place / "study.toml"
    file.write_text(STUDY.format(weights=place / "net.pth", freeze="trunk"))
    Study.read(file).run(place / "one", data_dir=place)
    folders = kits(place, dict.fromkeys(SITES, "train"), place / "photos")
    for kit in folders.values():
        shutil.copy(place / "net.pth", kit)
    before = {path.name for path in (place / "cache").glob("features-*")}
    hall = Hall(folders)
    federated.run(str(file), str(place / "sites"), hall, list(SITES))
    one, sites = contents(place / "one"), contents(place / "sites")
    assert one == sites and one
    # Sites find by their own digests what one process found; nothing was computed twice.
    assert {path.name for path in (place / "cache").glob("features-*")} == before
    assert len(before) == len(SITES)


def test_a_site_without_the_weights_says_so(place: Path) -> None:
    file = place / "study.toml"
    file.write_text(STUDY.format(weights=place / "net.pth", freeze="trunk"))
    hall = Hall(kits(place, dict.fromkeys(SITES, "train"), place / "photos"))
    with pytest.raises(UnseenError, match=r"lacks the frozen weights of the study: no file"):
        federated.run(str(file), str(place / "sites"), hall, list(SITES))


def test_a_site_with_other_weights_is_refused(place: Path) -> None:
    file = place / "study.toml"
    file.write_text(STUDY.format(weights=place / "net.pth", freeze="blocks[:6]"))
    folders = kits(place, dict.fromkeys(SITES, "train"), place / "photos")
    for kit in folders.values():
        torch.save(build("resnet18", (3, 16, 16), 2, keyed("b")).state_dict(), kit / "net.pth")
    with pytest.raises(UnseenError, match="the file of frozen weights does not match"):
        federated.run(str(file), str(place / "sites"), Hall(folders), list(SITES))
