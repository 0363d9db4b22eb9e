"""What a model's directory keeps of training's inputs, so that `predict` can flag others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.client import Client
from unseen.datasets import info
from unseen.datasets.files import below
from unseen.datasets.images import File, Tree, pixels
from unseen.datasets.layout import survey
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.serving.bounds import SIDES, Quantity, measures, quantities_of, ranges_of, to_json
from unseen.serving.inputs import Images, Inputs, Table
from unseen.spec.study import StudySpec
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, split_rows

#: Images of each site that are measured, and files whose size is looked up, at even distances.
MOST, AT_ONCE = 2000, 64


def usual_inputs(
    planned: Plan, prepared: Prepared, inputs: Inputs, seed: int, ranges: bool | None = None
) -> dict[str, Any] | None:
    """Return rounded ranges of a table's columns, or statistics of images, for `model.json`.

    They are taken over the training examples. Public ranges of columns, if the study has any, take
    their place.

    Args:
        planned: The study.
        prepared: Its clients.
        inputs: What the model takes.
        seed: Of the study's job.
        ranges: Whether to keep them; None: where what leaves a site is in the clear and without
            noise.
    """
    study, data = planned.setting.study, planned.data
    if reason := kept_back(study):
        if ranges:
            raise UnseenError(
                "--ranges keeps rounded ranges of columns, or statistics of images, which would "
                f"leave each site in the clear; this study has {reason}. Leave it out, or state "
                "ranges that are public in privacy.columns."
            )
        return None
    if ranges is False:
        return None
    if isinstance(inputs, Table) and study.privacy.columns is None:
        raw = (data[name].x[split_rows(data[name], study, seed)[0]] for name in prepared.sources)
        return {"ranges": {name: list(ends) for name, ends in ranges_of(inputs, raw).items()}}
    if isinstance(inputs, Images):
        return to_json(_of_images(planned, prepared))
    return None


def kept_back(study: StudySpec) -> str:
    """Return the setting that keeps a site's statistics from leaving it in the clear, or ""."""
    privacy = study.privacy
    settings = {
        "privacy.channel": privacy.channel if privacy.channel != "clear" else "",
        "privacy.server": privacy.server if privacy.server != "clear" else "",
        "privacy.examples": privacy.examples,
        "privacy.clients": privacy.clients,
    }
    return next((f"{name} = {value!r}" for name, value in settings.items() if value), "")


def words(usual: dict[str, Any] | None) -> tuple[list[str], int]:
    """Return what left each site for it, in words for the ledger, and how many bytes that is."""
    if not usual:
        return [], 0
    if "ranges" in usual:
        what = "smallest and largest value of each numeric column of its training rows, rounded "
        what += "outward to steps of a deviation or more"
        return [f"for `predict` to flag what is far from training: {what}"], 16 * len(
            usual["ranges"]
        )
    names = [found["name"] for found in usual["quantities"]]
    what = f"count, sum, sum of squares and rounded range of {', '.join(names)} of its images"
    return [f"for `predict` to flag what is far from training: {what}"], 8 + 32 * len(names)


def _of_images(planned: Plan, prepared: Prepared) -> tuple[Quantity, ...]:
    parts = [measures(x) for client in prepared.sources.values() for x in _batches(client)]
    measured = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return quantities_of(measured | file_sizes(planned, tuple(prepared.sources)))


def _batches(client: Client) -> Iterator[Tensor]:
    split = client.split("train")
    rows = torch.arange(0, len(split), max(1, -(-len(split) // MOST)))
    for part in rows.split(AT_ONCE):
        yield split.batch(part)[0]


def file_sizes(planned: Plan, sources: Sequence[str]) -> dict[str, Tensor]:
    """Return logarithms of the sides of the sites' image files, where these lie in folders."""
    (call,) = parse(planned.setting.study.dataset)
    parameter = inspect.signature(info(call.name).loader).parameters.get("path")
    path: Any = call.arguments.get("path", parameter.default if parameter else None)
    where = planned.setting.data_dir
    layout = info(call.name).layout
    trees: list[tuple[Tree, list[File]]] = []
    if layout is not None:
        surveyed = survey(layout, where, path)
        trees = [(surveyed.trees[n], [i.file for i in surveyed.images[n]]) for n in sources]
    elif call.name == "folder":
        tree = Tree(below(where, path, "folder"))
        files = [file for file in tree.files(depth=3) if len(file.parts) >= 3]
        trees = [(tree, [file for file in files if file.parts[-3] == n]) for n in sources]
    sides = [_size(tree.root / file.path) for tree, files in trees for file in _some(tree, files)]
    pairs = torch.tensor([pair for pair in sides if pair], dtype=torch.float64)
    return {name: pairs[:, k].log() for k, name in enumerate(SIDES)} if len(pairs) else {}


def _some(tree: Tree, files: Sequence[File]) -> Sequence[File]:
    """None of an archive's: to look at one is to read through all of it."""
    return files[:: max(1, -(-len(files) // MOST))] if tree.root.is_dir() else ()


def _size(path: Path) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        return pixels(path)
    return None
