"""A model of times until an event, from training to answers, measures and exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.command_line import Command
from support.times import dataset, write

import unseen
from unseen.core.survival import Intervals
from unseen.errors import UnseenError
from unseen.serving import directory, fit
from unseen.serving.answer_options import AnswerOptions, PredictOptions
from unseen.serving.evaluate import evaluate
from unseen.serving.export import export, of_model
from unseen.serving.http_service import Service
from unseen.serving.policy import policy_of
from unseen.serving.reading.labelled import Request
from unseen.studies.settings.study import StudySpec

pd = pytest.importorskip("pandas", reason="needs the extra pandas")
lifelines = pytest.importorskip("lifelines", reason="needs the extra survival")

LOSSES = {
    "cox": "cox()",
    "sums": "hazards(intervals=4)",
    "cuts": "hazards(cuts=[90, 365, 1000])",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("times")


@pytest.fixture(scope="module")
def rows(place: Path) -> Path:
    return write(place / "times.csv", 40)


@pytest.fixture(scope="module")
def models(place: Path, rows: Path) -> dict[str, directory.Trained]:
    made = {}
    for name, loss in LOSSES.items():
        study = StudySpec(
            dataset=dataset(rows), model="logistic", rounds=6, methods=("fedavg",),
            training={"batch_size": 16, "optimiser": "sgd(lr=0.2)", "loss": loss},
        )  # fmt: skip
        spec = fit.study_of(None, {"holdout": "south"}, None, study.model_dump())
        made[name] = fit.train(spec, place / name)
    return made


def test_the_directory_says_what_it_is(models: dict[str, directory.Trained]) -> None:
    for name, trained in models.items():
        assert trained.spec["task"] == "survival" and trained.spec["format"] == 4
        content = trained.spec["times"]
        assert (content["time"], content["event"]) == ("days", "died")
        assert bool(content["cuts"]) is (name in ("sums", "cuts"))
        card = (trained.folder / "README.md").read_text()
        assert ("log-risk of died" in card) is (name == "cox")
        assert ("nothing of when" in card) is (name == "cox")
        assert "squared error" not in card and "Harrell's C" in card
        sent = " ".join(trained.spec["left the sites"]["what"])
        assert ("log(days)" in sent) is (name == "sums") and "training labels" not in sent
    assert models["cuts"].spec["times"]["cuts"] == [90.0, 365.0, 1000.0]


def test_answers_are_log_risks_or_survival(
    models: dict[str, directory.Trained], rows: Path
) -> None:
    frame = pd.read_csv(rows)
    cox = unseen.predict(models["cox"], frame)
    assert "S(90)" not in cox and cox.prediction.notna().all()
    hazards = models["cuts"]
    found = unseen.predict(hazards, frame)
    x = hazards.inputs.encode(frame[["a", "b", "c"]].to_numpy())
    z = hazards.outputs(x)
    S = (1 - z.double().sigmoid()).cumprod(1)
    for j, end in enumerate((90, 365, 1000)):
        assert found[f"S({end})"].tolist() == pytest.approx(S[:, j].tolist(), rel=1e-5)
    assert found.prediction.tolist() == pytest.approx((1 - S[:, -1]).tolist(), rel=1e-5)
    some = unseen.predict(hazards, frame, times=[30, 365])
    assert [c for c in some if c.startswith("S(")] == ["S(30)", "S(365)"]
    expected = Intervals((90.0, 365.0, 1000.0)).survival(z, [30.0])[:, 0]
    assert some["S(30)"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_what_a_model_cannot_say_is_refused(models: dict[str, directory.Trained]) -> None:
    with pytest.raises(UnseenError, match="Cox's model has log-risks alone"):
        policy_of(models["cox"], PredictOptions(times=(90,)))
    with pytest.raises(UnseenError, match="the model knows days from 0 to 1000"):
        policy_of(models["cuts"], PredictOptions(times=(1001,)))
    for options in ({"threshold": "0.5"}, {"abstain": 0.5}, {"coverage": 0.8}):
        with pytest.raises(UnseenError):
            policy_of(models["cox"], AnswerOptions(**options))  # type: ignore[arg-type]


def test_a_server_answers_at_the_times_that_it_was_told(
    models: dict[str, directory.Trained], unseen: Command
) -> None:
    trained = models["cuts"]
    service = Service(trained, policy_of(trained, PredictOptions(times=(90, 500))))
    answer = service.answer(service.of_rows([service.example], ()), ())
    assert {"S(90)", "S(500)"} < set(answer["predictions"][0])
    assert service.about()["times"] == [90, 500]
    refused = unseen("serve", trained.folder, "--times", "1001")
    assert refused.code != 0 and "the model knows days from 0 to 1000" in refused.err


@pytest.mark.parametrize("name", LOSSES)
def test_a_measure_is_that_of_training(
    models: dict[str, directory.Trained], rows: Path, name: str, tmp_path: Path
) -> None:
    trained = models[name]
    (recorded,) = (s for s in trained.spec["results"] if s["site"] == "south")
    for data, label in ((None, None), (rows, None), (tmp_path / "other.csv", "t,e")):
        if label is not None:
            frame = pd.read_csv(rows).rename(columns={"days": "t", "died": "e"})
            frame.to_csv(data, index=False)
        result = evaluate(trained, Request(data, ("south",), ("all",), label))
        (site,) = result.sites
        for metric, (value, low, high) in recorded["metrics"].items():
            assert site.metrics[metric].value == pytest.approx(value, rel=1e-6)
            assert site.metrics[metric].low == pytest.approx(low) and low <= value <= high
    with pytest.raises(UnseenError, match="not for labels that are times"):
        evaluate(trained, Request(metrics=("rmse",)))


def test_rows_without_a_label_are_named(
    models: dict[str, directory.Trained], rows: Path, tmp_path: Path
) -> None:
    frame = pd.read_csv(rows, dtype=str)
    frame.loc[0, "died"] = "perhaps"
    frame.loc[1, "days"] = "-4"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    result = evaluate(models["cox"], Request(tmp_path / "rows.csv", ("east",)))
    assert [fault.line for fault in result.faults] == [2, 3]
    assert "are not a time ≥ 0 with an event of 0 or 1" in str(result.faults[0])
    assert result.sites[0].examples == 38


@pytest.mark.parametrize("name", ["cox", "cuts"])
def test_an_export_answers_alike(
    models: dict[str, directory.Trained], rows: Path, name: str
) -> None:
    ort = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    trained = models[name]
    export(trained.folder, [rows])
    x = torch.randn(7, *trained.inputs.shape)
    outputs = of_model(trained).outputs(x)
    torch.testing.assert_close(outputs, trained.outputs(x), rtol=1e-4, atol=1e-5)
    about = ort.InferenceSession(trained.folder / "model.onnx").get_modelmeta()
    told = json.loads(about.custom_metadata_map["unseen"])
    assert told["times"] == trained.spec["times"]
