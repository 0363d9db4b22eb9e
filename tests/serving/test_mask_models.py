"""A model of masks from training to PNG files, evaluation and ONNX, by the commands."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.command_line import Command
from support.federations import SCAN as SIZE
from support.federations import write_scans

from unseen.core.metrics.evaluation import METRICS
from unseen.core.outputs import predicted
from unseen.data import load
from unseen.errors import UnseenError
from unseen.serving.answer_options import TrainOptions
from unseen.serving.directory import Trained
from unseen.serving.evaluation.breakdown import Answers, by_area
from unseen.serving.fit import study_of, train
from unseen.serving.http_app import app
from unseen.serving.http_service import Service
from unseen.serving.mask_images import predict_masks, write_mask
from unseen.serving.policy import policy_of

OPTIONS = "size=16, classes=['background', 'disc', 'core']"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scans(tmp_path_factory.mktemp("data") / "scans")


@pytest.fixture(scope="module")
def model(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    file = images.parent / "scans.toml"
    file.write_text(
        f"dataset = \"masks(path='{images}', {OPTIONS})\"\n"
        'model = "unet(widths=[8, 16])"\nmethods = ["fedavg"]\nrounds = 12\nholdout = "grainy"\n'
        '[training]\noptimiser = "adam(lr=0.01)"\nbatch_size = 7\n'
    )
    return train(study_of(str(file), {}), tmp_path_factory.mktemp("models") / "scans")


def test_the_directory_says_that_it_is_of_masks(model: Trained) -> None:
    assert model.masks
    assert model.spec["task"] == "segmentation"
    assert model.spec["metric"] == "dice"
    (held_out,) = (s for s in model.spec["results"] if s["role"] == "target")
    value, *ends = held_out["metrics"]["dice"]
    assert 0 <= value <= 1 and ends == [None, None]  # eight images are too few for an interval
    card = (model.folder / "README.md").read_text()
    assert "a class of each pixel" in card and "--out masks" in card


def test_predictions_are_images_that_can_be_read_as_masks(
    model: Trained, images: Path, tmp_path: Path, unseen: Command
) -> None:
    """PNG files of the images' own size, whose values are the classes of the model's outputs."""
    out = tmp_path / "scans" / "grainy" / "masks"
    ran = unseen("predict", model.folder, images / "grainy" / "images", "--out", out)
    assert ran.code == 0
    data = load(
        "masks", images.parent, path="scans", size=16, classes=["background", "disc", "core"]
    )
    domain = data["grainy"]
    x = torch.as_tensor(domain.x[:]).float() / 255
    expected = predicted(model.outputs(x))
    lines = list(csv.DictReader((out / "predictions.csv").open()))
    assert [line["mask"] for line in lines] == [f"p{i}.png" for i in range(8)]
    for i, line in enumerate(lines):
        image = Image.open(out / line["mask"])
        assert (image.size, image.mode) == (SIZE, "P")
        own = Image.fromarray(expected[i].numpy().astype(np.uint8))
        assert np.array_equal(np.asarray(image), own.resize(SIZE, Image.Resampling.NEAREST))
        share = float((expected[i] == 1).double().mean())
        assert float(line["share(disc)"]) == pytest.approx(share)
    (out / "predictions.csv").unlink()
    (out.parent / "images").symlink_to(images / "grainy" / "images")
    again = load("masks", tmp_path, path="scans", size=16, classes=["background", "disc", "core"])
    nearest = [torch.from_numpy(np.array(Image.open(out / f"p{i}.png").resize((16, 16), 0)))
               for i in range(8)]  # fmt: skip
    assert again["grainy"].y.tolist() == torch.stack(nearest).tolist()


def test_evaluation_gives_what_was_recorded(
    model: Trained, images: Path, unseen: Command, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    ran = unseen("evaluate", model.folder, "--data", images, "--format", "csv", "--page", page,
                 "--metrics", "all")  # fmt: skip
    (row,) = (r for r in csv.DictReader(ran.out.splitlines()) if r["domain"] == "grainy")
    (before,) = (s for s in model.spec["results"] if s["site"] == "grainy")
    for name in ("loss", "dice", "iou", "hd95", "accuracy"):
        assert float(row[name]) == pytest.approx(before["metrics"][name][0], rel=1e-4)
    assert "Dice" in page.read_text()
    detail = unseen("evaluate", model.folder, "--data", images, "--detail").out
    assert "core" in detail and "precision" in detail


def test_another_folder_of_the_same_form_is_evaluated(
    model: Trained, images: Path, tmp_path: Path, unseen: Command
) -> None:
    write_scans(tmp_path / "others", 3)
    ran = unseen("evaluate", model.folder, "--data", tmp_path / "others", "--format", "csv")
    assert {r["domain"]: r["examples"] for r in csv.DictReader(ran.out.splitlines())} == {
        "amber": "3", "faint": "3", "grainy": "3",
    }  # fmt: skip


def test_onnx_gives_what_torch_gives(
    model: Trained, images: Path, tmp_path: Path, unseen: Command
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    ran = unseen("export", model.folder, "--format", "onnx")
    assert ran.code == 0, ran.err
    session = onnxruntime.InferenceSession(str(model.folder / "model.onnx"))
    for count in (1, 3):  # the first axis is free
        x = torch.rand(count, 3, 16, 16)
        outputs, shares = session.run(None, {"x": x.numpy()})
        expected = model.outputs(x)
        torch.testing.assert_close(torch.from_numpy(outputs), expected, rtol=1e-4, atol=1e-4)
        assert np.allclose(shares.sum(1), 1, atol=1e-5)
    out = [tmp_path / "torch", tmp_path / "onnx"]
    for folder, more in zip(out, ((), ("--runtime", "onnx")), strict=True):
        unseen("predict", model.folder, images / "faint" / "images", "--out", folder, *more)
    same = [np.asarray(Image.open(f / "p0.png")) for f in out]
    assert (same[0] == same[1]).mean() > 0.99


def test_what_cannot_be_read_is_named(model: Trained, tmp_path: Path, unseen: Command) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    ran = unseen("predict", model.folder, tmp_path / "bad.png", "--out", tmp_path / "out")
    assert ran.code == 1
    assert "bad.png" in ran.err
    (line,) = csv.DictReader((tmp_path / "out" / "predictions.csv").open())
    assert line["mask"] == "" and "cannot be read" in line["error"]


def test_images_of_one_name_are_refused(
    model: Trained, images: Path, tmp_path: Path, unseen: Command
) -> None:
    first, second = (images / site / "images" / "p0.png" for site in ("amber", "faint"))
    ran = unseen("predict", model.folder, first, second, "--out", tmp_path / "out")
    assert ran.code == 2
    assert "would both have the mask p0.png" in ran.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "predicts masks, one image each"),
        (("--out", "masks.csv"), "is not a folder"),
        (("--out", "x", "--format", "csv"), "this model predicts masks"),
        (("--out", "x", "--abstain", "0.9"), "abstain: a model of masks answers"),
        (("--out", "x", "--threshold", "0.2"), "threshold: a model of masks answers"),
    ],
)
def test_options_of_other_models_are_refused(
    model: Trained, images: Path, unseen: Command, more: tuple[str, ...], words: str
) -> None:
    ran = unseen("predict", model.folder, images / "faint" / "images", *more)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_columns_and_calibration_have_no_meaning(model: Trained, images: Path) -> None:
    with pytest.raises(UnseenError, match="images and no columns"):
        Service(model, policy_of(model)).columns(())
    study = study_of(str(images.parent / "scans.toml"), {})
    with pytest.raises(UnseenError, match="This model predicts masks"):
        train(study, model.folder, TrainOptions(calibrate="temperature"))


def test_a_mask_is_written_with_its_classes(tmp_path: Path) -> None:
    mask = torch.tensor([[0, 1, 2], [8, 200, 0]])
    write_mask(tmp_path / "a" / "m.png", mask)
    image = Image.open(tmp_path / "a" / "m.png")
    assert np.asarray(image).tolist() == mask.tolist()
    assert image.convert("RGB").getpixel((1, 0)) == (230, 159, 0)
    assert image.convert("RGB").getpixel((0, 1)) == (230, 159, 0)  # 8: seven colours later


def test_metrics_of_saved_outputs(model: Trained) -> None:
    data = load("ellipses(size=16, count=8)")["grainy"]
    outputs = model.outputs(data.x.float() / 255)
    assert 0 <= METRICS["dice"](outputs, data.y) <= 1  # type: ignore[operator]


def test_recall_and_precision_of_pixels_by_hand() -> None:
    """Class 1 is predicted at two pixels, one of which is of it."""
    outputs = torch.tensor([[[[0.0, 0.0, 9.0]], [[5.0, 5.0, 5.0]]]])  # 1 1 0
    answers = {"a": Answers(outputs, torch.tensor([[[1, 0, 0]]]), {})}
    _, lesion = by_area(answers, ("none", "lesion")).rows
    assert lesion == ("lesion", "1", "0.667", "1.000", "0.500")  # Dice, recall, precision


def test_masks_are_not_written_over_images(model: Trained, images: Path) -> None:
    first = next((images / "grainy" / "images").glob("*.png"))
    before = first.read_bytes()
    for paths, out in (
        ([images], images), ([images / "grainy"], images / "grainy" / "images"),
        ([first], first.parent),
    ):  # fmt: skip
        with pytest.raises(UnseenError, match="among the images"):
            list(predict_masks(model, paths, out))
    assert first.read_bytes() == before


def test_a_model_of_masks_is_not_served(model: Trained) -> None:
    pytest.importorskip("fastapi")
    with pytest.raises(UnseenError, match="masks cannot be served"):
        app(Service(model, policy_of(model)))
