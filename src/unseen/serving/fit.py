"""One federation from a study's file to a directory with a model that is ready for use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.atomic import write_atomically
from unseen.core.client import Client
from unseen.core.exchange import Method
from unseen.core.metrics import forward
from unseen.datasets.dataset import DataSet
from unseen.datasets.totals import Totals
from unseen.errors import UnseenError
from unseen.privacy.ledger import card as ledger_card
from unseen.results import records
from unseen.results.records import Job
from unseen.results.selection import beaten, less_is_better, main_metric, select, value
from unseen.results.study_results import counted
from unseen.serving import card, directory
from unseen.serving.directory import Trained
from unseen.serving.gather import usual_inputs, words
from unseen.serving.inputs import inputs_of
from unseen.serving.intervals import Measured, measured
from unseen.spec.holdout import PLANS
from unseen.spec.named import settings_of
from unseen.spec.study import StudySpec
from unseen.study.best_model import INBOX, SELECTED, SITES
from unseen.study.network import first_network
from unseen.study.plan import Plan, prepare_study
from unseen.study.prepare import Prepared, prepare
from unseen.study.runner import carry_out
from unseen.study.runtime import composed

#: Where the training's records lie, and its report, in the model's directory.
RECORDS, REPORT = "training", "report"


def study_of(file: str, overrides: Mapping[str, Any], method: str | None = None) -> StudySpec:
    """The study of one model: one method, one seed, and no domain held out, or one plan's task.

    A file that says nothing of `holdout` holds nothing out; `holdout = "name"` holds out that
    domain. Of several seeds the first is taken.
    """
    settings, _ = settings_of(file)
    changed = dict(overrides)
    if not {"holdout", "targets"} & {key.partition(".")[0] for key in (*settings, *changed)}:
        changed["holdout"] = "none"
    held = changed.get("holdout", settings.get("holdout"))
    if isinstance(held, str) and held not in PLANS:
        changed |= {"holdout": "leave-one-domain-out", "targets": [held]}
    if method is not None:
        changed["methods"] = [method]
    study = StudySpec.read(file, changed)
    if len(study.methods) > 1:
        raise UnseenError(
            f"a model is trained by one method; the file has {', '.join(study.methods)}. Choose "
            "with --method."
        )
    if {"locals"} & set(study.save):
        raise UnseenError("save = ['locals'] is for studies; leave it out.")
    return study.model_copy(
        update={"seeds": study.seed_list[:1], "save": ("selected",), "published": {}}
    )


def train(
    study: StudySpec,
    out: Path,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = False,
    ranges: bool | None = None,
) -> Trained:
    """Train the study's one model, choose its round, and write the directory.

    What was trained before with the same settings is not trained again. The model that was written
    is read back, and must give the figures that were recorded. ranges: whether the directory keeps
    what training's inputs were like; see `gather.usual_inputs`.
    """
    planned = prepare_study(study, out / RECORDS, data_dir)
    job = one_job(planned)
    (task,) = planned.tasks
    data, setting = planned.data, planned.setting
    prepared = prepare(data, task, study, job.seed)
    check_served(planned, prepared, job)
    folder = job.folder(setting.out)
    if records.is_done(folder) and not _current(folder, planned):
        (folder / "done.json").unlink()
        planned = prepare_study(study, out / RECORDS, data_dir)
    say(f"data: {data.name}; training sites: {', '.join(task.sources)}; held out: "
        f"{', '.join(task.targets) or 'none'}")  # fmt: skip
    say(f"model: {setting.model}; method: {job.method}; {counted(study.rounds, 'round')}")
    with _rounds(folder, study.rounds, progress and bool(planned.missing)):
        carry_out(planned)
    mark = records.mark(folder)
    if "diverged" in mark:
        raise UnseenError(f"there is no model: {mark['diverged']}")
    spec = described(planned, prepared, job, ranges)
    tensors = (folder / SELECTED).read_bytes()
    directory.write(out, spec, tensors)
    trained = directory.read(out)
    spec["results"] = results(trained, prepared, planned.setting.metrics)
    _agrees(spec, folder)
    spec |= worse(spec, folder)
    directory.write(out, spec, tensors)
    trained = directory.read(out)
    _beside(trained, composed(job.method, study, data), planned)
    say(f"round {spec['round']} of {study.rounds}, by {spec['selection']} on {spec['metric']}")
    return trained


def one_job(planned: Plan) -> Job:
    """The plan's only job; refuses what would be several models, or none."""
    if len(planned.tasks) > 1:
        names = ", ".join(task.name for task in planned.tasks)
        raise UnseenError(
            f"a model is trained on one plan; this one has {len(planned.tasks)} tasks: {names}. "
            "Hold out one domain, holdout = 'NAME', or none, holdout = 'none'."
        )
    if not planned.jobs:
        method, reason = next(iter(planned.not_applicable.items()))
        raise UnseenError(f"{method} cannot be used here: it {reason}.")
    return planned.jobs[0]


def check_served(planned: Plan, prepared: Prepared, job: Job) -> None:
    """Refuse what cannot predict one example at a time."""
    if planned.setting.study.training.buffers != "batch":
        return
    network = first_network(planned.setting, prepared, job.seed)
    if any(isinstance(layer, _BatchNorm) for layer in network.modules()):
        raise UnseenError(
            "training.buffers = 'batch' normalises every example by the others of its batch, so a "
            "prediction would depend on what else is asked. Take 'average' or 'local' for a model "
            "that is to be used."
        )


def _current(folder: Path, planned: Plan) -> bool:
    """Whether the model that was kept is the one that these settings select."""
    study, metric = planned.setting.study, _metric(planned)
    try:
        with safe_open(folder / SELECTED, "pt") as file:
            notes = file.metadata() or {}
    except Exception:  # missing or damaged: it is made again
        return False
    if "diverged" in records.mark(folder):
        return True
    return (notes.get("selection"), notes.get("metric"), notes.get("round")) == (
        study.selection, metric, str(_round(folder, study.selection, metric)),
    )  # fmt: skip


def _metric(planned: Plan) -> str:
    return main_metric(planned.setting.study.metric, planned.setting.metrics)


def _round(folder: Path, selection: str, metric: str) -> int:
    source, target = (records.read_lines(folder / name) for name in records.FILES[:2])
    return select(selection, source, target, metric, less_is_better(metric))


def described(
    planned: Plan, prepared: Prepared, job: Job, ranges: bool | None = None
) -> dict[str, Any]:
    """All of `model.json` but the results."""
    setting, data, (task,) = planned.setting, planned.data, planned.tasks
    study, folder, metric = setting.study, job.folder(setting.out), _metric(planned)
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
    """What numbers to predict were standardised by, for `model.json`; nothing if they were not."""
    if prepared.scale is None:
        return {}
    scale = prepared.scale
    label = {"name": data.standardise, "mean": scale.mean, "deviation": scale.deviation}
    return {"label": label}


def ledger(
    planned: Plan, prepared: Prepared, job: Job, usual: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What left each training site, in words and in bytes, as the records have it."""
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
                own, share = moved[name], len(line["clients"])
                own["rounds"] += line["exchange"] == "train"
                own["down"] += line["bytes"]["down"] // share
                own["up"] += line["bytes"]["up"] // share
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
    told = ledger_card(job.folder(planned.setting.out))
    return {"what": what, "pooled": pooled, "by site": {} if pooled else moved, "ledger": told}


def _words(method: Method, scalars: Sequence[str]) -> list[str]:
    update = "every round: what local training changed in the model"
    counts = f"with it: {', '.join(scalars)}"
    return [update, counts, *method.shares]


def results(trained: Trained, prepared: Prepared, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Metrics of every site with intervals: sources by their validation splits, others whole."""
    groups: Sequence[tuple[str, Mapping[str, Client]]] = (
        ("source", prepared.sources),
        ("validation", prepared.validators),
        ("target", prepared.targets),
    )
    found = []
    for role, clients in groups:
        for name, client in clients.items():
            trained.at(name if name in trained.sites else None)
            split = client.split("validation")
            outputs = forward(trained.model, split, trained.method.predict, trained.inbox)
            y = split.y
            if prepared.scale is not None:
                outputs, y = prepared.scale.restored(outputs), prepared.scale.restored(y)
            made = measured(outputs, y, metrics)
            values = {m: [v.value, v.low, v.high] for m, v in made.items()}
            trains = len(client.train) if client.train is not None else 0
            found.append(
                {
                    "site": name, "role": role, "trained on": trains, "examples": len(split),
                    "metrics": values,
                }
            )  # fmt: skip
    trained.at(None)
    return found


def worse(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The sites where an answer without any input is better, for `model.json`; none, no entry."""
    lines = [r for n in records.FILES[:2] for r in records.read_lines(folder / n)]
    chosen = [r for r in lines if r["round"] == spec["round"] - 1]
    found = beaten(chosen, records.read_lines(folder / records.CONSTANT)).get(spec["metric"])
    return {"worse than a constant": list(found)} if found else {}


def _agrees(spec: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model whose figures are not those that its training recorded for its round."""
    lines = [r for n in records.FILES[:2] for r in records.read_lines(folder / n)]
    there = {r["domain"]: r for r in lines if r["round"] == spec["round"] - 1}
    for found in spec["results"]:
        for metric, (now, _, _) in found["metrics"].items():
            then = value(there[found["site"]], metric)
            if not _same(now, then):
                raise UnseenError(
                    f"the model that was written gives {metric} {now} at {found['site']}, and "
                    f"{then} was recorded in training: its directory does not hold all that it "
                    "predicts with. Please report this with the study's file."
                )


def _same(a: float | None, b: float | None) -> bool:
    """Whether two values of a metric are equal but for the rounding of another batch."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 1e-4 * max(1.0, abs(b))


def _beside(trained: Trained, method: Method, planned: Plan) -> None:
    """The card, the citations and the report."""
    from unseen.report.write import report

    citations = [*(r.bibtex for r in method.references), planned.data.citation]
    entries = [entry for entry in dict.fromkeys(citations) if entry]
    out = trained.folder
    write_atomically(out / "citations.bib", ("\n\n".join(entries) + "\n").encode())
    text = card.text(trained.spec, [r.text for r in method.references])
    write_atomically(out / "README.md", text.encode())
    report([out / RECORDS], out / REPORT, files=False)


@contextmanager
def _rounds(folder: Path, total: int, shown: bool) -> Iterator[None]:
    """A bar of the rounds that are recorded, looked up twice a second."""
    if not shown:
        yield
        return
    from rich.progress import Progress

    over = threading.Event()

    def follow() -> None:
        with Progress(transient=True) as bar:
            task = bar.add_task("rounds", total=total)
            while not over.wait(0.5):
                bar.update(task, completed=_played(folder / "rounds.jsonl"))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _played(path: Path) -> int:
    lines = path.read_bytes().rsplit(b"\n", 2)[-2:-1] if path.exists() else []
    try:
        return int(json.loads(lines[0])["round"]) + 1 if lines else 0
    except (ValueError, KeyError):
        return 0


def shown(results: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[list[str]]:
    """A header and a row per site, for people."""
    head = ["site", "role", "examples", *metrics]
    body = [
        [r["site"], card.ROLES[r["role"]], str(r["examples"])]
        + [Measured(*r["metrics"][m]).text("accuracy" in m) for m in metrics]
        for r in results
    ]
    return [head, *body]
