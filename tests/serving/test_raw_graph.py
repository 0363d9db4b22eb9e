"""The ONNX graph with its preprocessing: raw rows and images in, the model's answers out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import write_photos, write_table

from unseen import train
from unseen.serving import export
from unseen.serving.directory import Trained
from unseen.serving.predict import predict
from unseen.serving.raw_graph import DESCRIPTION, FILE, IMAGE, UNSEEN
from unseen.serving.reading.new_rows import read
from unseen.spec.study import StudySpec

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def test_raw_rows_give_what_predict_gives(of_rows: Trained, tmp_path: Path) -> None:
    table = write_table(tmp_path / "visits.csv")
    export.export(of_rows.folder, "onnx", [table], out=tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / FILE), providers=["CPUExecutionProvider"])
    kinds = {entry.name: (entry.type, entry.shape) for entry in session.get_inputs()}
    assert kinds["age"] == ("tensor(double)", ["N", 1])
    assert kinds["drug"] == ("tensor(string)", ["N", 1])
    (tmp_path / "new.csv").write_text("age,dose,drug\n61,0.5,a\n70,,b\n1e3,2,a\n55,1.5,\n44,1,zz\n")
    lines = list(predict(of_rows, [tmp_path / "new.csv"], lenient=True))
    cells = [dict(line.item.cells) for line in lines]
    feed = {
        name: np.array([[float(row[name] or "nan")] for row in cells])
        if kind == "tensor(double)"
        else np.array([[row[name]] for row in cells], dtype=object)
        for name, (kind, _) in kinds.items()
    }
    names = [entry.name for entry in session.get_outputs()]
    found = dict(zip(names, session.run(None, feed), strict=True))
    expected = [line.answer.probabilities for line in lines]
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert found["label"].tolist() == [line.answer.label for line in lines]
    assert found[UNSEEN].ravel().tolist() == [False, False, False, False, True]
    about = json.loads((tmp_path / DESCRIPTION).read_text())
    assert {c["input"] for c in about["columns"]} == set(kinds)
    assert about["outputs"]["classes"] == ["no", "yes"]


def test_decoded_images_enter_as_bytes(of_photos: Trained, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    export.export(of_photos.folder, "onnx", [photos], out=tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / FILE), providers=["CPUExecutionProvider"])
    (batch,) = (items[:5] for items in [next(read(of_photos.inputs, [photos]))])
    x = torch.stack([item.x for item in batch if item.x is not None])
    image = x.permute(0, 2, 3, 1).contiguous().numpy()
    assert image.dtype == np.uint8
    outputs = session.run(["outputs"], {IMAGE: image})[0]
    expected = of_photos.outputs(x.float() / 255).numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-4)


def test_every_axis_of_rows_has_its_name(of_rows: Trained, tmp_path: Path) -> None:
    table = write_table(tmp_path / "visits.csv")
    export.export(of_rows.folder, "onnx", [table], out=tmp_path / "model.onnx")
    for name in ("model.onnx", FILE):
        session = ort.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"])
        assert {e.shape[0] for e in (*session.get_inputs(), *session.get_outputs())} == {"N"}


def test_a_column_may_be_called_as_the_gaps_of_another_are(tmp_path: Path) -> None:
    """Age has no gaps, dose has, and a column is called `age missing`."""
    draws = np.random.default_rng(0)
    lines = ["site,age,dose,age missing,died"]
    for i in range(90):
        age, dose, more = draws.normal(size=3)
        gap = "" if i % 5 == 0 else f"{dose:.3f}"
        lines.append(f"{'abc'[i % 3]},{age:.3f},{gap},{more:.3f},{int(age + more > 0)}")
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(lines) + "\n")
    dataset = f"table(path={str(table)!r}, domain='site', label='died')"
    model = train(StudySpec(dataset=dataset, methods=("glm",)), tmp_path / "model")
    export.export(model.folder, "onnx", [table], out=tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / FILE), providers=["CPUExecutionProvider"])
    rows = [dict(line.item.cells) for line in predict(model, [table])]
    names = [entry.name for entry in session.get_inputs()]
    feed = {name: np.array([[float(row[name] or "nan")] for row in rows]) for name in names}
    (found,) = session.run(["probabilities"], feed)
    expected = [line.answer.probabilities for line in predict(model, [table])]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_true_and_false_may_be_spelt_as_numbers(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines = ["site,age,flag,died"]
    for i in range(90):
        age = draws.normal()
        lines.append(f"{'abc'[i % 3]},{age:.3f},{age > 0.2},{int(age + draws.normal() > 0)}")
    table, numbers = tmp_path / "rows.csv", tmp_path / "numbers.csv"
    table.write_text("\n".join(lines) + "\n")
    numbers.write_text(table.read_text().replace("True", "1").replace("False", "0"))
    dataset = f"table(path={str(table)!r}, domain='site', label='died')"
    model = train(StudySpec(dataset=dataset, methods=("glm",)), tmp_path / "model")
    answers = [[a.answer.probabilities for a in predict(model, [f])] for f in (table, numbers)]
    assert answers[0] == answers[1]
    export.export(model.folder, "onnx", [numbers], out=tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / FILE), providers=["CPUExecutionProvider"])
    feed = {"age": np.zeros((4, 1)), "flag": np.array([["1"], ["0"], ["True"], ["2"]], object)}
    (unseen,) = session.run([UNSEEN], feed)
    assert unseen.ravel().tolist() == [False, False, False, True]
