"""One job of a study: a method on a task with a seed, from data to records on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unseen
from unseen.backend.inprocess import InProcess
from unseen.backend.stacked import Stacked
from unseen.client import Client, Memories
from unseen.datasets import load
from unseen.datasets.base import DataSet
from unseen.errors import Diverged, UnseenError
from unseen.exchange import Exchange, Inbox, Method, Outcome, State, Turn, keyed
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.metrics import Evaluate
from unseen.models import build
from unseen.models.weights import Report, Source
from unseen.privacy.ledger import Metered, before_training
from unseen.replies import tabulate
from unseen.round import play_round, start
from unseen.study import records
from unseen.study.constant import constants
from unseen.study.holdout import Task
from unseen.study.prepare import Prepared, prepare
from unseen.study.private import is_noised, privatised
from unseen.study.records import Job, Log
from unseen.study.sealed import behind, checked, undecided
from unseen.study.selected import keep_selected
from unseen.study.selection import main_metric
from unseen.study.spec import Study
from unseen.study.watch import Watcher, check_locals, probed, save_models
from unseen.vector import Model

#: Seconds between checkpoints. They change when a job can go on from, never what it computes.
CHECKPOINT_SECONDS = 20.0
EVALUATIONS = (records.VALIDATE, records.TEST)


@dataclass(frozen=True)
class Setting:
    """What all jobs of a study share. data: the data set's digest, which every process checks, as
    it does that of the file of initial weights."""

    study: Study
    out: Path
    data_dir: Path | None
    data: str
    model: str
    metrics: tuple[str, ...]
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    weights: Source | None = None


#: Makes what runs the clients: (model, clients, memories from a checkpoint) -> a `Backend` that has
#: `memories` of its own, which lie in the next checkpoint.
Place = Callable[[Model, Mapping[str, Client], Memories | None], Any]


def run_job(setting: Setting, job: Job, task: Task, place: Place | None = None) -> Job:
    """Run a job to its end, from its last checkpoint if there is one."""
    with reproducible(setting.study.threads, setting.study.device):
        data = dataset(setting.study.dataset, setting.data_dir, setting.data)
        return run_prepared(setting, job, data, prepare(data, task, setting.study, job.seed), place)


def run_prepared(
    setting: Setting, job: Job, data: DataSet, prepared: Prepared, place: Place | None = None
) -> Job:
    """Run a job whose clients are made; of the data, names of classes and levels are enough.

    place: what runs the clients, by default this process.
    """
    for _ in running(setting, job, data, prepared, place):
        pass
    return job


@dataclass(frozen=True)
class Pending:
    """A round of a job that is about to be played."""

    method: Method
    state: State
    backend: Any
    clients: tuple[str, ...]
    participation: float | int


def running(
    setting: Setting, job: Job, data: DataSet, prepared: Prepared, place: Place | None = None
) -> Iterator[Pending]:
    """`run_prepared`, which stops before every round that is missing."""
    begun, diverged, fallbacks = time.monotonic(), "", 0
    method = evaluated(composed(job.method, setting.study, data), prepared, setting, data)
    try:
        fallbacks = fallen_back(
            (yield from _play(setting, job, method, prepared, data.levels, place))
        )
    except Diverged as error:  # a finding; the study's other jobs go on
        diverged = str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.monotonic() - begun
    folder = job.folder(setting.out)
    records.mark_done(folder, versions(), seconds, peak, commit(), diverged, fallbacks)


def fallen_back(state: State) -> int:
    """How often a rule's solver failed and the prior's weights stood in."""
    return sum(int(rule["combine"].get("fallbacks", 0)) for rule in state.rules.values())


def composed(text: str, study: Study, data: DataSet) -> Method:
    """The method of an expression, as the study trains and records it."""
    # What is for classes is composed for them: on numbers the plan then says that it cannot serve.
    numbers = data.classes is None and "classes" not in compose(text).asks
    method = compose(text, study.training.build(numbers))
    if "locals" in study.save or study.cross_evaluation or "gaps" in study.record:
        check_locals(method)
    return checked(privatised(probed(method) if "gaps" in study.record else method, study), study)


def _play(
    setting: Setting,
    job: Job,
    method: Method,
    prepared: Prepared,
    levels: Mapping[str, Sequence[str]],
    place: Place | None,
) -> Generator[Pending, None, State]:
    """Every round that is missing, each written down before the next; the last state."""
    study, folder = setting.study, job.folder(setting.out)
    model = model_of(setting, prepared, job.seed, method)
    roster = method.gather(prepared.sources) if method.gather else prepared.sources
    # The pool of DeepAll is one client, of which no share can stay away.
    participation = 1.0 if method.gather else study.participation
    state, memories, lengths = records.load_checkpoint(folder, study.device) or (
        start(method, model, sorted(roster), job.seed),
        None,
        {},
    )
    backend = (place or in_process(study))(model, prepared.everyone | dict(roster), memories)
    if study.stacked and not isinstance(backend, InProcess | Stacked):
        raise UnseenError(
            f"stacked = {study.stacked} trains models of one process as one batch, and sites train "
            "their own: set stacked = 0."
        )
    backend, method = behind(study, method, backend)
    watcher = Watcher("gram" in study.record, "locals" in study.save or study.cross_evaluation)
    watch = watcher if watcher.gram or watcher.keep else None
    moved = traffic(method, state.inbox)
    notes = {"method": job.method, "task": job.task, "seed": str(job.seed), "model": setting.model}
    rule = study.selection, main_metric(study.metric, setting.metrics)
    log = Log.resume(folder, lengths)
    metered = Metered(backend, method)
    metered.resume(folder, sorted(roster))
    if not lengths:
        if prepared.sums is not None and study.privacy.columns is None:
            log.append(records.LEDGER, before_training(prepared.sources, prepared.sums))
        # What is promised to be noised, or not to leave the sites at all, stays out of the records.
        secret = is_noised(study) or study.privacy.columns is not None
        if figures := [] if secret else constants(prepared, setting.metrics):
            log.append(records.CONSTANT, figures)
    saved = time.monotonic()
    try:
        names = tuple(sorted(roster))
        while state.round < study.rounds:
            yield Pending(method, state, backend, names, participation)
            state, outcomes = play_round(
                method, state, metered, names, study.rounds, participation,
                study.on_bad_reply, watch,
            )  # fmt: skip
            log.append(records.LEDGER, metered.lines())
            if doubts := undecided(backend):
                log.append(records.UNDECIDED, doubts)
            for outcome in outcomes:
                log.append(*records.written(outcome, job, prepared.roles, levels, moved))
            if "selected" in study.save and outcomes[-1].turn.exchange in EVALUATIONS:
                one = next(iter(prepared.sources.values())).split("validation")
                tried = one.batch(slice(0, 2))[0]
                keep_selected(folder, rule, method, model, state, backend.memories, tried, notes)
            if study.cross_evaluation and any(o.turn.exchange == records.TEST for o in outcomes):
                for client, outcome in crossed(method, state, backend, watcher, outcomes[-1].turn):
                    found = records.evaluations(outcome, job, prepared.roles, levels)
                    log.append(records.CROSS, [{"client": client} | record for record in found])
            # Never after the last round, so that who stopped there has its local models again.
            due = time.monotonic() - saved >= setting.checkpoint_seconds
            if due and state.round < study.rounds:
                records.save_checkpoint(folder, state, backend.memories)
                saved = time.monotonic()
    finally:
        log.append(records.LEDGER, [*metered.lines(), *metered.closing()])
        log.close()
    save_models(folder, study.save, model, state.inbox, watcher, notes)
    return state


def in_process(study: Study) -> Place:
    """Clients in this process, their rows in memory up to the study's limit."""
    limit = study.memory_limit
    return partial(InProcess, memory_limit=None if limit is None else int(limit * 2**30))


def traffic(method: Method, inbox: Inbox) -> dict[str, tuple[int, int]]:
    """Bytes to and from one client in each training exchange: every entry down, its rows up.

    Scalars and the envelope of a message are left out.
    """
    down = sum(entry.numel() * entry.element_size() for entry in inbox.values())
    found = {}
    for exchange in method.exchanges:
        entries = [(slot, inbox[slot.to or name]) for name, slot in exchange.slots.items()]
        up = sum(slot.row_shape(e).numel() * e.element_size() for slot, e in entries)
        found[exchange.name] = (down, up)
    return found


def crossed(
    method: Method, state: State, backend: InProcess, watcher: Watcher, turn: Turn
) -> Iterator[tuple[str, Outcome]]:
    """Every local model of the round on every domain: client -> what an evaluation leaves.

    The clients' memories stay out of it: a model is evaluated as it was sent.
    """
    evaluate = next(e.local for e in method.exchanges if e.name == records.TEST)
    exchange = Exchange(records.CROSS, evaluate)
    observer = InProcess(backend.model, backend.clients)
    names = sorted(n for n, client in backend.clients.items() if client.validation is not None)
    turn = replace(turn, exchange=records.CROSS, order=len(method.exchanges))
    for client, (vector, buffers) in watcher.locals.items():
        inbox = {**state.inbox, "model": vector, "buffers": buffers}
        replies = observer.map(exchange, inbox, names, turn)
        yield client, Outcome(turn, tuple(names), tabulate(names, replies, turn.roster, turn))


def evaluated(method: Method, prepared: Prepared, setting: Setting, data: DataSet) -> Method:
    """The method with two more exchanges: sources validate, targets, if there are any, test."""
    every = setting.study.evaluate_every
    groups = {column: len(data.levels[column]) for column in setting.study.groups}
    evaluate = Evaluate("validation", setting.metrics, method.predict, groups, prepared.scale)
    validators = (*sorted(prepared.sources), *sorted(prepared.validators))
    schedule = (every - 1, every)
    exchanges = [Exchange(records.VALIDATE, evaluate, rounds=schedule, who=validators)]
    if targets := tuple(sorted(prepared.targets)):
        exchanges.append(Exchange(records.TEST, evaluate, rounds=schedule, who=targets))
    return replace(method, exchanges=(*method.exchanges, *exchanges))


def module(setting: Setting, prepared: Prepared, seed: int) -> nn.Module:
    """The study's network; its first weights depend on the seed and the study's file alone."""
    return module_and_report(setting, prepared, seed)[0]


def module_and_report(
    setting: Setting, prepared: Prepared, seed: int
) -> tuple[nn.Module, Report | None]:
    """The study's network, and what became of the file of initial weights if there is one."""
    built = build(setting.model, prepared.shape, prepared.outputs, keyed(f"{seed}/model"))
    report = setting.weights.load(built) if setting.weights is not None else None
    return formed(built, setting.study), report


def formed(built: nn.Module, study: Study) -> nn.Module:
    """The network with the statistics and the memory format that the study asks for."""
    if study.training.buffers == "batch":
        for layer in built.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    chosen = study.memory_format
    # Small convolution nets train 1.7 to 2 times as fast with channels last on a CPU.
    if chosen == "channels-last" or (chosen == "auto" and _has_convolutions(built)):
        built = built.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return built


def model_of(
    setting: Setting, prepared: Prepared, seed: int, method: Method | None = None
) -> Model:
    """The study's network with its first weights, as the method trains it (None: as it is)."""
    return as_model(module(setting, prepared, seed), setting.study, prepared.shape, method)


def as_model(
    network: nn.Module,
    study: Study,
    shape: tuple[int, ...],
    method: Method | None = None,
    device: str | None = None,
) -> Model:
    """A network as the study computes with it: adapted to the method, on the device (by default
    the study's) and in the study's precision."""
    built = adapted(method, network) if method is not None else network
    return Model(built, device or study.device, shape, study.precision)


def adapted(method: Method, network: nn.Module) -> nn.Module:
    """The network as the method trains it."""
    return method.adapt(network) if method.adapt is not None else network


_read: dict[tuple[str, Path | None, str], DataSet] = {}


def dataset(expression: str, data_dir: Path | None, digest: str) -> DataSet:
    """The data set an expression names, if it still is that of the digest; kept for this
    process's next job."""
    key = (expression, data_dir, digest)
    if key not in _read:
        data = read(expression, data_dir)
        if digest_of(data) != digest:
            raise UnseenError(
                f"the files of {expression} changed while the study was running. Run it again, "
                "into another folder."
            )
        keep(key, data)
    return _read[key]


def keep(key: tuple[str, Path | None, str], data: DataSet) -> None:
    """Keep one data set per process."""
    _read.clear()
    _read[key] = data


def read(expression: str, data_dir: Path | None) -> DataSet:
    """The data set an expression names, from its files."""
    (call,) = parse(expression)
    return load(call.name, data_dir, **call.arguments)


def digest_of(data: DataSet) -> str:
    """Sixteen hexadecimal digits that differ whenever two data sets do."""
    digest = hashlib.sha256()
    names: list[object] = [data.classes, data.schema, dict(data.levels)]
    names += [data.standardise] if data.standardise is not None else []
    digest.update(repr(names).encode())
    for domain in data.domains:
        digest.update(domain.name.encode())
        held = [] if domain.validation is None else [domain.validation]
        meta = [domain.meta[column] for column in sorted(domain.meta)]
        # An array that stays on disk brings its digest along: it may be larger than the memory.
        x = [domain.x] if domain.digest is None else []
        digest.update((domain.digest or "").encode())
        units = [] if domain.units is None else [domain.units]
        for tensor in (*x, domain.y, *held, *meta, *units):
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


@contextmanager
def reproducible(threads: int, device: str) -> Iterator[None]:
    """A fixed number of threads, which changes bits, and deterministic kernels."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        if device != "cpu":  # to ask for it at all imports torch's compilers, for a second
            torch.use_deterministic_algorithms(before[1])


@cache
def commit() -> str:
    """The commit that this code is at, with a `+` for changes since; "" outside a checkout."""
    here = Path(unseen.__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        found = subprocess.run(asked, capture_output=True, check=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def versions() -> dict[str, str]:
    """What a result is made with."""
    return {
        "unseen": unseen.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _has_convolutions(network: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in network.modules())
