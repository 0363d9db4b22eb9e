"""The frozen part of a network: what it makes of every image is computed once, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unseen.core.row_store import keep_freed_memory
from unseen.core.turn import keyed
from unseen.data.dataset import DataSet, Domain
from unseen.data.image_files import cache
from unseen.data.networks import build
from unseen.data.networks.stages import cut, folded
from unseen.data.networks.weight_files import Source
from unseen.errors import UnseenError
from unseen.methods.images.augment import Augment
from unseen.methods.images.augment import build as build_augment
from unseen.studies.settings import user_code
from unseen.studies.settings.study import StudySpec

#: Before names of the frozen part's tensors, in a model's directory.
TRUNK = "trunk/"
#: Raised when features are computed otherwise, so that no old ones are taken for new ones.
VERSION = 2
#: Changes with how views are drawn.
VIEWS = 2
#: Images per pass of one thread, whose maps stay in the processor's cache, and of a GPU.
FEW, MANY = 4, 128
#: What every module has.
OF_MODULES = frozenset(vars(nn.Module()))
REMEDY = (
    "Name another folder by the variable UNSEEN_CACHE, set features = 'float16', choose a smaller "
    "size, or freeze = 'trunk', whose features are the smallest."
)


class Trunk(nn.Module):
    """The frozen part of a network, as features are computed and models are served with it.

    Args:
        frozen: The part, with its own names of tensors; BatchNorm is in evaluation mode.
        shape: Of one image.
        half: Whether features are rounded to float16.

    Attributes:
        rounds: See `half`.
        shape: Of one image's features.
        digest: 24 digits that differ whenever the features do, but for rounding.
    """

    def __init__(self, frozen: nn.Module, shape: tuple[int, ...], half: bool) -> None:
        super().__init__()
        self.rounds = half
        sha = hashlib.sha256(json.dumps([VERSION, form_of(frozen), shape, half]).encode())
        for name, tensor in sorted(frozen.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.cpu().contiguous().numpy().data)
        self.digest = sha.hexdigest()[:24]
        example = torch.rand(2, *shape, generator=keyed("images to fold a trunk by"))
        form = frozen.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = folded(form, example).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            self.shape = tuple(self.network(example).shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of images [N, C, H, W] of numbers in [0, 1], as float32."""
        features: Tensor = self.network(x)
        return features.half().float() if self.rounds else features


def form_of(network: nn.Module) -> list[list[object]]:
    """Return what of a network is not in its tensors: its layers, their options, own code."""
    layers = [
        [name, f"{type(layer).__module__}:{type(layer).__qualname__}", options_of(layer)]
        for name, layer in network.named_modules()
    ]
    classes = sorted({str(path) for _, path, _ in layers})
    own = [
        path
        for path in classes
        if path.partition(".")[0] not in ("torch", "unseen") and "<locals>" not in path
    ]
    return [*layers, *([path, user_code.digest(path)] for path in own)]


def options_of(layer: nn.Module) -> dict[str, str]:
    """Return a layer's attributes that are plain values, as texts by name."""
    return {
        name: repr(value)
        for name, value in sorted(vars(layer).items())
        if name not in OF_MODULES and is_plain(value)
    }


def is_plain(value: object) -> bool:
    """Return whether a value is a text, a number, nothing, or a sequence of these."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


def parts_of(
    study: StudySpec, model: str, weights: Source | None, shape: tuple[int, ...]
) -> tuple[Trunk, dict[str, Tensor]]:
    """Return the frozen part of a study's network, and its tensors by their own names.

    Args:
        study: The study, which freezes some of it.
        model: The network's expression.
        weights: Its weights.
        shape: Of one image.
    """
    network = build(model, shape, 1, keyed("a network that is cut"))
    if weights is not None:
        weights.load(network)
    frozen, _ = cut(network, study.freeze)
    tensors = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    return Trunk(frozen, shape, study.features == "float16"), tensors


@dataclass(frozen=True)
class Work:
    """What is done to every image.

    Attributes:
        trunk: The frozen part.
        device: Where it computes.
        augment: What changes images before, for a view.
        name: Of the view, by which its draws are keyed.
    """

    trunk: Trunk
    device: str
    augment: Augment | None = None
    name: str = ""

    def fill(self, out: Tensor, x: Tensor) -> None:
        """Write the features of the images x [N, C, H, W] into `out` [N, ...].

        Note:
            On a CPU every thread takes a few images at a time through kernels of one thread: the
            bits do not depend on the number of threads, and it is faster than one pass by all.
        """
        keep_freed_memory()
        size = FEW if self.device == "cpu" else MANY
        starts, threads = range(0, len(x), size), torch.get_num_threads()

        def some(start: int) -> None:
            torch.set_num_threads(1)  # of this Python thread
            rows = slice(start, start + size)
            with torch.inference_mode():
                out[rows] = self(x[rows], start).cpu().to(out.dtype)

        try:
            with ThreadPoolExecutor(cores() if self.device == "cpu" else 1) as pool:
                for _ in pool.map(some, starts):
                    pass
        finally:
            torch.set_num_threads(threads)

    def __call__(self, images: Tensor, start: int) -> Tensor:
        x = images.float() / 255 if images.dtype == torch.uint8 else images
        if self.augment is not None:
            # In pieces of one size, whatever passes at a time on this device.
            draws = ((k, keyed(f"{self.name}/{start + k}")) for k in range(0, len(x), FEW))
            x = torch.cat([self.augment(x[k : k + FEW], generator) for k, generator in draws])
        x = x.to(self.device).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.trunk(x)
        return features


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def featured(
    data: DataSet, study: StudySpec, model: str, weights: Source | None, data_dir: Path | None
) -> DataSet:
    """Return the data set with features of the frozen part instead of images.

    Args:
        data: The data set, of images.
        study: The study; where it freezes nothing, the data are returned as they are.
        model: The network's expression.
        weights: Its weights.
        data_dir: The data folder, next to which a cache may lie; see `cache.place`.

    Note:
        Features are found by a digest of the weights, of the images and of what was done to them.
        Those of different views and of different domains lie apart, so that one more costs itself.
    """
    if not study.frozen:
        return data
    shape = tuple(data.domains[0].x.shape[1:])
    if len(shape) != 3:
        raise UnseenError(
            f"freeze = {study.freeze!r} is for images; inputs of {data.name} have shape "
            f"{list(shape)}.",
            remedy="Leave it out.",
        )
    trunk, _ = parts_of(study, model, weights, shape)
    work = Work(trunk.to(study.device), study.device)
    folder = cache.place(data_dir or Path.cwd())
    augment = build_augment(study.training.augment) if study.views else None
    changed = [
        replace(work, augment=augment, name=f"view {k} by {study.training.augment}")
        for k in range(study.views)
    ]

    def of(domain: Domain) -> Domain:
        digest = domain.digest or cache.digest(domain.x)
        pairs = [features_of(domain, digest, one, model, folder) for one in (work, *changed)]
        (x, key), views = pairs[0], tuple(view for view, _ in pairs[1:])
        return replace(domain, x=x, digest="/".join([key, *(k for _, k in pairs[1:])]), views=views)

    return replace(data, domains=tuple(map(of, data.domains)), whole=shape)


def features_of(
    domain: Domain, digest: str, work: Work, model: str, folder: Path | None
) -> tuple[Tensor, str]:
    """Return a domain's features [N, ...], computed if they are not on disk, and their digest."""
    name = f"{work.name}/{domain.name}" if work.name else ""
    content = json.dumps([work.trunk.digest, digest, name, *([VIEWS] if name else [])])
    key, n = hashlib.sha256(content.encode()).hexdigest()[:24], len(domain.x)
    what = f"features of {n:,} images of {domain.name!r}"
    entry = cache.Entry(
        folder and folder / f"features-{key}",
        "features.npy",
        (n, *work.trunk.shape),
        "float16" if work.trunk.rounds else "float32",
        what,
        REMEDY,
        f"{domain.name} by {model}",
    )

    def fill(out: Tensor) -> str:
        begin = time.monotonic()
        replace(work, name=name).fill(out, domain.x)
        seconds = time.monotonic() - begin
        print(f"  {seconds:.0f} s, {n / max(seconds, 1e-9):.0f} images/s", file=sys.stderr)
        return key

    view = f", {work.name}" if work.name else ""
    return entry.array(f"computing {what} once{view}", fill)
