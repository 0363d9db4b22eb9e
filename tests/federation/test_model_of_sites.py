"""From a federation to a model: the directory of one process, at the server and at every site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Answer, Hall, kits
from test_hall import _quick

import unseen
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.answer_options import TrainOptions
from unseen.serving.export import export
from unseen.serving.fit import study_of, train
from unseen.sites.asked_studies import model_study
from unseen.sites.flower import model_run
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.kits.provision import write_sum_keys
from unseen.sites.policy import ledger_check
from unseen.sites.policy.approvals import Approvals
from unseen.sites.policy.site_ledger import SiteLedger

__all__ = ["_quick"]
SITES = {"a": "train", "b": "train", "c": "train", "d": "evaluate"}
STUDY = """
dataset = "table(path='visits.csv', domain='site', label='died')"
methods = ["{method}"]
rounds = 3
model = "mlp(widths=[8])"
{more}
[holdout]
source = ["a", "b", "c"]
target = ["d"]
[training]
batch_size = 16
{training}
[privacy]
{privacy}
[federation]
deadline = 60
patience = 0
minimum = 2
"""
BLIND = 'channel = "ckks"\nserver = "blind"'
NOISE = (
    'examples = "dp(clip=1.0, noise=1.1, delta=1e-5)"\n'
    "columns = {v = [-3, 3], w = [-3, 3], x = [-3, 3], y = [-3, 3]}"
)


def study(
    folder: Path, method: str = "ppdg", privacy: str = "", more: str = "", training: str = ""
) -> Path:
    file = folder / "study.toml"
    method = "fedavg" if "blind" in privacy and method == "ppdg" else method
    values = {"method": method, "privacy": privacy, "more": more, "training": training}
    file.write_text(STUDY.format(**values))
    lines = ["site,v,w,x,y,died"]
    for shift, name in enumerate(SITES):
        x = torch.randn(60 + shift, 4, generator=keyed(name)) + 0.2 * shift
        y = (x.sum(1) > shift).long().tolist()
        rows = zip(x.tolist(), y, strict=True)
        lines += [",".join(map(str, (name, *row, label))) for row, label in rows]
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "kits" / "server" / "flower"))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five reports a model take longer than all else."""
    monkeypatch.setattr("unseen.studies.report.write.report", lambda *folders, **options: None)


def hall(folder: Path, tamper: Callable[..., Any] | None = None, ckks: bool = False) -> Hall:
    places = kits(folder, SITES, folder)
    if ckks:
        pytest.importorskip("tenseal", reason="needs the extra he")
        write_sum_keys(folder / "kits", list(SITES), ["ckks"])
    return Hall(places, tamper) if tamper else Hall(places)


def at(folder: Path, site: str) -> Path:
    (place,) = (folder / "kits" / site / "models").iterdir()
    return place


@pytest.mark.slow
def test_sites_train_the_model_of_one_process(tmp_path: Path) -> None:
    file = study(tmp_path)
    out = model_run.train(str(file), str(tmp_path / "model"), hall(tmp_path), list(SITES))
    one = train(study_of(str(file), {}), tmp_path / "one", TrainOptions(False), data_dir=tmp_path)
    ours = directory.read(out)
    same = load((out / "model.safetensors").read_bytes())
    assert all(torch.equal(t, same[n]) for n, t in one.model.module.state_dict().items())
    for key in ("round", "selection", "metric", "results", "classes", "input", "sites"):
        assert ours.spec[key] == one.spec[key], key
    assert ours.spec["decisions"]["thresholds"] == one.spec["decisions"]["thresholds"]
    for name in SITES:
        for content in ("model.safetensors", "model.json", "README.md", "citations.bib"):
            assert (at(tmp_path, name) / content).read_bytes() == (out / content).read_bytes()
        assert (at(tmp_path, name) / "report" / "report.html").is_file()
    assert "The sites are real ones" in (out / "README.md").read_text()
    lines = (out / "sites.txt").read_text().splitlines()
    assert lines[0].split()[:3] == ["site", "role", "examples"] and len(lines) == 5


@pytest.mark.slow  # onnx alone takes 10 s
@pytest.mark.usefixtures("no_report")
def test_the_model_of_a_site_predicts_and_is_evaluated_and_exported(tmp_path: Path) -> None:
    file = study(tmp_path)
    model_run.train(str(file), str(tmp_path / "model"), hall(tmp_path), list(SITES))
    rows = tmp_path / "rows.csv"
    lines = (tmp_path / "visits.csv").read_text().splitlines()
    rows.write_text("\n".join(lines[:1] + lines[-50:]) + "\n")
    model = at(tmp_path, "b")
    answers = unseen.predict(model, rows, threshold="sensitivity>=0.9")
    assert len(answers) == 50 and set(answers["prediction"]) == {"0", "1"}
    (line,) = unseen.evaluate(model, rows).to_json()["domains"]
    assert line["domain"] == "d" and line["accuracy"][0] > 0.5
    pytest.importorskip("onnx", reason="needs the extra onnx")
    export(model, [rows])
    assert (model / "model.onnx").stat().st_size > 500


@pytest.mark.usefixtures("no_report")
def test_a_blind_server_has_the_card_alone(tmp_path: Path) -> None:
    file = study(tmp_path, privacy=BLIND)
    out = model_run.train(
        str(file), str(tmp_path / "model"), hall(tmp_path, ckks=True), list(SITES)
    )
    assert not [p for p in out.rglob("*") if p.name in ("model.safetensors", "model.json")]
    assert "no model" in (out / "README.md").read_text()
    one, *others = (load((at(tmp_path, n) / "model.safetensors").read_bytes()) for n in SITES)
    assert all(torch.equal(one[k], other[k]) for other in others for k in one)
    clear = {"privacy.channel": "clear", "privacy.server": "clear"}
    expected = train(
        study_of(str(file), clear), tmp_path / "one", TrainOptions(False), data_dir=tmp_path
    )
    assert directory.read(at(tmp_path, "d")).spec["round"] == expected.spec["round"]
    for name, tensor in expected.model.module.state_dict().items():
        assert torch.allclose(tensor, one[name], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("privacy", ["", BLIND])
def test_who_was_away_at_the_end_gets_the_model_when_it_comes_back(
    tmp_path: Path, privacy: str
) -> None:
    file, out = study(tmp_path, privacy=privacy), tmp_path / "model"

    def leaves(site: str, question: Answer, answer: Answer) -> list[Answer]:
        if question["kind"] == "measure":
            place.away.add(3)
        return [answer]

    place = hall(tmp_path, leaves, ckks=bool(privacy))
    with pytest.raises(UnseenError, match="not at every site yet: c: was not connected"):
        model_run.train(str(file), str(out), place, list(SITES))
    assert not (tmp_path / "kits" / "c" / "models").exists()
    place.away.clear()
    place.tamper = lambda site, question, answer: [answer]
    before = len(place.sent)
    model_run.train(str(file), str(out), place, list(SITES))
    kinds = [(site, question["kind"]) for site, question in place.sent[before:]]
    assert [pair for pair in kinds if pair[1] != "hello"] == [("c", "keep")]
    one, other = (load((at(tmp_path, n) / "model.safetensors").read_bytes()) for n in "ac")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("no_report")
def test_under_noise_no_metric_leaves(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    file, place = study(tmp_path, "fedavg", NOISE), hall(tmp_path)
    out = model_run.train(str(file), str(tmp_path / "model"), place, list(SITES))
    assert {question["kind"] for _, question in place.sent} == {"hello", "exchange", "keep"}
    ledger = SiteLedger(Site.read(tmp_path / "kits" / "a").account).lines()
    left = {(i["slot"], i["form"]) for line in ledger for i in line["left"] if "job" in line}
    assert left == {("model", "noised"), ("scalars", "plain"), ("fingerprint", "plain")}
    spec = directory.read(at(tmp_path, "a")).spec
    assert spec["results"] == [] and spec["round"] == 3 and spec["selection"] == "last"
    text = (out / "README.md").read_text()
    assert "No metric left a site" in text and "ε" in text
    head = json.loads(str(next(q for _, q in place.sent if q["kind"] == "keep")["head"]))
    for kind, exchange in (("measure", "measure"), ("exchange", "validate")):
        position = {**head["position"], "exchange": exchange}
        question = {
            **next(q for _, q in place.sent if q["kind"] == "keep"), "kind": kind,
            "head": json.dumps({**head, "position": position}),
        }  # fmt: skip
        assert "refused" in handle(question, Site.read(tmp_path / "kits" / "a")), kind


@pytest.mark.usefixtures("no_report")
def test_the_ledgers_of_both_sides_say_the_same(tmp_path: Path) -> None:
    file = study(tmp_path)
    out = model_run.train(str(file), str(tmp_path / "model"), hall(tmp_path), list(SITES))
    lines = SiteLedger(Site.read(tmp_path / "kits" / "b").account).lines()
    assert ledger_check.against(lines, "b", out / "training") == ([], [])


@pytest.mark.usefixtures("no_report")
def test_a_site_refuses_another_model_than_its_study_is_of(tmp_path: Path) -> None:
    file, out = study(tmp_path), tmp_path / "model"
    place = hall(tmp_path)
    model_run.train(str(file), str(out), place, list(SITES))
    asked = next(q for _, q in place.sent if q["kind"] == "keep")
    spec = json.loads(str(asked["spec"])) | {"model": "os:system"}
    site = Site.read(tmp_path / "kits" / "a")
    other = {**asked, "spec": json.dumps(spec)}
    assert handle(other, site)["rule"] == "once"
    approvals, head = Approvals(site.account), json.loads(asked["head"])
    approvals.approve(*approvals.every())
    head["agreement"]["run"] = "another"
    answer = handle({**other, "head": json.dumps(head)}, site)
    assert "the model's model does not match" in str(answer["refused"])


@pytest.mark.usefixtures("no_report")
def test_a_site_whose_rules_keep_metrics_here_gives_none(tmp_path: Path) -> None:
    file, place = study(tmp_path), hall(tmp_path)
    (tmp_path / "kits" / "d" / "site.toml").write_text('evaluate = ["validation"]\n' + OPEN)
    out = model_run.train(str(file), str(tmp_path / "model"), place, list(SITES))
    results = directory.read(out).spec["results"]
    assert [line["site"] for line in results] == ["a", "b", "c"]
    assert (at(tmp_path, "d") / "model.safetensors").is_file()


def test_settings_that_no_site_could_serve_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    file = study(tmp_path, "fedavg", NOISE, 'selection = "source-validation"')
    with pytest.raises(UnseenError, match="reads metrics, and none leaves"):
        model_study(file)
    file = study(tmp_path, training='buffers = "local"')
    with pytest.raises(UnseenError, match="statistics of its last round"):
        model_study(file)
