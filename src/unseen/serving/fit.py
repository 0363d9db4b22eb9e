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
from unseen.errors import UnseenError
from unseen.results import records
from unseen.results.records import Job
from unseen.results.selection import beaten, less_is_better, select, value
from unseen.results.study_results import counted
from unseen.serving import card, directory
from unseen.serving.description import described, selection_metric
from unseen.serving.directory import Trained
from unseen.serving.intervals import Measured, measured
from unseen.spec.holdout import PLANS
from unseen.spec.named import settings_of
from unseen.spec.study import StudySpec
from unseen.study.best_model import SELECTED
from unseen.study.network import first_network
from unseen.study.plan import Plan, prepare_study
from unseen.study.prepare import Prepared, prepare
from unseen.study.runner import carry_out
from unseen.study.runtime import composed

#: Where the training's records lie, and its report, in the model's directory.
RECORDS, REPORT = "training", "report"


def study_of(file: str, overrides: Mapping[str, Any], method: str | None = None) -> StudySpec:
    """Return the study of one model: one method, one seed, and no domain held out, or one plan's
    task.

    A file that says nothing of `holdout` holds nothing out; `holdout = "name"` holds out that
    domain. Of several seeds the first is taken.

    Args:
        file: A study's file or name.
        overrides: Settings that replace the file's.
        method: Instead of the file's.
    """
    settings, _ = settings_of(file)
    changed = dict(overrides)
    if not {"holdout", "targets"} & {key.partition(".")[0] for key in (*settings, *changed)}:
        changed["holdout"] = "none"
    holdout = changed.get("holdout", settings.get("holdout"))
    if isinstance(holdout, str) and holdout not in PLANS:
        changed |= {"holdout": "leave-one-domain-out", "targets": [holdout]}
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
    is read back, and must give the figures that were recorded.

    Args:
        study: As `study_of` returns it.
        out: The directory.
        data_dir: The data folder.
        say: Receives lines of progress.
        progress: Show a bar of the rounds.
        ranges: Whether the directory keeps what training's inputs were like; see
            `gather.usual_inputs`.
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
    _write_documents(trained, composed(job.method, study, data), planned)
    say(f"round {spec['round']} of {study.rounds}, by {spec['selection']} on {spec['metric']}")
    return trained


def one_job(planned: Plan) -> Job:
    """Return the plan's only job; refuse what would be several models, or none."""
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
    study, metric = planned.setting.study, selection_metric(planned)
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


def _round(folder: Path, selection: str, metric: str) -> int:
    source, target = (records.read_lines(folder / name) for name in records.FILES[:2])
    return select(selection, source, target, metric, less_is_better(metric))


def results(trained: Trained, prepared: Prepared, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return every site's metrics with intervals: sources by their validation splits."""
    groups: Sequence[tuple[str, Mapping[str, Client]]] = (
        ("source", prepared.sources),
        ("validation", prepared.validators),
        ("target", prepared.targets),
    )
    sites = []
    for role, clients in groups:
        for name, client in clients.items():
            trained.at(name if name in trained.sites else None)
            split = client.split("validation")
            outputs = forward(trained.model, split, trained.method.predict, trained.inbox)
            y = split.y
            if prepared.scale is not None:
                outputs, y = prepared.scale.restored(outputs), prepared.scale.restored(y)
            metrics_of_site = measured(outputs, y, metrics)
            values = {m: [v.value, v.low, v.high] for m, v in metrics_of_site.items()}
            trains = len(client.train) if client.train is not None else 0
            sites.append(
                {
                    "site": name, "role": role, "trained on": trains, "examples": len(split),
                    "metrics": values,
                }
            )  # fmt: skip
    trained.at(None)
    return sites


def worse(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sites where a constant answer is better, for `model.json`; {} for none."""
    lines = [r for n in records.FILES[:2] for r in records.read_lines(folder / n)]
    chosen = [r for r in lines if r["round"] == spec["round"] - 1]
    sites = beaten(chosen, records.read_lines(folder / records.CONSTANT)).get(spec["metric"])
    return {"worse than a constant": list(sites)} if sites else {}


def _agrees(spec: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model whose figures are not those that its training recorded for its round."""
    lines = [r for n in records.FILES[:2] for r in records.read_lines(folder / n)]
    there = {r["domain"]: r for r in lines if r["round"] == spec["round"] - 1}
    for site in spec["results"]:
        for metric, (now, _, _) in site["metrics"].items():
            then = value(there[site["site"]], metric)
            if not _same(now, then):
                raise UnseenError(
                    f"the model that was written gives {metric} {now} at {site['site']}, and "
                    f"{then} was recorded in training: its directory does not hold all that it "
                    "predicts with. Please report this with the study's file."
                )


def _same(a: float | None, b: float | None) -> bool:
    """Whether two values of a metric are equal but for the rounding of another batch."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 1e-4 * max(1.0, abs(b))


def _write_documents(trained: Trained, method: Method, planned: Plan) -> None:
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
    """Return a header and a row per site, as text."""
    head = ["site", "role", "examples", *metrics]
    body = [
        [r["site"], card.ROLES[r["role"]], str(r["examples"])]
        + [Measured(*r["metrics"][m]).text("accuracy" in m) for m in metrics]
        for r in results
    ]
    return [head, *body]
