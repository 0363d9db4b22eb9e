"""A model that computes in bfloat16, from training to its audit: every part computes so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.command_line import Command
from support.federations import table_study, write_table

from unseen.serving.fit import study_of, train
from unseen.studies.audit.attacks import audit
from unseen.studies.audit.subject import prepare_subject
from unseen.studies.execution import Study

pytestmark = pytest.mark.filterwarnings("ignore:.*cpu autocast.*")


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model that was trained in bfloat16."""
    folder = tmp_path_factory.mktemp("bf16")
    study = study_of(str(table_study(folder, 'holdout = "west"')), {"precision": "bf16"}, "fedavg")
    return train(study, folder / "model").folder


def test_the_directory_computes_as_training_did(rounded: Path) -> None:
    """`train` itself compares; here against torch's own autocast on the tensors of the file."""
    from unseen.serving.directory import read

    trained = read(rounded)
    assert trained.spec["precision"] == "bf16" and trained.model.precision == "bf16"
    x = torch.randn(40, *trained.inputs.shape, generator=torch.Generator().manual_seed(0))
    trained.model.module.eval()
    with torch.no_grad():
        plain = trained.model.module(x)
        with torch.autocast("cpu", torch.bfloat16):
            expected = trained.model.module(x).float()
    assert torch.equal(trained.outputs(x), expected)
    assert not torch.equal(expected, plain)
    assert "bfloat16" in (rounded / "README.md").read_text()


def test_it_predicts_and_is_evaluated(rounded: Path, tmp_path: Path, unseen: Command) -> None:
    table = write_table(tmp_path / "visits.csv")
    assert unseen("predict", rounded, table, "--accept-unseen").code == 0
    ran = unseen("evaluate", rounded, "--data", table, "--sites", "west", "--format", "json")
    (west,) = json.loads(ran.out)["domains"]
    recorded = json.loads((rounded / "model.json").read_text())["results"][-1]["metrics"]
    assert west["loss"] == pytest.approx(recorded["loss"], rel=1e-5)


def test_its_export_computes_in_float32_and_says_so(rounded: Path, unseen: Command) -> None:
    """The weights are float32: the export is checked on them, and the rounding is told apart."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra onnx is not installed")
    ran = unseen("export", rounded)
    assert ran.code == 0, ran.err
    page = (rounded / "model.onnx.md").read_text()
    assert "computes in float32" in page and "bfloat16" in page
    ran = unseen("evaluate", rounded, "--sites", "west", "--runtime", "onnx")
    assert ran.code == 0 and "largest difference" in ran.out


def test_what_rounding_changes_has_the_labels_unit(tmp_path: Path, unseen: Command) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra onnx is not installed")
    file = table_study(tmp_path, 'holdout = "west"', label="score")
    made = train(study_of(str(file), {"precision": "bf16"}, "fedavg"), tmp_path / "model")
    ran = unseen("export", made.folder)
    assert ran.code == 0, ran.err
    (line,) = (text for text in ran.out.splitlines() if "bfloat16" in text)
    assert line.endswith(" in the units of score")
    page = (made.folder / "model.onnx.md").read_text()
    assert "change by up to" in page and " in the units of score." in page


def test_its_audit_attacks_the_model_that_is_trained(tmp_path: Path) -> None:
    study = Study.read(table_study(tmp_path), {"precision": "bf16"})
    subject = prepare_subject(study, None, "fedavg")
    assert subject.runtime("fedavg", 0).model.precision == "bf16"
    found, images = audit(study, None, "fedavg", victims=2, shadows=0, rounds=1)
    assert found["membership"]["by_loss"] and all(v.isfinite().all() for v in images.values())
