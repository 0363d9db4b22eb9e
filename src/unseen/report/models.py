"""Figures that need the saved models and the data: confusion, features and loss surfaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.client import Split
from unseen.core.metrics import forward, loss, plain, predicted
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.report.figures import Dots, Figure, Matrix, Panel, Row, Section
from unseen.report.maps import coloured, embedding, features, plane, surface
from unseen.report.study_report import Run, StudyReport
from unseen.study.prepare import Prepared, prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, dataset
from unseen.study.watcher import FINAL, LOCALS

#: Examples per domain in a map, and of the target under a surface; figures of each kind.
MAPPED, UNDER, MOST = 120, 512, 12


@dataclass(frozen=True)
class Loaded:
    """A finished job's saved models, with the clients that it was trained and tested on.

    Attributes:
        model: The global model, with its parameters and buffers in place.
        locals: Each client's parameters [P].
        classes: Names of the classes; none for regression.
    """

    run: Run
    prepared: Prepared
    model: Model
    locals: Mapping[str, Tensor]
    classes: Sequence[str]

    def figure(self, kind: str, title: str, caption: str, panels: tuple[Panel, ...]) -> Figure:
        """Return a figure of this job, under a key that begins with its kind."""
        name = f"{self.run.method}, target {self.run.task}: {title}"
        return Figure(f"{kind}-{self.run.method}-{self.run.task}", name, caption, panels)


def sections(part: StudyReport, data_dir: Path, clients: Sequence[str] = ()) -> list[Section]:
    """Return the chapters on saved models, from the first seed of each method and target.

    Args:
        part: The study.
        data_dir: Where its data are.
        clients: Three clients whose models span the loss surface; the first three by default.
    """
    runs = [runs[0] for m in part.methods for task in part.tasks if (runs := part.of(m, task))]
    saved = [run for run in runs if (run.raw.folder / FINAL).exists()]
    figures: dict[str, list[Figure]] = {"confusion": [], "tsne": [], "surface": []}
    remarks: dict[str, list[str]] = {kind: [] for kind in figures}
    counts: dict[str, list[Tensor]] = defaultdict(list)
    classes: Sequence[str] = ()
    for i, run in enumerate(saved):
        left_out = f"{run.method} at {run.task} is left out:"
        try:
            job = loaded(part, run, data_dir)
        except UnseenError as error:
            remarks["confusion"].append(f"{left_out} {error}")
            continue
        if job.classes:
            classes = job.classes
            counts[run.method].append(confusion(job))
        for kind in ("tsne", "surface") if i < MOST else ():
            try:
                figures[kind] += mapped(job) if kind == "tsne" else surfaced(job, clients)
            except UnseenError as error:
                remarks[kind].append(f"{left_out} {error}")
    if len(saved) > MOST:
        for kind in ("tsne", "surface"):
            remarks[kind].append(f"The first {MOST} of {len(saved)} are drawn.")
    figures["confusion"] = per_class(counts, classes) if counts else []
    if not saved:
        remarks["confusion"] = ['figures of saved models (save = ["final", "locals"] in the study)']
    return [
        Section(kind, tuple(drawn), remarks=tuple(dict.fromkeys(remarks[kind])))
        for kind, drawn in figures.items()
    ]


def loaded(part: StudyReport, run: Run, data_dir: Path) -> Loaded:
    """Return the models of a job, with the clients that they were trained and tested on.

    Args:
        part: The study.
        run: Its job.
        data_dir: Where its data are.

    Raises:
        UnseenError: The method predicts with more than the saved model.
    """
    from safetensors.torch import load_file

    identity, job = part.identity, run.raw.job
    digest = str(identity["data"]).rpartition(" ")[2]
    model_of = identity["model"]
    setting = Setting(part.study, run.raw.folder, data_dir, digest, model_of, part.metrics)
    data = dataset(part.study.dataset, data_dir, digest)
    task = next(task for task in part.plan if task.name == run.task)
    prepared = prepare(data, task, part.study, job.seed)
    runtime = Runtime.of(setting, data, prepared, run.method, job.seed, device="cpu")
    if runtime.method.predict is not plain:
        raise UnseenError("it predicts with more than its model")
    model = runtime.model
    model.module.load_state_dict(load_file(run.raw.folder / FINAL))
    local: dict[str, dict[str, Tensor]] = defaultdict(dict)
    if (run.raw.folder / LOCALS).exists():
        for name, tensor in load_file(run.raw.folder / LOCALS).items():
            client, _, inner = name.partition("/")
            local[client][inner] = tensor
    packed = {client: model.layout.pack(tensors) for client, tensors in local.items()}
    return Loaded(run, prepared, model, packed, data.classes or ())


def confusion(job: Loaded) -> Tensor:
    """Return how often the global model predicts each class at the target: true × predicted."""
    count = len(job.classes)
    splits = [target.split("validation") for target in job.prepared.targets.values()]
    pairs = [split.y.long() * count + predicted(forward(job.model, split)) for split in splits]
    return torch.bincount(torch.cat(pairs), minlength=count * count).reshape(count, count)


def per_class(counts: Mapping[str, Sequence[Tensor]], classes: Sequence[str]) -> list[Figure]:
    """Return each method's confusion matrix, and the share of every class that is recognised.

    Args:
        counts: Method -> the counts of its jobs, true × predicted.
        classes: The classes' names.
    """
    matrices, recalls = [], []
    for method, tables in counts.items():
        rows = torch.stack(list(tables)).sum(0).tolist()
        matrices.append(Matrix(method, tuple(classes), tuple(map(tuple, rows))))
        named = enumerate(zip(classes, rows, strict=True))
        shares = ((name, 100 * row[i] / sum(row)) for i, (name, row) in named if sum(row))
        dots = tuple(Row(name, share, text=f"{share:.1f}") for name, share in shares)
        recalls.append(Dots(method, "recall in %", dots, limits=(-3.0, 103.0)))
    over = "the final global models of the first seed, all targets together"
    return [
        Figure("confusion", "Confusion matrices", over, tuple(matrices)),
        Figure("classes", "Share of each class that is recognised", over, tuple(recalls)),
    ]


def mapped(job: Loaded) -> list[Figure]:
    """Return the map of one global model's features."""
    rows, classes, domains = [], [], []
    for name, client in job.prepared.everyone.items():
        x, y = _some(client.split("validation"), MAPPED)
        with job.model.rounding():
            rows.append(features(job.model.module, x).float())
        classes += [str(job.classes[int(c)]) if job.classes else "all" for c in y]
        domains += [name] * len(y)
    panels = coloured(embedding(torch.cat(rows)), {"class": classes, "domain": domains})
    caption = "t-SNE, the same points coloured by class and by domain"
    return [job.figure("tsne", "features", caption, panels)]


def surfaced(job: Loaded, clients: Sequence[str] = ()) -> list[Figure]:
    """Return the loss at the target around three local models, if there are three.

    Args:
        job: The models.
        clients: Those that span the plane; the first three by default.
    """
    names = list(clients or sorted(job.locals)[:3])
    if missing := [name for name in names if name not in job.locals]:
        raise UnseenError(f"no local model of {', '.join(missing)} is saved")
    if len(names) < 3:
        return []
    target = next(iter(job.prepared.targets.values()))
    x, y = _some(target.split("validation"), UNDER)
    model = job.model
    model.module.eval()

    def at(vector: Tensor) -> float:
        with torch.no_grad():
            return loss(model.at(vector.to(model.vector), x), y)

    through = plane({name: job.locals[name] for name in names}, ("global", model.vector))
    away = f"the global model is {through.off['global']:.3g} from the plane"
    panel = surface(through, at, f"loss at {target.name}")
    return [job.figure("surface", "loss around the global model", away, (panel,))]


def _some(split: Split, most: int) -> tuple[Tensor, Tensor]:
    """Return rows at even distances, so that all classes have their share."""
    return split.batch(torch.arange(0, len(split), -(-len(split) // most)))
