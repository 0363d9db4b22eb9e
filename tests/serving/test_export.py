"""Exports give the model's numbers, for any number of inputs, or are not written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Command
from support.federations import photo_study, trained, write_photos, write_table

from unseen.errors import UnseenError
from unseen.serving import export
from unseen.serving.directory import Trained

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "visits.csv")


@pytest.mark.parametrize(
    "kind", ["of_rows", "of_photos", pytest.param("of_numbers", marks=pytest.mark.slow)]
)
def test_onnx_equals_torch(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """By onnxruntime itself, in batches of other sizes than the export saw."""
    model: Trained = request.getfixturevalue(kind)
    given = write_photos(tmp_path / "p") if kind == "of_photos" else write_table(tmp_path / "v.csv")
    out = tmp_path / "served" / "model.onnx"
    made = export.export(model.folder, [given], out=out)
    assert made.path == out and 60 <= made.inputs <= 72 and made.difference <= 1e-4
    session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for n in (1, 2, 33):
        x = torch.rand(n, *model.inputs.shape)
        found = [torch.from_numpy(array) for array in session.run(None, {"x": x.numpy()})]
        expected = model.outputs(x)
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-4)
        if model.classes is not None:
            torch.testing.assert_close(found[1], expected.softmax(-1), rtol=0, atol=1e-4)
        assert len(found) == (1 if model.classes is None else 2)
    told = out.with_name("model.onnx.md").read_text()
    assert "N is free" in told and all(step in told for step in model.spec["input"]["steps"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["unseen"])
    assert about["fingerprint"] == model.spec["fingerprint"]


@pytest.mark.parametrize("method", ["copa(norm='hybrid')", "harmofl", "gperxan"])
def test_what_prediction_needs_besides_the_network_is_exported(tmp_path: Path, method: str) -> None:
    model = trained(photo_study(tmp_path), tmp_path / "model", method)
    made = export.export(model.folder, [tmp_path / "photos"])
    x = torch.rand(3, 3, 8, 8)
    found = export.of_model(model).outputs(x)
    torch.testing.assert_close(found, model.outputs(x), rtol=0, atol=1e-4)
    plain = model.model(x).detach()
    assert made.difference <= 1e-4
    assert torch.allclose(found, plain, atol=1e-4) == (method == "gperxan")


def test_an_export_that_differs_is_not_written(
    of_rows: Trained, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(trained: Trained, x: torch.Tensor) -> tuple[bytes, Any]:
        def run(part: torch.Tensor) -> list[torch.Tensor]:
            outputs = trained.outputs(part)
            return [outputs + 2e-4 * (len(part) == 1), outputs.softmax(-1)]

        return b"the file", run

    monkeypatch.setattr(export, "_onnx", off)
    with pytest.raises(UnseenError, match="more than 1e-04: nothing was written"):
        export.export(of_rows.folder, [table], out=tmp_path / "model.onnx")
    assert not list(tmp_path.glob("model*"))


def test_onnx_in_the_place_of_the_model(
    of_rows: Trained, of_numbers: Trained, table: Path, tmp_path: Path, unseen: Command
) -> None:
    """Predicted and evaluated by the export: the same answers, and a check of whose it is."""
    out = tmp_path / "m.onnx"
    ran = unseen("export", of_rows.folder, "--check", table, "--out", out)
    assert ran.code == 0 and "largest difference" in ran.out
    asked = ("evaluate", of_rows.folder, "--data", table, "--format", "json")
    one, other = (json.loads(unseen(*asked, *more).out) for more in ((), ("--onnx", out)))
    for a, b in zip(one["domains"], other["domains"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
    assert any("onnxruntime from m.onnx" in note for note in other["notes"])
    ran = unseen("evaluate", of_numbers.folder, "--data", table, "--onnx", out)
    assert ran.code == 2 and "is of another model" in ran.err
    ran = unseen("predict", of_rows.folder, table, "--runtime", "onnx")
    assert ran.code == 2 and "there is no ONNX file" in ran.err
    (tmp_path / "bad.onnx").write_text("no graph")
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--onnx", tmp_path / "bad.onnx")
    assert ran.code == 2 and "cannot be run" in ran.err


def test_without_real_inputs_there_is_no_export(
    of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "bad.csv").write_text("age,dose,drug\nx,y,z\n")
    ran = unseen("export", of_rows.folder, "--check", tmp_path / "bad.csv")
    assert ran.code == 2 and "none of the inputs of --check can be used" in ran.err
    ran = unseen("export", of_rows.folder, "--format", "tflite")
    assert ran.code == 2 and "--format must be one of 'onnx'" in ran.err


def test_what_cannot_be_exported_is_refused_with_the_reason(
    of_rows: Trained, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nmore")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(UnseenError, match="cannot be exported as onnx: RuntimeError: no such oper"):
        export.export(of_rows.folder, [table])
