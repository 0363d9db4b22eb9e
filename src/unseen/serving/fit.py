"""One federation from a study's file to a directory with a model that is ready for use."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.atomic import write_atomically
from unseen.core.metrics import forward
from unseen.errors import UnseenError
from unseen.results.formats import counted
from unseen.results.records import Job, Record
from unseen.results.selection import beaten, select, value
from unseen.results.study_folder import JobFolder, last_record
from unseen.results.study_results import separation
from unseen.serving import directory
from unseen.serving.description import ROLES, card, described, selection_metric
from unseen.serving.directory import Trained
from unseen.serving.evaluate import cells, measured
from unseen.spec.holdout import PLANS
from unseen.spec.named import put, settings_of
from unseen.spec.study import StudySpec
from unseen.study.plan import Plan, prepare_study
from unseen.study.prepare import Prepared, prepare
from unseen.study.runner import carry_out
from unseen.study.runtime import composed, first_network
from unseen.study.watcher import SELECTED

#: Where the training's records lie, and its report, in the model's directory.
RECORDS, REPORT = "training", "report"


def study_of(
    file: str | None,
    overrides: Mapping[str, Any],
    method: str | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> StudySpec:
    """Return the study of one model: one method, one seed, one task.

    Args:
        file: A study's file or name. Without `holdout` it holds no domain out; `holdout = "name"`
            holds out that domain. The first of several seeds is used.
        overrides: Settings that replace the file's.
        method: The method; None for the file's.
        recipe: The settings in the place of a file's, as `unseen choose` writes them.

    Raises:
        UnseenError: If there are several methods, or neither a file nor a recipe.
    """
    if (file is None) == (recipe is None):
        raise UnseenError(
            "a model is trained by a study's file or by the answer of `unseen choose`.",
            remedy="Write: unseen train FILE.toml, or unseen train --recipe DIR/choice.json.",
        )
    settings = settings_of(file)[0] if file is not None else dict(recipe or {})
    changed = dict(overrides)
    if not {"holdout", "targets"} & {key.partition(".")[0] for key in (*settings, *changed)}:
        changed["holdout"] = "none"
    holdout = changed.get("holdout", settings.get("holdout"))
    if isinstance(holdout, str) and holdout not in PLANS:
        changed |= {"holdout": "leave-one-domain-out", "targets": [holdout]}
    if method is not None:
        changed["methods"] = [method]
    if file is not None:
        study = StudySpec.read(file, changed)
    else:
        for key, value in changed.items():
            put(settings, key, value)
        study = StudySpec(**settings)
    if len(study.methods) > 1:
        raise UnseenError(
            f"a model is trained by one method; the file has {', '.join(study.methods)}.",
            remedy="Choose with --method.",
        )
    if study.tune is not None:
        raise UnseenError(
            "a model is trained by one setting, and the file has a [tune] table.",
            remedy="Search first with `unseen tune`, and train the file that it writes.",
        )
    if {"locals"} & set(study.save):
        raise UnseenError("save = ['locals'] is for studies;", remedy="leave it out.")
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
    expected: Mapping[str, Any] | None = None,
) -> Trained:
    """Train the study's one model, choose its round, and write the directory.

    Args:
        study: As `study_of` returns it.
        out: The directory. What was trained there with the same settings is not trained again.
        data_dir: The data folder.
        say: Receives lines of progress.
        progress: Whether to show a bar of the rounds.
        ranges: Whether the directory keeps what training's inputs were like; see
            `description.usual_inputs`.
        expected: What `unseen choose` expects at a new site, for the card.

    Raises:
        UnseenError: The model that was written, read again, does not give the recorded figures.
    """
    from unseen.report.write import report

    planned = prepare_study(study, out / RECORDS, data_dir)
    job = one_job(planned)
    (task,) = planned.tasks
    data, setting = planned.data, planned.setting
    prepared = prepare(data, task, study, job.seed)
    if study.training.buffers == "batch" and any(
        isinstance(x, _BatchNorm) for x in first_network(setting, prepared, job.seed).modules()
    ):
        raise UnseenError(
            "training.buffers = 'batch' makes a prediction depend on what else is predicted.",
            remedy="Take 'average' or 'local' for a model that is to be used.",
        )
    folder = job.folder(setting.out)
    if (before := JobFolder(job, folder)).finished and not _current(before, planned):
        (folder / "done.json").unlink()
        planned = prepare_study(study, out / RECORDS, data_dir)
    say(f"data: {data.name}; training sites: {', '.join(task.sources)}; held out: "
        f"{', '.join(task.targets) or 'none'}")  # fmt: skip
    method = composed(job.method, study, data)
    own = method.rounds is not None
    rounds = "rounds as the method takes" if own else counted(study.rounds, "round")
    say(f"model: {setting.model}; method: {job.method}; {rounds}")
    with _rounds(folder, study.rounds, progress and bool(planned.missing)):
        carry_out(planned)
    after = JobFolder(job, folder)
    if after.state == "diverged":
        raise UnseenError(f"there is no model: {after.mark['diverged']}")
    if columns := after.mark.get("separated"):
        say(f"warning: {separation(job.method, columns)}")
    spec = described(planned, prepared, job, ranges)
    if expected is not None:
        same = expected["data"].split()[-1] == planned.setting.data
        rest = {name: value for name, value in expected.items() if name != "study"}
        spec["expected at a new site"] = {**rest, "same data": same}
    tensors = (folder / SELECTED).read_bytes()
    directory.write(out, spec, tensors)
    trained = directory.read(out)
    spec["results"] = results(trained, prepared, planned.setting.metrics)
    evaluated = [r for r in (*after.source, *after.target) if r["round"] == spec["round"] - 1]
    _check_results(spec, evaluated)
    if worse := beaten(evaluated, after.constant).get(spec["metric"]):
        spec["worse than a constant"] = list(worse)
    directory.write(out, spec, tensors)
    trained = directory.read(out)
    citations = dict.fromkeys([*(r.bibtex for r in method.references), data.citation])
    entries = "\n\n".join(filter(None, citations))
    write_atomically(out / "citations.bib", f"{entries}\n".encode())
    text = card(trained.spec, [r.text for r in method.references])
    write_atomically(out / "README.md", text.encode())
    report([out / RECORDS], out / REPORT, files=False)
    of = "" if own else f" of {study.rounds}"
    say(f"round {spec['round']}{of}, by {spec['selection']} on {spec['metric']}")
    return trained


def one_job(planned: Plan) -> Job:
    """Return the plan's only job; refuse what would be several models, or none."""
    if len(planned.tasks) > 1:
        names = ", ".join(task.name for task in planned.tasks)
        raise UnseenError(
            f"a model is trained on one task; this study has {len(planned.tasks)} tasks: {names}.",
            remedy="Hold out one domain, holdout = 'NAME', or none, holdout = 'none'.",
        )
    if not planned.jobs:
        method, reason = next(iter(planned.not_applicable.items()))
        raise UnseenError(f"{method} cannot be used here: it {reason}.")
    return planned.jobs[0]


def _current(job: JobFolder, planned: Plan) -> bool:
    study, metric = planned.setting.study, selection_metric(planned)
    try:
        with safe_open(job.folder / SELECTED, "pt") as file:
            notes = file.metadata() or {}
    except Exception:  # missing or damaged: it is made again
        return False
    if job.state == "diverged":
        return True
    best = select(study.selection, job.source, job.target, metric)
    selected = {"selection": study.selection, "metric": metric, "round": str(best)}
    return {name: notes.get(name) for name in selected} == selected


def results(trained: Trained, prepared: Prepared, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return every site's metrics with intervals, as `model.json` has them.

    Args:
        trained: The model.
        prepared: The clients; sources are measured on their validation splits.
        metrics: Names of the metrics.
    """
    roles = zip(ROLES, (prepared.sources, prepared.validators, prepared.targets), strict=True)
    sites = []
    for role, name, client in ((r, n, c) for r, clients in roles for n, c in clients.items()):
        trained.at(name if name in trained.sites else None)
        split = client.split("validation")
        outputs = forward(trained.model, split, trained.method.predict, trained.inbox)
        y = split.y
        if prepared.scale is not None:
            outputs, y = prepared.scale.restored(outputs), prepared.scale.restored(y)
        values = {m: list(v) for m, v in measured(outputs, y, metrics).items()}
        trains = len(client.train) if client.train is not None else 0
        sites.append({"site": name, "role": role, "trained on": trains, "examples": len(split),
                      "metrics": values})  # fmt: skip
    trained.at(None)
    return sites


def _check_results(spec: Mapping[str, Any], evaluated: Sequence[Record]) -> None:
    records = {record["domain"]: record for record in evaluated}
    for site in spec["results"]:
        for metric, (now, _, _) in site["metrics"].items():
            then = value(records[site["site"]], metric)
            # Equal but for the rounding of another batch; NaN stands for an undefined metric.
            pair = [math.nan if x is None else x for x in (now, then)]
            if now is not then and not math.isclose(*pair, rel_tol=1e-4, abs_tol=1e-4):
                raise UnseenError(
                    f"the model that was written gives {metric} {now} at {site['site']}, and "
                    f"{then} was recorded: its directory does not hold all that it predicts with.",
                    remedy="Please report this with the study's file.",
                )


@contextmanager
def _rounds(folder: Path, total: int, visible: bool) -> Iterator[None]:
    if not visible:
        yield
        return
    from rich.progress import Progress

    over = threading.Event()
    with Progress(transient=True) as bar:
        task = bar.add_task("rounds", total=total)

        def follow() -> None:
            while not over.wait(0.5):
                last = last_record(folder / "rounds.jsonl").get("round", -1)
                bar.update(task, completed=last + 1)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(follow)
            try:
                yield
            finally:
                over.set()


def site_rows(results: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[list[str]]:
    """Return a header and a row per site, as text."""
    body = (
        [r["site"], ROLES[r["role"]], str(r["examples"]), *cells(r["metrics"])] for r in results
    )
    return [["site", "role", "examples", *metrics], *body]
