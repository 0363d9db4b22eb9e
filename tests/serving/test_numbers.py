"""A model of numbers in use: answers in the label's own units, whatever it was trained on."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command_line import Command

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.serving import export
from unseen.serving.directory import Trained
from unseen.serving.fit import study_of, train

SITES = ("east", "north", "south")
STUDY = """
dataset = "table(path='{path}', domain='site', label='price', task='regression')"
model = "logistic"
methods = ["fedavg"]
rounds = 12
holdout = "south"
[training]
optimiser = "sgd(lr=0.05)"
batch_size = 8
"""


def write(path: Path, slope: float = 50.0) -> Path:
    """price = 1000 + 50 x at all sites, or with another slope at the one that is held out."""
    lines = ["site,x,price"]
    for site in SITES:
        factor = slope if site == "south" else 50.0
        x = torch.randn(50, generator=keyed(f"prices/{site}")).double().tolist()
        lines += [f"{site},{a!r},{1000 + factor * a!r}" for a in x]
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(folder: Path, slope: float = 50.0) -> Trained:
    data = write(folder / "prices.csv", slope)
    (folder / "prices.toml").write_text(STUDY.format(path=data))
    return train(study_of(str(folder / "prices.toml"), {}), folder / "model")


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("prices"))


def test_predictions_are_in_the_labels_units(
    prices: Trained, tmp_path: Path, unseen: Command
) -> None:
    """A linear model of a linear law: 950, 1000 and 1100 at -1, 0 and 2."""
    (tmp_path / "new.csv").write_text("x\n-1\n0\n2\n")
    ran = unseen("predict", prices.folder, tmp_path / "new.csv")
    found = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(ran.out))]
    assert found == pytest.approx([950, 1000, 1100], abs=2)


def test_an_evaluation_is_in_the_labels_units(
    prices: Trained, tmp_path: Path, unseen: Command
) -> None:
    data = write(tmp_path / "again.csv")
    ran = unseen("evaluate", prices.folder, "--data", data, "--format", "json")
    found = {d["domain"]: d for d in json.loads(ran.out)["domains"]}
    rows = [row for row in csv.DictReader(data.open()) if row["site"] == "south"]
    x = prices.inputs.encode([[float(row["x"])] for row in rows])  # type: ignore[union-attr]
    apart = prices.outputs(x).flatten().double().numpy() - np.array(
        [float(r["price"]) for r in rows]
    )
    assert found["south"]["rmse"][0] == pytest.approx(np.sqrt((apart**2).mean()), abs=1e-4)
    assert found["south"]["mae"][0] == pytest.approx(np.abs(apart).mean(), abs=1e-4)
    assert found["south"]["rmse"][0] < 5
    recorded = {r["site"]: r for r in prices.spec["results"]}["south"]["metrics"]
    assert recorded["rmse"][0] == pytest.approx(found["south"]["rmse"][0], abs=1e-4)


def test_what_labels_were_standardised_by_is_in_the_model(prices: Trained) -> None:
    label = prices.spec["label"]
    assert (label["name"], prices.spec["format"]) == ("price", 2)
    assert label["mean"] == pytest.approx(1000, abs=15)
    assert label["deviation"] == pytest.approx(50, abs=10)
    card = (prices.folder / "README.md").read_text()
    assert "It predicts the number price, in its own units" in card
    assert "each numeric column and of the label price" in " ".join(card.split())
    assert "Accuracies in percent" not in card
    assert "worse than a constant" not in card


def test_the_unit_is_inside_the_graph(prices: Trained, tmp_path: Path, unseen: Command) -> None:
    """onnxruntime alone, on standardised columns, answers with prices."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    data = write(tmp_path / "again.csv")
    ran = unseen("export", prices.folder, "--format", "onnx", "--check", data)
    assert ran.code == 0, ran.err
    session = onnxruntime.InferenceSession(str(prices.folder / "model.onnx"))
    mean, deviation = prices.inputs.scaling["x"]  # type: ignore[union-attr]
    x = np.array([[(a - mean) / deviation] for a in (-1, 0, 2)], dtype=np.float32)
    (found,) = session.run(["outputs"], {"x": x})
    assert found.flatten().tolist() == pytest.approx([950, 1000, 1100], abs=2)
    page = (prices.folder / "model.onnx.md").read_text()
    assert "the predicted number, in the units of price" in page
    ran = unseen("predict", prices.folder, data, "--runtime", "onnx")
    first = next(csv.DictReader(io.StringIO(ran.out)))
    assert 800 < float(first["prediction"]) < 1200


def test_an_export_may_differ_by_as_little_of_any_unit(prices: Trained) -> None:
    """1e-4 of a deviation of 50, and 16 roundings: an outlier widens its own bound alone."""
    base = 1e-4 * prices.spec["label"]["deviation"]
    found = export.tolerance(prices, torch.tensor([[0.0], [1000.0], [-1e9]])).tolist()
    assert found == pytest.approx([base, base + 16e3 * 2**-23, base + 16e9 * 2**-23])


def test_an_outlier_hides_no_difference_elsewhere_and_may_round(
    prices: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "new.csv"
    data.write_text("x\n0\n1\n3e9\n")

    def made(row: int, ulps: float, plain: float = 0.0) -> export.Exported:
        def off(trained: Trained, _: torch.Tensor) -> tuple[bytes, object]:
            def run(part: torch.Tensor) -> list[torch.Tensor]:
                outputs = trained.outputs(part)
                change = torch.zeros_like(outputs)
                change[row : row + 1] = ulps * outputs[row : row + 1].abs() * 2**-23 + plain
                return [outputs + change]

            return b"the file", run

        monkeypatch.setattr(export, "_onnx", off)
        return export.export(prices.folder, [data], out=tmp_path / "model.onnx")

    assert made(2, 6.0).inputs == 3
    with pytest.raises(UnseenError, match="nothing was written"):
        made(0, 0.0, plain=1.0)  # 0.02 deviations; an epsilon of the outlier is 10,000 times that


def test_a_model_that_is_worse_than_a_constant_says_where(tmp_path: Path) -> None:
    made = trained(tmp_path, slope=-50.0)
    assert made.spec["worse than a constant"] == ["south"]
    card = (made.folder / "README.md").read_text()
    assert "- worse than a constant at south: by rmse" in card


def test_an_evaluation_says_where_a_constant_would_be_better(
    prices: Trained, tmp_path: Path, unseen: Command
) -> None:
    """price = 1000 + 50 x was learnt; where it is 1000 - 50 x, errors are twice those of 1000."""
    ran = unseen("evaluate", prices.folder, "--data", write(tmp_path / "good.csv"))
    assert ran.code == 0 and "constant" not in ran.out
    data = write(tmp_path / "other.csv", slope=-50.0)
    ran = unseen("evaluate", prices.folder, "--data", data)
    (line,) = (text for text in ran.out.splitlines() if "constant" in text)
    assert line.startswith("worse than a constant: south (rmse ")
    rows = [row for row in csv.DictReader(data.open()) if row["site"] == "south"]
    mean = prices.spec["label"]["mean"]
    expected = np.sqrt(np.mean([(mean - float(row["price"])) ** 2 for row in rows]))
    assert f"the mean of training's labels: {expected:.4g})" in line


def test_an_evaluation_counts_what_is_unusual_as_predict_does(
    prices: Trained, tmp_path: Path, unseen: Command
) -> None:
    data = tmp_path / "new.csv"
    data.write_text("site,x,price\n" + "".join(f"a,{x},1000\n" for x in (0, 1, 99, -1, -77)))
    predicted = unseen("predict", prices.folder, data).err.strip()
    assert predicted == "2 of 5 rows hold values far from what training saw: x (2)"
    assert predicted in unseen("evaluate", prices.folder, "--data", data).out.splitlines()


@pytest.mark.parametrize("drop", [False, True])
def test_rows_without_a_label_are_left_out_as_in_training(
    tmp_path: Path, unseen: Command, drop: bool
) -> None:
    data = write(tmp_path / "prices.csv")
    study = STUDY.format(path=data)
    if drop:
        study = study.replace("task='regression'", "task='regression', missing_label='drop'")
    (tmp_path / "prices.toml").write_text(study)
    made = train(study_of(str(tmp_path / "prices.toml"), {}), tmp_path / "model")
    new = tmp_path / "new.csv"
    new.write_text("site,x,price\na,0,1000\na,1,\na,2,1100\na,3,NA\n")
    ran = unseen("evaluate", made.folder, "--data", new, "--format", "json")
    (site,) = json.loads(ran.out)["domains"]
    assert site["examples"] == 2 and ran.code == (0 if drop else 1)
    line = "rows left out, which have no label: 2"
    assert (line in json.loads(ran.out)["notes"]) == drop and ("2 not" in ran.err) != drop
