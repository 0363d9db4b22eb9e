"""Models with a frozen trunk in use: the directory holds the whole network, and predicts by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.federations import SITES, write_photos, write_study
from torch import Tensor

from unseen.core.turn import keyed
from unseen.data.image_files.images import View
from unseen.data.networks import build
from unseen.data.networks.stages import cut
from unseen.serving import directory
from unseen.serving.directory import Trained
from unseen.serving.export import export
from unseen.serving.fit import study_of, train
from unseen.serving.predict import predict


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    write_photos(folder / "photos")
    network = build("resnet18", (3, 16, 16), 2, keyed("weights"))
    with torch.no_grad():
        network.train()(torch.rand(16, 3, 16, 16, generator=keyed("images")))
    torch.save(network.state_dict(), folder / "net.pth")
    return folder


@pytest.fixture(scope="module", params=["trunk", "blocks[:6]"])
def model(place: Path, request: pytest.FixtureRequest) -> Trained:
    dataset = f"folder(path='{place / 'photos'}', size=16)"
    more = f'model = "resnet18"\nweights = "{place / "net.pth"}"\nfreeze = "{request.param}"'
    file = write_study(place / "study.toml", dataset, f'{more}\nholdout = "west"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSEEN_CACHE", str(place / "cache"))
        return train(study_of(str(file), {}, "fedavg"), place / request.param.rstrip("]"))


def images(place: Path) -> tuple[list[Path], Tensor]:
    files = sorted((place / "photos" / SITES[-1]).rglob("*.png"))
    return files, torch.stack([View(16)(path.read_bytes(), path.name) for path in files]) / 255


def test_the_directory_alone_predicts_as_the_whole_network(model: Trained, place: Path) -> None:
    files, x = images(place)
    whole = build("resnet18", (3, 16, 16), 2, keyed("another"))
    state = directory._tensors(model.folder, model.spec)
    own = {name.removeprefix("trunk/"): tensor for name, tensor in state.items()}
    own = {name: tensor for name, tensor in own.items() if "/" not in name}
    whole.load_state_dict(own)
    with torch.no_grad():
        expected = whole.eval()(x).softmax(1)
    (place / "net.pth").rename(place / "away.pth")  # the weights' file is needed no more
    try:
        read = directory.read(model.folder)
    finally:
        (place / "away.pth").rename(place / "net.pth")
    lines = list(predict(read, files))
    found = torch.tensor([list(line.answer.probabilities or ()) for line in lines])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_frozen_tensors_are_those_of_the_file(model: Trained, place: Path) -> None:
    whole = build("resnet18", (3, 16, 16), 2, keyed("another"))
    file = torch.load(place / "net.pth", weights_only=True)
    whole.load_state_dict(file)
    trunk, _ = cut(whole, model.spec["study"]["freeze"])
    state = directory._tensors(model.folder, model.spec)
    assert all(torch.equal(state[f"trunk/{name}"], file[name]) for name in trunk.state_dict())


def test_the_card_says_what_was_frozen(model: Trained) -> None:
    card = (model.folder / "README.md").read_text()
    words = model.spec["study"]["freeze"].replace("trunk", "its trunk") + " frozen"
    assert f"`resnet18`, {words}" in card
    assert model.spec["input"]["shape"] == [3, 16, 16]
    steps = " ".join(model.spec["input"]["steps"])
    assert "EXIF" in steps and "MONOCHROME1 inverted" in steps
    assert {q["name"] for q in model.spec["usual inputs"]["quantities"]} >= {"red brightness"}


def test_an_export_is_of_the_whole_network(model: Trained, place: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    exported = export(model.folder, images(place)[0])
    assert exported.inputs == 20 and exported.difference <= exported.allowed


def test_rows_are_scored_by_features_where_the_model_has_no_layers(place: Path) -> None:
    """Trees on features: the distance from training is that of features, not of images."""
    dataset = f"folder(path='{place / 'photos'}', size=16)"
    more = f'model = "resnet18"\nweights = "{place / "net.pth"}"\nfreeze = "trunk"'
    file = write_study(place / "trees.toml", dataset, f'{more}\nholdout = "west"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSEEN_CACHE", str(place / "cache"))
        trained = train(study_of(str(file), {}, "forest"), place / "trees")
    assert trained.decisions.novelty is not None and trained.decisions.layer == ""
    lines = list(predict(trained, images(place)[0]))
    assert all(line.answer is not None and line.answer.ood is not None for line in lines)
