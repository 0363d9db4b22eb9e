"""Figures that need the saved models and the data: t-SNE and loss surfaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.metrics import loss, plain
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.report.embed import embedding, features, maps
from unseen.report.figures import Figure, Section
from unseen.report.study_report import Part, Run
from unseen.report.surface import plane, surface
from unseen.study.prepare import Prepared, prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, dataset
from unseen.study.watcher import FINAL, LOCALS

#: Examples per domain in a map, and of the target under a surface; figures of each kind.
MAPPED, UNDER, MOST = 120, 512, 12


@dataclass(frozen=True)
class Loaded:
    """A finished job's global model and its local ones (parameters [P] by client)."""

    run: Run
    prepared: Prepared
    model: Model
    vector: Tensor
    buffers: Tensor
    locals: dict[str, Tensor]
    classes: Sequence[str]


def sections(part: Part, data_dir: Path, clients: Sequence[str] = ()) -> list[Section]:
    """t-SNE and loss surfaces of the first seed of each method and target with saved models."""
    firsts = [runs[0] for runs in part.of.values() if (runs[0].raw.folder / FINAL).exists()]
    notes, tsne, surfaces = [], [], []
    for run in firsts[:MOST]:
        try:
            found = loaded(part, run, data_dir)
            tsne.append(mapped(found))
            surfaces += list(surfaced(found, clients))
        except UnseenError as error:
            notes.append(f"{run.method} at {run.task} is left out: {error}")
    if len(firsts) > MOST:
        notes.append(f"the first {MOST} of {len(firsts)} are drawn.")
    said = " ".join(dict.fromkeys(notes))
    maps_text = "t-SNE of what enters the last linear layer, up to "
    return [
        Section(
            "tsne", "Features",
            f"{maps_text}{MAPPED} examples per domain; the target is held out. {said}",
            tuple(tsne),
        ),
        Section(
            "surface", "Loss surfaces",
            "Loss at the target on the plane through three local models; the global model stands "
            f"at its projection, statistics of BatchNorm are those of the global model. {said}",
            tuple(surfaces),
        ),
    ]  # fmt: skip


def loaded(part: Part, run: Run, data_dir: Path) -> Loaded:
    """The models of a job, with the clients that they were trained and tested on."""
    from safetensors.torch import load_file

    identity, job = part.identity, run.raw.job
    digest = str(identity["data"]).rpartition(" ")[2]
    setting = Setting(
        part.study, run.raw.folder, data_dir, digest, identity["model"], part.metrics
    )  # fmt: skip
    data = dataset(part.study.dataset, data_dir, digest)
    task = next(task for task in part.plan if task.name == run.task)
    prepared = prepare(data, task, part.study, job.seed)
    runtime = Runtime.of(setting, data, prepared, run.method, job.seed, device="cpu")
    if runtime.method.predict is not plain:
        raise UnseenError("it predicts with more than its model")
    model = runtime.model
    model.module.load_state_dict(load_file(run.raw.folder / FINAL))
    local: dict[str, dict[str, Tensor]] = {}
    if (run.raw.folder / LOCALS).exists():
        for name, tensor in load_file(run.raw.folder / LOCALS).items():
            client, _, inner = name.partition("/")
            local.setdefault(client, {})[inner] = tensor
    packed = {client: model.layout.pack(tensors) for client, tensors in local.items()}
    vector, buffers = model.vector.clone(), model.buffers.clone()
    return Loaded(run, prepared, model, vector, buffers, packed, data.classes or ())


def mapped(found: Loaded) -> Figure:
    """The map of one global model's features."""
    rows, classes, domains = [], [], []
    for name, client in found.prepared.everyone.items():
        x, y = _some(client.split("validation"), MAPPED)
        with found.model.rounding():
            rows.append(features(found.model.module, x).float())
        names = found.classes
        classes += [str(names[int(c)]) if names else "all" for c in y]
        domains += [name] * len(y)
    title = f"{found.run.method}, target {found.run.task}: features"
    panels = maps(embedding(torch.cat(rows)), classes, domains)
    caption = "t-SNE, the same points coloured by class and by domain"
    return Figure(_key("tsne", found.run), title, caption, panels)


def surfaced(found: Loaded, clients: Sequence[str] = ()) -> Iterator[Figure]:
    """The loss at the target around three local models; nothing where there are no three."""
    names = list(clients or sorted(found.locals)[:3])
    if missing := [name for name in names if name not in found.locals]:
        raise UnseenError(f"no local model of {', '.join(missing)} is saved")
    if len(names) < 3:
        return
    target = next(iter(found.prepared.targets.values()))
    x, y = _some(target.split("validation"), UNDER)
    found.model.module.eval()

    def at(vector: Tensor) -> float:
        with torch.no_grad():
            outputs = found.model.at(vector.to(found.vector), x, found.buffers)
        return loss(outputs, y)

    through = plane({name: found.locals[name] for name in names}, ("global", found.vector))
    title = f"{found.run.method}, target {found.run.task}: loss around the global model"
    away = f"the global model is {through.off['global']:.3g} from the plane"
    panel = surface(through, at, f"loss at {target.name}")
    yield Figure(_key("surface", found.run), title, away, (panel,))


def _some(split: object, most: int) -> tuple[Tensor, Tensor]:
    """Rows at even distances, so that all classes have their share."""
    from unseen.core.client import Split

    assert isinstance(split, Split)
    every = max(1, -(-len(split) // most))
    return split.batch(torch.arange(0, len(split), every))


def _key(kind: str, run: Run) -> str:
    return f"{kind}-{run.method}-{run.task}"
