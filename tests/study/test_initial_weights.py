"""Studies that begin with weights from a file: said, recorded, kept apart, checked."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

from unseen.cli.main import main
from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.weight_files import Source
from unseen.errors import UnseenError
from unseen.studies.execution import Study, job, runtime
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.settings.named import parse_override

MODEL = "mlp(widths=[4])"


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of three sites, and a file of weights for its two inputs and two classes."""
    lines = ["site,u,v,y"]
    for name, shift in (("north", 0), ("south", 1), ("west", 2)):
        lines += [f"{name},{i % 5 + shift},{i % 3 - i / 30},{i % 2}" for i in range(20)]
    (tmp_path / "sites.csv").write_text("\n".join(lines) + "\n")
    save(tmp_path / "net.pth")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    return tmp_path


def save(path: Path, outputs: int = 2, key: str = "file", model: str = MODEL) -> None:
    torch.save(build(model, (2,), outputs, keyed(key)).state_dict(), path)


def study(**settings: object) -> Study:
    base: dict[str, object] = {
        "dataset": "table(path='sites.csv', domain='site', label='y')",
        "model": MODEL,
        "rounds": 1,
        "seeds": 1,
        "targets": ["west"],
        "training": {"batch_size": 6},
    }
    return Study(**base | settings)


def test_every_seed_begins_with_the_file(sites: Path) -> None:
    planned = prepare_study(study(weights="net.pth"), sites / "out")
    expected = torch.load(sites / "net.pth", weights_only=True)
    for seed in (0, 1):
        prepared = prepare(planned.data, planned.tasks[0], planned.setting.study, seed)
        begun = runtime.first_network(planned.setting, prepared, seed).state_dict()
        assert all(torch.equal(begun[name], expected[name]) for name in expected)
    assert planned.warnings == ()


def test_the_file_stands_under_the_table_and_in_the_folder(sites: Path) -> None:
    source = Source.of("net.pth", None)
    results = study(weights="net.pth").run(sites / "out")
    line = f"model: {MODEL}, initial weights net.pth (sha256 {source.digest}); BatchNorm"
    assert line in (sites / "out" / "table.md").read_text()
    identity = json.loads((sites / "out" / "study.json").read_text())["identity"]
    assert identity["weights"] == str(source)
    assert results.weights == str(source)
    plain = study().run(sites / "plain")
    assert "initial weights" not in (sites / "plain" / "table.md").read_text()
    assert plain.weights is None
    records = [next((sites / out).rglob("target.jsonl")).read_bytes() for out in ("out", "plain")]
    assert records[0] != records[1]


def test_a_folder_holds_one_file_wherever_that_lies(sites: Path) -> None:
    study(weights="net.pth").run(sites / "out")
    (sites / "elsewhere").mkdir()
    (sites / "net.pth").rename(sites / "elsewhere" / "net.pth")
    assert not prepare_study(study(weights="elsewhere/net.pth"), sites / "out").missing
    save(sites / "net.pth", key="another")
    for other in (study(weights="net.pth"), study()):
        with pytest.raises(UnseenError, match=r"weights was 'net.pth \(sha256 "):
            prepare_study(other, sites / "out")


def test_a_new_head_is_said_once_before_the_run(sites: Path) -> None:
    save(sites / "net.pth", outputs=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study(weights="net.pth", targets=None).run(sites / "out")
    said = [str(w.message) for w in caught if "net.pth" in str(w.message)]
    assert said == [
        "weights net.pth: 2 of 4 tensors taken; the head 'head' begins with random weights, since "
        "the file's has 7 outputs."
    ]


def test_what_cannot_be_is_refused_before_any_training(sites: Path) -> None:
    save(sites / "other.pth", model="mlp(widths=[5])")
    for settings, words in (
        ({"weights": "absent.pth"}, "no file of weights at absent.pth"),
        ({"weights": "other.pth"}, "other.pth does not fit the model; of another shape: 'fc1.w"),
        ({"weights_bands": "some"}, "weights_bands"),
        ({"weights_bands": "mean"}, "weights_bands is for a file of weights. Set weights"),
    ):
        with pytest.raises(UnseenError, match=words):
            study(**settings).run(sites / "out")
    assert not list(sites.rglob("*.jsonl"))


def test_a_missing_file_is_found_before_data_are_read(sites: Path) -> None:
    elsewhere = "table(path='absent.csv', domain='site', label='y')"
    with pytest.raises(UnseenError, match="no file of weights .* torchvision's documentation"):
        prepare_study(study(weights="absent.pth", dataset=elsewhere), sites / "out")


@pytest.mark.parametrize("setting", ["weights=", "weights=''", 'weights=""'])
def test_a_bases_weights_can_be_taken_back(sites: Path, setting: str) -> None:
    (sites / "first.toml").write_text('weights = "net.pth"\n')
    (sites / "own.toml").write_text('base = "first.toml"\nweights = ""\nweights_bands = ""\n')
    assert Study.read("first.toml").weights and Study.read("own.toml").weights is None
    overridden = Study.read("first.toml", dict([parse_override(setting)]))
    assert overridden.weights is None and overridden.weights_bands is None


def test_a_file_that_changes_meanwhile_stops_the_job(sites: Path) -> None:
    planned = prepare_study(study(weights="net.pth"), sites / "out")
    save(sites / "net.pth", key="another")
    with pytest.raises(UnseenError, match="changed while the study was running"):
        job.run_job(planned.setting, planned.missing[0], planned.tasks[0])


def test_the_command_line(
    sites: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (sites / "mine.toml").write_text(
        "dataset = \"table(path='sites.csv', domain='site', label='y')\"\n"
        f'model = "{MODEL}"\n[training]\nbatch_size = 6\n'
    )
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    arguments = ["unseen", "study", "mine.toml", "--weights", "net.pth", "--dry-run"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        main()
        raise SystemExit(0)
    assert f"initial weights: {Source.of('net.pth', None)}" in capsys.readouterr().out
