"""Figures that need the saved models and the data: confusion, features and loss surfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.metrics import forward, loss, plain, predicted
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.report.embed import embedding, features, maps
from unseen.report.figures import Dots, Figure, Matrix, Row, Section
from unseen.report.study_report import Run, StudyReport
from unseen.report.surface import plane, surface
from unseen.study.prepare import Prepared, prepare
from unseen.study.runtime import Runtime
from unseen.study.setting import Setting, dataset
from unseen.study.watcher import FINAL, LOCALS

#: Key, title and text of each chapter.
CHAPTERS = (
    ("confusion", "Classes", "Predictions at the targets, which no client has trained on."),
    (
        "tsne", "Features",
        "t-SNE of what enters the last linear layer, up to 120 examples per domain; the target is "
        "held out.",
    ),
    (
        "surface", "Loss surfaces",
        "Loss at the target on the plane through three local models. The global model is shown "
        "at its projection; statistics of BatchNorm are those of the global model.",
    ),
)  # fmt: skip
#: Examples per domain in a map, and of the target under a surface; figures of each kind.
MAPPED, UNDER, MOST = 120, 512, 12


@dataclass(frozen=True)
class Loaded:
    """A finished job's saved models, with the clients that it was trained and tested on.

    Attributes:
        vector: The global model's parameters [P].
        locals: Each client's parameters [P].
        classes: Names of the classes; none for regression.
    """

    run: Run
    prepared: Prepared
    model: Model
    vector: Tensor
    buffers: Tensor
    locals: dict[str, Tensor]
    classes: Sequence[str]


def sections(part: StudyReport, data_dir: Path, clients: Sequence[str] = ()) -> list[Section]:
    """Return the chapters on saved models, from the first seed of each method and target.

    Args:
        part: The study.
        data_dir: Where its data are.
        clients: Three clients whose models span the loss surface; the first three by default.
    """
    firsts = [runs[0] for runs in part.of.values() if (runs[0].raw.folder / FINAL).exists()]
    counts: dict[str, list[Tensor]] = {}
    classes: Sequence[str] = ()
    figures: dict[str, list[Figure]] = {kind: [] for kind, *_ in CHAPTERS}
    notes: dict[str, list[str]] = {kind: [] for kind in figures}
    for i, run in enumerate(firsts):
        try:
            job = loaded(part, run, data_dir)
        except UnseenError as error:
            notes["confusion"].append(f"{run.method} at {run.task} is left out: {error}")
            continue
        if job.classes:
            classes = job.classes
            counts.setdefault(run.method, []).append(confusion(job))
        for kind in ("tsne", "surface") if i < MOST else ():
            try:
                figures[kind] += [mapped(job)] if kind == "tsne" else surfaced(job, clients)
            except UnseenError as error:
                notes[kind].append(f"{run.method} at {run.task} is left out: {error}")
    for kind in ("tsne", "surface") if len(firsts) > MOST else ():
        notes[kind].append(f"The first {MOST} of {len(firsts)} are drawn.")
    figures["confusion"] = per_class(counts, classes) if counts else []
    if not firsts:
        notes["confusion"] = ['figures of saved models (save = ["final", "locals"] in the study)']
    return [
        Section(
            kind, title, " ".join(dict.fromkeys((text, *notes[kind]))), tuple(figures[kind]),
            needs=" ".join(dict.fromkeys(notes[kind])),
        )
        for kind, title, text in CHAPTERS
    ]  # fmt: skip


def confusion(job: Loaded) -> Tensor:
    """Return how often the global model predicts each class at the target: true × predicted."""
    count = len(job.classes)
    total = torch.zeros(count * count, dtype=torch.int64)
    for target in job.prepared.targets.values():
        split = target.split("validation")
        pairs = split.y.long() * count + predicted(forward(job.model, split))
        total += torch.bincount(pairs, minlength=count * count)
    return total.reshape(count, count)


def per_class(counts: Mapping[str, Sequence[Tensor]], classes: Sequence[str]) -> list[Figure]:
    """Return each method's confusion matrix, and the share of every class that is recognised."""
    matrices, recalls = [], []
    for method, tables in counts.items():
        total = torch.stack(list(tables)).sum(0)
        rows = tuple(tuple(row) for row in total.tolist())
        matrices.append(Matrix(method, tuple(classes), rows))
        shares = (100 * total.diagonal() / total.sum(1).clamp(min=1)).tolist()
        seen = [
            Row(name, share, text=f"{share:.1f}")
            for name, share, n in zip(classes, shares, total.sum(1).tolist(), strict=True) if n
        ]  # fmt: skip
        recalls.append(Dots(method, "recall in %", tuple(seen), limits=(-3.0, 103.0)))
    over = "the final global models of the first seed, all targets together"
    return [
        Figure("confusion", "Confusion matrices", over, tuple(matrices)),
        Figure("classes", "Share of each class that is recognised", over, tuple(recalls)),
    ]


def loaded(part: StudyReport, run: Run, data_dir: Path) -> Loaded:
    """Return the models of a job, with the clients that they were trained and tested on.

    Raises:
        UnseenError: The method predicts with more than the saved model.
    """
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


def mapped(job: Loaded) -> Figure:
    """Return the map of one global model's features."""
    rows, classes, domains = [], [], []
    for name, client in job.prepared.everyone.items():
        x, y = _some(client.split("validation"), MAPPED)
        with job.model.rounding():
            rows.append(features(job.model.module, x).float())
        names = job.classes
        classes += [str(names[int(c)]) if names else "all" for c in y]
        domains += [name] * len(y)
    title = f"{job.run.method}, target {job.run.task}: features"
    panels = maps(embedding(torch.cat(rows)), classes, domains)
    caption = "t-SNE, the same points coloured by class and by domain"
    return Figure(_key("tsne", job.run), title, caption, panels)


def surfaced(job: Loaded, clients: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the loss at the target around three local models, if there are three."""
    names = list(clients or sorted(job.locals)[:3])
    if missing := [name for name in names if name not in job.locals]:
        raise UnseenError(f"no local model of {', '.join(missing)} is saved")
    if len(names) < 3:
        return
    target = next(iter(job.prepared.targets.values()))
    x, y = _some(target.split("validation"), UNDER)
    job.model.module.eval()

    def at(vector: Tensor) -> float:
        with torch.no_grad():
            outputs = job.model.at(vector.to(job.vector), x, job.buffers)
        return loss(outputs, y)

    through = plane({name: job.locals[name] for name in names}, ("global", job.vector))
    title = f"{job.run.method}, target {job.run.task}: loss around the global model"
    away = f"the global model is {through.off['global']:.3g} from the plane"
    panel = surface(through, at, f"loss at {target.name}")
    yield Figure(_key("surface", job.run), title, away, (panel,))


def _some(split: object, most: int) -> tuple[Tensor, Tensor]:
    """Return rows at even distances, so that all classes have their share."""
    from unseen.core.client import Split

    assert isinstance(split, Split)
    every = max(1, -(-len(split) // most))
    return split.batch(torch.arange(0, len(split), every))


def _key(kind: str, run: Run) -> str:
    return f"{kind}-{run.method}-{run.task}"
