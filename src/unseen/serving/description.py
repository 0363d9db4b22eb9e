"""What `model.json` and the model card say of a model: how it was made, and from what inputs."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from rich.filesize import decimal as readable
from safetensors import safe_open
from torch import Tensor

from unseen.core import record_lines
from unseen.core.client import Split, Stored
from unseen.core.label_scale import Scale
from unseen.core.metrics.class_metrics import looked_for
from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.data import info
from unseen.data.entry import below
from unseen.data.image_files.images import File, Tree, pixels
from unseen.data.image_files.layout import survey
from unseen.data.standin import NO_RESULT
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.privacy.ledger import card as ledger_card
from unseen.serving.directory import SEGMENTATION
from unseen.serving.evaluation.measures import cells
from unseen.serving.event_times import described as described_times
from unseen.serving.reading.bounds import BOUND, SIDES, measures, quantities_of, ranges_of
from unseen.serving.reading.inputs import ImageInputs, Inputs, TableInputs, inputs_of
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.execution.plan import Plan
from unseen.studies.execution.prepare import Prepared, split_rows
from unseen.studies.execution.runtime import composed
from unseen.studies.execution.setting import read
from unseen.studies.execution.watcher import INBOX, SITES, selected_file
from unseen.studies.results import records
from unseen.studies.results.formats import counted
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.records import Job
from unseen.studies.settings.default_network import in_words
from unseen.studies.settings.study import StudySpec

#: The most images and file sizes of a site that are measured; images in memory at once.
MOST, AT_ONCE = 2000, 64
#: What models of a kind of labels do.
TASKS = {
    "classes": "classification",
    "numbers": "regression",
    "masks": SEGMENTATION,
    "times": "survival",
}
#: What a site's examples were to the training.
ROLES = {"source": "validation split", "validation": "selection only", "target": "held out"}


def selection_metric(planned: Plan) -> str:
    """Return the metric by which the round is chosen."""
    return main_metric(planned.setting.study.metric, planned.setting.metrics)


def described(planned: Plan, prepared: Prepared, job: Job, ranges: bool | None = None) -> Record:
    """Return all of `model.json` but the results."""
    setting, data, (task,) = planned.setting, planned.data, planned.tasks
    study, folder, metric = setting.study, job.folder(setting.out), selection_metric(planned)
    mark, method = records.mark(folder), composed(job.method, study, data)
    with safe_open(selected_file(folder, study.privacy.server == "blind"), "pt") as file:
        names = list(file.keys())
        best = int((file.metadata() or {})["round"])
    inputs = inputs_of(study.dataset, data, prepared.whole, prepared.statistics)
    usual = usual_inputs(planned, prepared, inputs, job.seed, ranges)
    label: Record = {}
    if isinstance(scale := prepared.scale, Scale):
        label = {"label": {"name": data.standardise, **asdict(scale)}}
    return {
        "name": study.title or study.name,
        "task": TASKS[data.kind],
        "classes": list(data.classes) if data.classes is not None else None,
        "outputs": prepared.outputs,
        "input": inputs.to_json(),
        "usual inputs": usual,
        **label,
        **described_times(data, prepared),
        "model": setting.model,
        **({"fits": method.fits} if method.fits else {}),
        "method": job.method,
        "own_rounds": method.rounds is not None,
        "precision": study.precision,
        "prediction reads": [n.removeprefix(INBOX) for n in names if n.startswith(INBOX)],
        "sites with statistics": [n.removeprefix(SITES) for n in names if n.startswith(SITES)],
        "round": best + 1,
        "selection": study.selection,
        "metric": metric,
        "metrics": list(setting.metrics),
        "sites": {part: list(getattr(task, part)) for part in ("sources", "validation", "targets")},
        "data": {
            "dataset": study.dataset,
            "name": data.name,
            "digest": setting.data,
            "source": data.source,
            "licence": data.licence,
        }
        | ({"stand-in": True} if planned.stand_in else {}),
        "left the sites": ledger(planned, prepared, job, usual),
        "warnings": list(planned.warnings),
        "seed": job.seed,
        "weights": str(setting.weights) if setting.weights is not None else None,
        "versions": mark["versions"],
        "commit": mark.get("commit", ""),
        "study": study.model_dump(mode="json", exclude={"published"}),
    }


def ledger(planned: Plan, prepared: Prepared, job: Job, usual: Record | None) -> Record:
    """Return what left each training site, in words and in bytes, as the records have it."""
    study, data = planned.setting.study, planned.data
    folder, method = job.folder(planned.setting.out), composed(job.method, study, data)
    totals = totals_of(data, study) if study.privacy.columns is None else None
    statistics = totals.size * 8 if totals is not None else 0
    size = statistics
    if usual:
        size += (
            16 * len(usual["ranges"]) if "ranges" in usual else 8 + 32 * len(usual["quantities"])
        )
    traffic = {name: {"rounds": 0, "down": statistics, "up": size} for name in prepared.sources}
    scalars: set[str] = set()
    for line in record_lines.read_lines(folder / "rounds.jsonl"):
        scalars |= set(line["scalars"])
        for name in traffic.keys() & set(line["clients"]):
            site, share = traffic[name], len(line["clients"])
            site["rounds"] += line["exchange"] == "train"
            site["down"] += line["bytes"]["down"] // share
            site["up"] += line["bytes"]["up"] // share
    pooled = method.gather is not None
    what = render(
        "unseen.serving",
        "left.jinja",
        pooled=pooled,
        scalars=sorted(scalars),
        shares=method.shares,
        totals=totals,
        metrics=planned.setting.metrics,
        usual=usual,
        fits=method.fits,
    )
    return {
        "what": what.splitlines(),
        "pooled": pooled,
        "by site": {} if pooled else traffic,
        "ledger": ledger_card(folder),
    }


def usual_inputs(
    planned: Plan, prepared: Prepared, inputs: Inputs, seed: int, ranges: bool | None = None
) -> Record | None:
    """Return what `predict` flags inputs by: ranges of columns, rounded, or statistics of images.

    Args:
        planned: The study.
        prepared: Its clients, whose training examples count.
        inputs: What the model takes.
        seed: The seed of the study's job.
        ranges: Whether to keep them; None for where what leaves a site is in the clear and without
            noise.

    Returns:
        What `model.json` keeps; None for nothing, or where public ranges of columns replace it.
    """
    study, data = planned.setting.study, planned.data
    if reason := not_in_the_clear(study):
        if ranges:
            raise UnseenError(
                f"--ranges makes what leaves each site in the clear; this study has {reason}.",
                remedy="Leave it out, or state ranges that are public in privacy.columns.",
            )
        return None
    if ranges is False:
        return None
    if isinstance(inputs, TableInputs) and study.privacy.columns is None:
        raw = (data[name].x[split_rows(data[name], study, seed)[0]] for name in prepared.sources)
        return {"ranges": {name: list(ends) for name, ends in ranges_of(inputs, raw).items()}}
    if isinstance(inputs, ImageInputs):
        parts = []
        for split in training_images(planned, prepared, seed):
            rows = torch.arange(0, len(split), max(1, -(-len(split) // MOST)))
            parts += [measures(split.batch(some)[0]) for some in rows.split(AT_ONCE)]
        measured = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        measured |= file_sizes(planned, tuple(prepared.sources))
        quantities = map(asdict, quantities_of(measured))
        return {"quantities": [{k: x for k, x in q.items() if k != "public"} for q in quantities]}
    return None


def training_images(planned: Plan, prepared: Prepared, seed: int) -> Iterator[Split]:
    """Yield each source's training images, also where inputs are features of them."""
    setting = planned.setting
    if not prepared.frozen:
        yield from (client.split("train") for client in prepared.sources.values())
        return
    data = read(setting.study.dataset, setting.data_dir)
    for domain in (data[name] for name in prepared.sources):
        rows, _ = split_rows(domain, setting.study, seed)
        yield Split(Stored.of(domain.x), domain.y).take(rows)


def not_in_the_clear(study: StudySpec) -> str:
    """Return the setting that keeps a site's statistics from leaving it in the clear, or ""."""
    settings = {n: getattr(study.privacy, n) for n in ("channel", "server", "examples", "clients")}
    reasons = (f"privacy.{n} = {x!r}" for n, x in settings.items() if x not in ("", "clear"))
    return next(reasons, "")


def file_sizes(planned: Plan, sources: Sequence[str]) -> dict[str, Tensor]:
    """Return logarithms of the sides of the sites' image files, if these are in folders."""
    (call,) = parse(planned.setting.study.dataset)
    layout, where = info(call.name).layout, planned.setting.data_dir
    parameter = inspect.signature(info(call.name).loader).parameters.get("path")
    path: Any = call.arguments.get("path", parameter.default if parameter else None)
    trees: list[tuple[Tree, list[File]]] = []
    if layout is not None:
        surveyed = survey(layout, where, path)
        trees = [(surveyed.trees[n], [i.file for i in surveyed.images[n]]) for n in sources]
    elif call.name == "folder":
        tree = Tree(below(where, path, "folder"))
        files = [file for file in tree.files(depth=3) if len(file.parts) >= 3]
        trees = [(tree, [file for file in files if file.parts[-3] == n]) for n in sources]
    sides = []
    for tree, files in trees:
        if tree.root.is_dir():  # to look at one file of an archive is to read through all of it
            for file in files[:: max(1, -(-len(files) // MOST))]:
                with suppress(OSError, ValueError):
                    sides.append(pixels(tree.root / file.path))
    pairs = torch.tensor([pair for pair in sides if pair], dtype=torch.float64)
    return {name: pairs[:, k].log() for k, name in enumerate(SIDES)} if len(pairs) else {}


def card(spec: Record, references: Sequence[str]) -> str:
    """Return the card, as Markdown."""
    return render(
        "unseen.serving",
        "card.md.jinja",
        spec=spec,
        references=references,
        steps=spec["input"]["steps"],
        roles=ROLES,
        about=looked_for(spec["metrics"], spec["classes"]),
        bound=BOUND,
        cells=cells,
        counted=counted,
        line=_line,
        no_result=NO_RESULT,
        readable=readable,
        network=in_words,
    )


def _line(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
