"""Masks at sites: records and model of one process, and refusals of what has no meaning."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

import torch
from safetensors.torch import load_file
from support.federations import write_scans
from support.hall import Hall, contents, kits

from unseen.data import load
from unseen.errors import UnseenError
from unseen.serving.fit import study_of, train
from unseen.sites.flower import model_run, site_messages
from unseen.sites.flower import server_run as federated
from unseen.sites.flower.site import Site
from unseen.sites.flower.terms import Facts, Terms
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.study_review import review
from unseen.studies.execution import Study

SITES = ("grainy", "plain", "warm")
OPTIONS = "size=16, classes=['background', 'disc', 'core']"
STUDY = """
dataset = "masks(path='scans', {options})"
model = "unet(widths=[4, 8])"
methods = [{methods}]
seeds = 1
rounds = 2
{more}
[holdout]
source = ["{0}", "{1}"]
target = ["{2}"]
[training]
optimiser = "sgd(lr=0.05)"
batch_size = 3
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
    write_scans(tmp_path / "scans", 6)
    return tmp_path


def names(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "scans").iterdir())


def written(place: Path, methods: str = '"fedavg"', options: str = OPTIONS, more: str = "") -> Path:
    file = place / "study.toml"
    file.write_text(STUDY.format(*names(place), options=options, methods=methods, more=more))
    return file


def own(place: Path) -> Hall:
    """Sites with nothing but their own images; those of one lie in a folder of its name."""
    found = kits(place, dict.fromkeys(names(place), "train"), place)
    for number, (name, kit) in enumerate(zip(names(place), found.values(), strict=True)):
        data = place / f"at-{name}"
        shutil.copytree(place / "scans" / name, data / name if not number else data)
        text = (kit / "join.toml").read_text().replace(f'data = "{place}"', f'data = "{data}"')
        (kit / "join.toml").write_text(text)
    return Hall(found)


def test_sites_give_the_records_of_one_process(place: Path) -> None:
    file, hall = written(place, '"fedavg", "ppdg+ga"', more="evaluate_every = 1"), own(place)
    Study.read(file).run(place / "one", data_dir=place)
    results = federated.run(str(file), str(place / "sites"), hall, names(place))
    one, sites = contents(place / "one"), contents(place / "sites")
    assert one == sites and one
    assert "dice" in str(results.table("dice"))
    target = next(path for path in (place / "sites").rglob("target.jsonl"))
    assert {"dice", "iou", "hd95"} <= json.loads(target.read_text().splitlines()[-1]).keys()


def test_one_model_of_masks_is_that_of_one_process(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reports take longer than all else.
    monkeypatch.setattr("unseen.studies.report.write.report", lambda *folders, **options: None)
    file, hall = written(place), own(place)
    text = file.read_text().replace("size=16", "size=16").replace("'scans'", f"'{place}/scans'")
    alone = place / "alone.toml"
    alone.write_text(text)
    one = train(study_of(str(alone), {}), place / "one")
    model_run.train(str(file), str(place / "model"), hall, names(place))
    here = load_file(place / "model" / "model.safetensors")
    expected = load_file(one.folder / "model.safetensors")
    # One module counts the batches of all clients, and each site its own: no number.
    counted = [name for name in expected if not name.endswith("num_batches_tracked")]
    assert all(torch.equal(here[name], expected[name]) for name in counted)
    spec = json.loads((place / "model" / "model.json").read_text())
    assert spec["task"] == "segmentation" and spec["metric"] == "dice"
    figures = {line["site"]: line["metrics"]["dice"] for line in spec["results"]}
    assert figures == {line["site"]: line["metrics"]["dice"] for line in one.spec["results"]}
    for name in names(place):
        assert len(list((place / "kits" / name / "models").iterdir())) == 1


def test_methods_of_one_label_are_left_out_and_settings_refused(place: Path) -> None:
    hall = own(place)
    file = written(place, '"fedavg", "coral"')
    federated.run(str(file), str(place / "sites"), hall, names(place))
    found = json.loads((place / "sites" / "study.json").read_text())["not_applicable"]
    assert found == {"coral": "needs one label per example"}
    file = written(place, more='partition = "dirichlet(alpha=1.0, clients=2)"')
    with pytest.raises(UnseenError, match="partition"):
        federated.run(str(file), str(place / "other"), hall, names(place))


def test_a_site_learns_what_leaves_and_masks_fit_no_classes(place: Path) -> None:
    file, hall = written(place), own(place)
    site = Site.read(hall.kits[2])
    lines = review(site, Proposal(federated.federated(Study.read(file))))
    assert any("6 rows are read here" in line for line in lines)
    assert any("the names of classes: background, disc, core" in line for line in lines)
    data = load(f"masks(path='scans', {OPTIONS})", place)
    one = Facts.of(replace(data, domains=data.domains[:1]), "train", "", {})
    assert one.masks and Terms.agree([one]).empty().masks
    other = Facts.read({**vars(one), "site": "b", "masks": False})
    with pytest.raises(UnseenError, match="do not fit together: masks as labels"):
        Terms.agree([one, other])
