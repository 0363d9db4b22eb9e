"""One federation: its training, its chosen round, and a directory with the model, read back."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.client import Split
from unseen.core.exchange import Method
from unseen.core.metrics.evaluation import forward
from unseen.core.record_lines import Record
from unseen.data.networks.mixture import lean
from unseen.errors import UnseenError
from unseen.serving import directory
from unseen.serving.decisions import Evidence
from unseen.serving.description import described, selection_metric
from unseen.serving.directory import Trained
from unseen.studies.execution.frozen import TRUNK, parts_of
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runner import carry_out
from unseen.studies.execution.runtime import Runtime, adapted, blueprint, composed
from unseen.studies.execution.setting import Setting
from unseen.studies.execution.watcher import SELECTED, SITES
from unseen.studies.results.formats import counted
from unseen.studies.results.records import Job, slug
from unseen.studies.results.selection import select
from unseen.studies.results.study_folder import JobFolder, last_record
from unseen.studies.results.study_results import separation
from unseen.studies.settings.holdout import Fixed, Groups
from unseen.studies.settings.study import StudySpec
from unseen.studies.tracking.progress_bar import progress_bar

#: Where the training's records lie in the model's directory, and models without some of the sites.
RECORDS, LEFT_OUT = "training", "left-out"


@dataclass(frozen=True)
class Fitted:
    """A model as its training left it, in its directory.

    Attributes:
        planned: The study.
        prepared: Its clients.
        method: The method.
        records: What its job recorded.
        trained: The model, as the directory has it.
        spec: The content of `model.json`.
        tensors: The content of the safetensors file.
    """

    planned: Plan
    prepared: Prepared
    method: Method
    records: JobFolder
    trained: Trained
    spec: Record
    tensors: bytes


def fit_model(
    study: StudySpec,
    out: Path,
    data_dir: Path | None,
    say: Callable[[str], None],
    progress: bool = False,
    ranges: bool | None = None,
    check: Callable[[Plan, Prepared], object] = lambda planned, prepared: None,
) -> Fitted:
    """Train the study's one model and write its directory, without results and card.

    Args:
        study: As `fit.study_of` returns it.
        out: The directory. What was trained there with the same settings is not trained again.
        data_dir: The data folder.
        say: Receives lines of progress.
        progress: Whether to show a bar of the rounds.
        ranges: See `description.usual_inputs`.
        check: Refuses, before anything trains, what cannot be done after it.
    """
    if line := study.first_line:  # before images are decoded
        say(line)
    planned = prepare_study(study, out / RECORDS, data_dir)
    job = one_job(planned)
    (task,) = planned.tasks
    data, setting = planned.data, planned.setting
    prepared = prepare(data, task, study, job.seed)
    check_buffers(planned, prepared, job)
    check(planned, prepared)
    method = composed(job.method, study, data)
    folder = job.folder(setting.out)
    if (before := JobFolder(job, folder)).finished and not _current(before, planned):
        (folder / "done.json").unlink()
        planned = prepare_study(study, out / RECORDS, data_dir)
    say(
        f"data: {data.name}; training sites: {', '.join(task.sources)}; held out: "
        f"{', '.join(task.targets) or 'none'}"
    )
    own = method.rounds is not None
    rounds = "rounds as the method takes" if own else counted(study.rounds, "round")
    model = method.fits or ("" if study.first_line else study.network(setting.model))
    say(f"{f'model: {model}; ' if model else ''}method: {job.method}; {rounds}")
    with _rounds(folder, study.rounds, progress and bool(planned.missing)):
        carry_out(planned)
    return write_model(planned, prepared, job, out, say, ranges)


def write_model(
    planned: Plan,
    prepared: Prepared,
    job: Job,
    out: Path,
    say: Callable[[str], None],
    ranges: bool | None = None,
) -> Fitted:
    """Write the directory of a job's model, without results and card, and read it back."""
    setting, data, folder = planned.setting, planned.data, job.folder(planned.setting.out)
    after = trained_job(job, folder)
    if columns := after.mark.get("separated"):
        say(f"warning: {separation(job.method, columns)}")
    spec = described(planned, prepared, job, ranges)
    runtime = Runtime.of(setting, data, prepared, job.method, job.seed, evaluates=False)
    tensors = in_use((folder / SELECTED).read_bytes(), runtime.model.module)
    tensors = with_trunk(tensors, setting, prepared)
    directory.write(out, spec, tensors)
    method = composed(job.method, setting.study, data)
    read = directory.read(out, allow_code=True)
    return Fitted(planned, prepared, method, after, read, spec, tensors)


def check_buffers(planned: Plan, prepared: Prepared, job: Job) -> None:
    """Refuse a network that answers by what else it is asked."""
    setting, study = planned.setting, planned.setting.study
    method = composed(job.method, study, planned.data)
    module = adapted(method, blueprint(setting, prepared, job.seed, len(prepared.sources)))
    if any(isinstance(x, _BatchNorm) and x.running_mean is None for x in module.modules()):
        where = "training.buffers" if study.training.buffers == "batch" else f"{job.method}: norm"
        raise UnseenError(
            f"{where} = 'batch' makes a prediction depend on what else is predicted.",
            remedy="Take another for a model that is to be used, such as the default.",
        )


def trained_job(job: Job, folder: Path) -> JobFolder:
    """Return the records of a job that is done; refuse one that ended without a model."""
    after = JobFolder(job, folder)
    if after.state == "diverged":
        raise UnseenError(f"there is no model: {after.mark['diverged']}")
    return after


def in_use(tensors: bytes, network: nn.Module) -> bytes:
    """Return the content of a safetensors file without what only trained with the model.

    Note:
        Where sites keep BatchNorm statistics of their own, of all parts, nothing is left out.
    """
    from safetensors.torch import load, save

    every = load(tensors)
    names = lean(network).state_dict().keys()
    if names >= every.keys() or any(name.startswith(SITES) for name in every):
        return tensors
    return save({name: t for name, t in every.items() if "/" in name or name in names})


def with_trunk(tensors: bytes, setting: Setting, prepared: Prepared) -> bytes:
    """Return the content of a safetensors file with the frozen part's tensors, if there is one."""
    if prepared.image is None:
        return tensors
    from safetensors.torch import load, save

    _, frozen = parts_of(setting.study, setting.model, setting.weights, prepared.image)
    return save({**load(tensors), **{f"{TRUNK}{name}": t for name, t in frozen.items()}})


def left_out(
    study: StudySpec,
    planned: Plan,
    groups: int,
    out: Path,
    data_dir: Path | None,
    say: Callable[[str], None],
) -> Evidence:
    """Return answers at every source by a model that was trained without it and its group."""
    (task,) = planned.tasks
    outputs: dict[str, Tensor] = {}
    labels: dict[str, Tensor] = {}
    unlearned: dict[str, tuple[int, ...]] = {}
    for part in Groups(groups=min(groups, len(task.sources))).tasks(task.sources):
        say(f"without {', '.join(part.targets)}")
        holdout = Fixed(source=part.sources, target=part.targets, validation=task.validation)
        other = study.model_copy(update={"holdout": holdout, "targets": None})
        fitted = fit_model(
            other, out / LEFT_OUT / slug(part.name), data_dir, lambda line: None, False
        )
        for name, client in fitted.prepared.targets.items():
            split = client.split("validation")
            outputs[name], labels[name] = answers_of(fitted.trained, fitted.prepared, split)
            if fitted.prepared.classes is not None and not fitted.prepared.masks:
                unlearned[name] = _unlearned(fitted.prepared, labels[name])
    missing = {name: classes for name, classes in unlearned.items() if classes}
    return Evidence("left-out", outputs, labels, missing)


def _unlearned(prepared: Prepared, y: Tensor) -> tuple[int, ...]:
    """Return the classes among labels [N] of which no source has a row to train on."""
    learned = {
        c for s in prepared.sources.values() if s.train is not None for c in s.train.y.tolist()
    }
    return tuple(sorted(set(y.tolist()) - learned))


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


def answers_of(trained: Trained, prepared: Prepared, split: Split) -> tuple[Tensor, Tensor]:
    """Return a model's outputs [N, C] and the labels [N] of a split, numbers in their own unit."""
    outputs = forward(trained.model, split, trained.method.predict, trained.inbox)
    if prepared.scale is not None:
        return prepared.scale.restored(outputs), prepared.scale.restored(split.y)
    return trained.calibrated(outputs), split.y


def validation_of(trained: Trained, prepared: Prepared) -> Evidence:
    """Return the model's answers at the sources' validation splits."""
    answers = {}
    for name, client in prepared.sources.items():
        trained.at(name if name in trained.sites else None)
        answers[name] = answers_of(trained, prepared, client.split("validation"))
    trained.at(None)
    outputs, labels = ({n: pair[k] for n, pair in answers.items()} for k in (0, 1))
    return Evidence("validation", outputs, labels)


@contextmanager
def _rounds(folder: Path, total: int, visible: bool) -> Iterator[None]:
    if not visible:
        yield
        return
    over = threading.Event()
    with progress_bar(total, 0, "rounds", visible) as show:

        def follow() -> None:
            while not over.wait(0.5):
                draw()
            draw()

        def draw() -> None:
            show(last_record(folder / "rounds.jsonl").get("round", -1) + 1, "")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(follow)
            try:
                yield
            finally:
                over.set()
