"""What `model.json` says of a model: everything but the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safetensors import safe_open

from unseen.core.exchange import Method
from unseen.datasets.dataset import DataSet
from unseen.datasets.totals import Totals
from unseen.privacy.ledger import card as ledger_card
from unseen.results import records
from unseen.results.records import Job
from unseen.results.selection import main_metric
from unseen.serving.gather import usual_inputs, words
from unseen.serving.inputs import inputs_of
from unseen.study.best_model import INBOX, SELECTED, SITES
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared
from unseen.study.runtime import composed


def selection_metric(planned: Plan) -> str:
    """Return the metric by which the round is chosen."""
    return main_metric(planned.setting.study.metric, planned.setting.metrics)


def described(
    planned: Plan, prepared: Prepared, job: Job, ranges: bool | None = None
) -> dict[str, Any]:
    """Return all of `model.json` but the results."""
    setting, data, (task,) = planned.setting, planned.data, planned.tasks
    study, folder, metric = setting.study, job.folder(setting.out), selection_metric(planned)
    mark = records.mark(folder)
    with safe_open(folder / SELECTED, "pt") as file:
        names = list(file.keys())
        chosen = int((file.metadata() or {})["round"])
    inputs = inputs_of(study.dataset, data, prepared.shape, prepared.statistics)
    usual = usual_inputs(planned, prepared, inputs, job.seed, ranges)
    return {
        "name": study.title or study.name,
        "task": "regression" if data.classes is None else "classification",
        "classes": list(data.classes) if data.classes is not None else None,
        "outputs": prepared.outputs,
        "input": inputs.to_json(),
        "usual inputs": usual,
        **label_of(data, prepared),
        "model": setting.model,
        "method": job.method,
        "precision": study.precision,
        "prediction reads": [n.removeprefix(INBOX) for n in names if n.startswith(INBOX)],
        "sites with statistics": [n.removeprefix(SITES) for n in names if n.startswith(SITES)],
        "round": chosen + 1,
        "selection": study.selection,
        "metric": metric,
        "metrics": list(setting.metrics),
        "sites": {
            "sources": list(task.sources),
            "validation": list(task.validation),
            "targets": list(task.targets),
        },
        "data": {
            "dataset": study.dataset, "name": data.name, "digest": setting.data,
            "source": data.source, "licence": data.licence,
        } | ({"stand-in": True} if planned.stand_in else {}),
        "left the sites": ledger(planned, prepared, job, usual),
        "warnings": list(planned.warnings),
        "seed": job.seed,
        "weights": str(setting.weights) if setting.weights is not None else None,
        "versions": mark["versions"],
        "commit": mark.get("commit", ""),
        "study": study.model_dump(mode="json", exclude={"published"}),
    }  # fmt: skip


def label_of(data: DataSet, prepared: Prepared) -> dict[str, Any]:
    """Return the labels' scaling for `model.json`; {} if they were not standardised."""
    if prepared.scale is None:
        return {}
    scale = prepared.scale
    label = {"name": data.standardise, "mean": scale.mean, "deviation": scale.deviation}
    return {"label": label}


def ledger(
    planned: Plan, prepared: Prepared, job: Job, usual: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what left each training site, in words and in bytes, as the records have it."""
    study, data = planned.setting.study, planned.data
    method = composed(job.method, study, data)
    pooled = method.gather is not None
    totals = Totals.of(data) if study.privacy.columns is None else None
    statistics = totals.size * 8 if totals is not None else 0
    flagged, size = words(usual)
    moved = {
        name: {"rounds": 0, "down": statistics, "up": statistics + size}
        for name in prepared.sources
    }
    scalars: set[str] = set()
    for line in records.read_lines(job.folder(planned.setting.out) / "rounds.jsonl"):
        scalars |= set(line["scalars"])
        for name in line["clients"]:
            if name in moved:
                site, share = moved[name], len(line["clients"])
                site["rounds"] += line["exchange"] == "train"
                site["down"] += line["bytes"]["down"] // share
                site["up"] += line["bytes"]["up"] // share
    if pooled:
        what = ["its training data: this method pools them in one place"]
    else:
        what = _words(method, sorted(scalars))
    if totals is not None:
        table, label = totals.schema is not None, totals.label is not None
        parts = ["each numeric column"] * table + [f"the label {totals.label}"] * label
        codes = ", and counts of categories," if table else ""
        what.append(
            f"before training: count, sum and sum of squares of {' and of '.join(parts)}{codes} "
            "of its training rows"
        )
    what.append(f"at each evaluation: {', '.join(planned.setting.metrics)} of its validation split")
    what += flagged
    by_site, lines = {} if pooled else moved, ledger_card(job.folder(planned.setting.out))
    return {"what": what, "pooled": pooled, "by site": by_site, "ledger": lines}


def _words(method: Method, scalars: Sequence[str]) -> list[str]:
    update = "every round: what local training changed in the model"
    counts = f"with it: {', '.join(scalars)}"
    return [update, counts, *method.shares]
