"""One job of a study: a method on a task with a seed, from data to records on disk."""

import platform
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from unseen.core import Backend, Client, Inbox, Memories, Model, Turn, play_round, record_lines
from unseen.core.exchange import Exchange, Method, Outcome, State
from unseen.core.replies import tabulate
from unseen.data.dataset import DataSet
from unseen.data.tables.encoding import Schema, feature_names
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess
from unseen.engine.stacked import Stacked
from unseen.errors import Diverged, UnseenError
from unseen.privacy.ledger import Metered, before_training
from unseen.studies.execution.checks import behind
from unseen.studies.execution.constant_answer import constants
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Setting, dataset
from unseen.studies.execution.watcher import (
    Watcher,
    save_models,
    save_tensors,
    sealed_tensors,
    selected_file,
    selected_tensors,
)
from unseen.studies.results import checkpoint, records
from unseen.studies.results.ends import is_flat, source_losses
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.records import Job, Log
from unseen.studies.results.selection import select
from unseen.studies.settings.holdout import Task
from unseen.version import __version__

#: Makes what runs the clients: (model, clients, memories from a checkpoint) -> a backend.
Place = Callable[[Model, Mapping[str, Client], Memories | None], Backend]
#: Returns seconds since some moment.
Clock = Callable[[], float]


def run_job(setting: Setting, job: Job, task: Task, place: Place | None = None) -> Job:
    """Run a job to its end, from its last checkpoint if there is one."""
    with reproducible(setting.study.threads, setting.study.device):
        data = dataset(setting)
        prepared = prepare(data, task, setting.study, job.seed)
        return Running(setting, job, data, prepared, place).to_end()


class Running:
    """A job on its way: every round that is missing, each written down before the next.

    Used as a context, it closes its files at the end, and marks the job as done if nothing went
    wrong. A job whose numbers stop being finite is done, too: that is a finding.

    Args:
        setting: What all jobs share.
        job: The job.
        data: The data set, of which names of classes and levels are enough.
        prepared: The clients.
        place: What runs the clients; None for this process.
        clock: What the job's seconds are counted by.
    """

    def __init__(
        self,
        setting: Setting,
        job: Job,
        data: DataSet,
        prepared: Prepared,
        place: Place | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock, self._start, self._saved = clock, clock(), time.monotonic()
        self.job, self.setting, self.prepared = job, setting, prepared
        self.folder, self.levels, self.diverged = job.folder(setting.out), data.levels, ""
        self.schema = data.schema
        study = setting.study
        self.runtime = runtime = Runtime.of(
            setting, data, prepared, setting.tuned or job.method, job.seed
        )
        saved = checkpoint.load(self.folder, study.device)
        self.state, memories, lengths = saved or (runtime.start(), None, {})
        self._owned: set[str] = set()
        backend = (
            runtime.in_process(memories)
            if place is None
            else place(runtime.model, runtime.clients, memories)
        )
        if study.stacked and not isinstance(backend, InProcess | Stacked):
            what = (
                f"stacked = {study.stacked} trains models of one process, and sites train theirs."
            )
            raise UnseenError(what, remedy="Set stacked = 0.")
        self.backend, self.method = behind(study, runtime.method, backend)
        self.watcher = Watcher(
            "gram" in study.record,
            "locals" in study.save or study.cross_evaluation,
            "drift" in study.record,
        )
        self.traffic = traffic(self.method, self.state.inbox)
        self.log = Log.resume(self.folder, lengths)
        self.losses = source_losses(record_lines.read_lines(self.folder / "source.jsonl"))
        self.metered = Metered(self.backend, self.method)
        self.metered.resume(self.folder, runtime.names)
        if not lengths:
            self._before_training()

    def to_end(self) -> Job:
        """Play all rounds that are missing; return the job."""
        with self:
            while not self.finished:
                self.round()
        return self.job

    @property
    def finished(self) -> bool:
        ended = self.state.round >= self.runtime.rounds
        return bool(self.diverged) or ended or self.flat

    @property
    def unmeasured(self) -> bool:
        """Whether no metric leaves the clients, so that the last round's model is taken."""
        return self.setting.study.privacy.metrics == "none"

    @property
    def flat(self) -> bool:
        """Whether the sources' loss has stopped falling, where the study waits for that."""
        patience = self.setting.study.patience
        return (
            patience is not None and self.method.rounds is None and is_flat(self.losses, patience)
        )

    def round(self) -> None:
        study, watcher = self.setting.study, self.watcher
        watch, owned = (watcher, None) if watcher.looks else (None, self._owned)
        try:
            self.state, outcomes = play_round(
                self.method,
                self.state,
                self.metered,
                self.runtime.names,
                self.runtime.rounds,
                self.runtime.participation,
                study.on_bad_reply,
                watch,
                owned,
            )
        except Diverged as error:  # the study's other jobs go on
            self.diverged = str(error)
            return
        self.log.append(record_lines.LEDGER, self.metered.lines())
        if doubts := [pair._asdict() for pair in self.backend.undecided()]:
            self.log.append(records.UNDECIDED, doubts)
        for outcome in outcomes:
            roles = self.prepared.roles
            name, lines = records.lines_of(outcome, self.job, roles, self.levels, self.traffic)
            self.log.append(name, lines)
            if name == "source.jsonl":
                self.losses |= source_losses(lines)
        played = [outcome.turn.exchange for outcome in outcomes]
        measured = played[-1] in (records.VALIDATE, records.TEST)
        if "selected" in study.save and (measured or (self.unmeasured and self.finished)):
            self._keep_selected()
        if study.cross_evaluation and records.TEST in played:
            self._evaluate_locals(outcomes[-1].turn)
        # Never after the last round: a job stopped there plays it again and has its local models.
        due = time.monotonic() - self._saved >= self.setting.checkpoint_seconds
        if due and not self.finished:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Keep the state, from which a job that is stopped goes on."""
        checkpoint.save(self.folder, self.state, self.backend.to_checkpoint())
        self._saved = time.monotonic()

    def close(self) -> None:
        self.log.append(record_lines.LEDGER, [*self.metered.lines(), *self.metered.closing()])
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:
            self._mark_done()

    @property
    def _notes(self) -> dict[str, str]:
        notes = {name: str(value) for name, value in vars(self.job).items()}
        return notes | {"model": self.setting.model}

    def _before_training(self) -> None:
        """Write down what was exchanged before the first round, and what a model must beat."""
        study, prepared = self.setting.study, self.prepared
        if prepared.sums is not None and study.privacy.columns is None:
            self.log.append(record_lines.LEDGER, before_training(prepared.sources, prepared.sums))
        # What is promised to be noised, or not to leave the sites at all, stays out of the records.
        secret = study.privacy.noised or study.privacy.columns is not None
        if figures := [] if secret else constants(prepared, self.setting.metrics):
            self.log.append(records.CONSTANT, figures)

    def _keep_selected(self) -> None:
        """Write `selected.safetensors` if the selection rule takes the latest round.

        The rule reads the records so far: what it selects in the end it selects when it is played.
        """
        study, state = self.setting.study, self.state
        metric = main_metric(study.metric, self.setting.metrics)
        source, target = (record_lines.read_lines(self.folder / name) for name in records.FILES[:2])
        try:
            best = state.round - 1
            if not self.unmeasured:
                best = select(study.selection, source, target, metric)
        except UnseenError:  # nothing can be selected yet: a metric is still undefined
            return
        if best == state.round - 1:
            split = next(iter(self.prepared.sources.values())).split("validation")
            x, memories = split.batch(slice(0, 2))[0], self.backend.to_checkpoint()
            blind = study.privacy.server == "blind"
            tensors = (
                sealed_tensors(state, memories)
                if blind
                else selected_tensors(self.method, self.runtime.model, state, memories, x)
            )
            about = {"round": str(best), "selection": study.selection, "metric": metric}
            save_tensors(selected_file(self.folder, blind), tensors, self._notes | about)

    def _evaluate_locals(self, turn: Turn) -> None:
        roles = self.prepared.roles
        for client, outcome in crossed(self.method, self.state, self.backend, self.watcher, turn):
            rows = records.evaluations(outcome, self.job, roles, self.levels)
            self.log.append(records.CROSS, [{"client": client} | row for row in rows])

    def _mark_done(self) -> None:
        if not self.diverged:
            model, save = self.runtime.model, self.setting.study.save
            save_models(self.folder, save, model, self.state.inbox, self.watcher, self._notes)
        failed = (rule["combine"].get("fallbacks", 0) for rule in self.state.rules.values())
        records.mark_done(
            self.folder,
            versions(),
            seconds=self._clock() - self._start,
            peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            commit=commit(),
            diverged=self.diverged,
            fallbacks=0 if self.diverged else sum(map(int, failed)),
            separated=separating(self.state, self.schema, self.prepared.statistics),
            settings=self.setting.digest,
        )


def separating(state: State, schema: Schema | None, statistics: Tensor | None) -> list[str]:
    """Return the columns that separate the classes, where a step of the method looked for them.

    Args:
        state: The state at the end.
        schema: The columns of a table.
        statistics: The sums that it was encoded by.
    """
    steps = (rule["apply"] for rule in state.rules.values())
    masks = [step["separated"] for step in steps if "separated" in step]
    places = torch.stack(masks).any(0).nonzero().flatten().tolist() if masks else []
    if schema is None or statistics is None:
        return [f"input {place + 1}" for place in places]
    names = feature_names(schema, statistics)
    return [names[place] for place in places]


def traffic(method: Method, inbox: Inbox) -> dict[str, tuple[int, int]]:
    """Return the bytes to and from a client in each training exchange: entries down, rows up.

    Scalars and the envelope of a message are left out.
    """
    sizes = {}
    for exchange in method.exchanges:
        down = sum(entry.nbytes for entry in exchange.outgoing(inbox).values())
        entries = [(slot, slot.entry(inbox, name)) for name, slot in exchange.row_slots.items()]
        up = sum(slot.row_bytes(entry) for slot, entry in entries)
        sizes[exchange.name] = (down, up)
    return sizes


def crossed(
    method: Method, state: State, backend: Backend, watcher: Watcher, turn: Turn
) -> Iterator[tuple[str, Outcome]]:
    """Yield every client, and what an evaluation of its local model on every domain leaves.

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


@cache
def commit() -> str:
    """The commit that this code is at, with a `+` for changes since; "" outside a checkout."""
    here = Path(__file__).parents[1]
    tracked = ("ls-files", "--error-unmatch", "__init__.py")
    describe = ("describe", "--always", "--dirty=+", "--exclude=*")
    try:
        for command in (tracked, describe):
            git = ["git", "-C", str(here), *command]
            ran = subprocess.run(git, capture_output=True, check=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()


def versions() -> dict[str, str]:
    """What a result is made with."""
    return {
        "unseen": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
