"""Figures that need the saved models and the data: features and loss surfaces."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unseen.core.client import Split
from unseen.core.metrics.evaluation import loss, plain
from unseen.core.vector import Model
from unseen.errors import UnseenError, optional
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Setting, dataset, initial_weights
from unseen.studies.execution.watcher import FINAL, LOCALS
from unseen.studies.report.figures import Figure, Panel, Points, Section, Surface
from unseen.studies.report.study_report import Run, StudyReport

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
    figures: dict[str, list[Figure]] = {"tsne": [], "surface": []}
    remarks: dict[str, list[str]] = {kind: [] for kind in figures}
    for run in saved[:MOST]:
        left_out = f"{run.method} at {run.task} is left out:"
        try:
            job = loaded(part, run, data_dir)
        except UnseenError as error:
            remarks["tsne"].append(f"{left_out} {error}")
            continue
        for kind in () if job.prepared.masks else figures:
            try:
                figures[kind] += mapped(job) if kind == "tsne" else surfaced(job, clients)
            except UnseenError as error:
                remarks[kind].append(f"{left_out} {error}")
    if len(saved) > MOST:
        for kind in ("tsne", "surface"):
            remarks[kind].append(f"The first {MOST} of {len(saved)} are drawn.")
    if not saved:
        remarks["tsne"] = ['figures of saved models (save = ["final", "locals"] in the study)']
    return [
        Section(kind, tuple(group), remarks=tuple(dict.fromkeys(remarks.get(kind, ()))))
        for kind, group in figures.items()
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
    weights = initial_weights(part.study, model_of, data_dir) if part.study.frozen else None
    setting = Setting(
        part.study, run.raw.folder, data_dir, digest, model_of, part.metrics, weights=weights
    )
    data = dataset(setting)
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


#: Seed and size of the neighbourhoods of t-SNE.
SEED, PERPLEXITY = 0, 30
#: Values per axis of a surface, and its margin around the models, as a share of their extent.
CELLS, MARGIN = 25, 0.35


def features(module: nn.Module, x: Tensor) -> Tensor:
    """Return what enters the last linear layer [N, D], in evaluation mode.

    Args:
        module: The net.
        x: Inputs [N, ...].

    Raises:
        UnseenError: The net has no linear layer.
    """
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise UnseenError("features are what enters the last linear layer; the model has none.")
    rows: list[Tensor] = []
    mode = module.training
    module.eval()
    hook = linear[-1].register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0]))
    try:
        with torch.no_grad(), hook:
            module(x)
    finally:
        module.train(mode)
    return rows[-1].flatten(1)


def embedding(rows: Tensor) -> Tensor:
    """Return t-SNE of rows [N, D] to [N, 2] by openTSNE, from a fixed seed.

    Raises:
        UnseenError: openTSNE is not installed, or there are fewer than ten rows.
    """
    openTSNE = optional("openTSNE", "t-SNE needs", "report", "read the page without this map")
    if len(rows) < 10:
        raise UnseenError(f"t-SNE needs ten examples or more; found {len(rows)}.")
    perplexity = min(PERPLEXITY, (len(rows) - 1) // 3)
    tsne = openTSNE.TSNE(perplexity=perplexity, random_state=SEED, n_jobs=1)
    return torch.as_tensor(tsne.fit(rows.double().numpy()), dtype=torch.float64)


def coloured(places: Tensor, labels: Mapping[str, Sequence[str]]) -> tuple[Points, ...]:
    """Return the same map once for each labelling.

    Args:
        places: Coordinates [N, 2].
        labels: What the points are coloured by -> the label of each.
    """
    x, y = (tuple(round(v, 3) for v in column.tolist()) for column in places.T)
    return tuple(
        Points(f"by {by}", x, y, tuple(of_points), tuple(sorted(set(of_points))))
        for by, of_points in labels.items()
    )


@dataclass(frozen=True)
class Plane:
    """All θ = origin + a·u + b·v, with u and v orthogonal and of length 1 [P].

    Attributes:
        points: Name -> (a, b); models outside the plane are shown at their projection.
        off: Name -> the distance from the plane.
    """

    origin: Tensor
    u: Tensor
    v: Tensor
    points: Mapping[str, tuple[float, float]]
    off: Mapping[str, float]

    def at(self, a: float, b: float) -> Tensor:
        return self.origin + a * self.u + b * self.v


def plane(models: Mapping[str, Tensor], anchor: tuple[str, Tensor]) -> Plane:
    """Return the plane through three models, with the anchor's projection as one more point.

    u = (θ2 − θ1) / ‖·‖; v = the part of (θ3 − θ1) orthogonal to u, of length 1.

    Args:
        models: Name -> parameters [P] of the three models.
        anchor: The name and the parameters [P] of the other model.

    Raises:
        UnseenError: There are not three models, or they lie on one line.

    Source:
        Garipov et al. 2018, "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs",
        appendix, which GA follows (Figure 4).
    """
    if len(models) != 3:
        raise UnseenError(f"a plane goes through three models; found {len(models)}.")
    first, second, third = (model.double() for model in models.values())
    u, v = second - first, third - first
    u = u / u.norm() if u.norm() > 0 else u
    v = v - (v @ u) * u
    if u.norm() == 0 or v.norm() <= 1e-9 * (third - first).norm():
        raise UnseenError(
            "the three models lie on one line, so they span no plane;", remedy="name others."
        )
    v = v / v.norm()
    points, off = {}, {}
    for name, model in (*models.items(), anchor):
        step = model.double() - first
        a, b = float(step @ u), float(step @ v)
        points[name] = (a, b)
        off[name] = float((step - a * u - b * v).norm())
    return Plane(first, u, v, points, off)


def surface(
    through: Plane, loss: Callable[[Tensor], float], title: str, cells: int = CELLS
) -> Surface:
    """Return the loss on a grid that holds all points with a margin.

    Args:
        through: The plane.
        loss: Parameters [P] -> the loss.
        title: The panel's.
        cells: Values per axis.
    """
    axes = []
    for values in zip(*through.points.values(), strict=True):
        room = MARGIN * (max(values) - min(values))
        ends = (min(values) - room, max(values) + room)
        axes.append(tuple(torch.linspace(*ends, cells, dtype=torch.float64).tolist()))
    x, y = axes
    grid = tuple(tuple(loss(through.at(a, b)) for a in x) for b in y)
    names = tuple((name, a, b) for name, (a, b) in through.points.items())
    return Surface(title, x, y, grid, names)
