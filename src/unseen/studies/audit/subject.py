"""What an audit attacks: one task of a study, with the method that its clients run."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.core.client import Client
from unseen.core.exchange import Outcome
from unseen.core.round import play_round
from unseen.data.dataset import DataSet
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.studies.audit.membership import Trained
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.execution.setting import Setting
from unseen.studies.execution.watcher import Watcher
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec


@dataclass(frozen=True)
class Subject:
    """What is attacked: a study's task with its clients, and the method that they run.

    Attributes:
        study, setting, data, task: The study, and the first of its tasks.
        prepared: The task's clients.
        method: The method that they run.
        seed: The study's first.
    """

    study: StudySpec
    setting: Setting
    data: DataSet
    task: Task
    prepared: Prepared
    method: str
    seed: int

    def runtime(self, text: str, seed: int, clients: Mapping[str, Client] | None = None) -> Runtime:
        """Return a method of the study with first weights.

        Args:
            text: The method.
            seed: Of the weights and draws.
            clients: Other sources than the study's own.
        """
        sources = self.prepared.sources if clients is None else dict(clients)
        prepared = replace(self.prepared, sources=sources)
        return Runtime.of(self.setting, self.data, prepared, text, seed, evaluates=False)

    def train(
        self, text: str, clients: Mapping[str, Client], seed: int, rounds: int, gram: bool = False
    ) -> tuple[Trained, list[Outcome]]:
        """Return the model after a number of rounds, and what every exchange gave.

        Args:
            text: The method.
            clients: The sources.
            seed: Of the weights and draws.
            rounds: How many.
            gram: Whether the updates' inner products are noted.
        """
        run = self.runtime(text, seed, clients)
        backend = InProcess(run.model, run.roster)
        watch = Watcher(gram=True) if gram else None
        state, outcomes = run.start(), list[Outcome]()
        while state.round < rounds:
            state, new = play_round(
                run.method, state, backend, run.names, rounds, run.participation, "stop", watch
            )
            outcomes += new
        return Trained(run.model, state.inbox, run.method.predict), outcomes


def prepare_subject(study: StudySpec, data_dir: str | Path | None, method: str | None) -> Subject:
    """Return the first task and seed of a study, checked as a run would be.

    Args:
        study: The study.
        data_dir: The data folder.
        method: The method to attack (default: the study's first that trains at separate sites).
    """
    apart = (text for text in study.methods if compose(text).gather is None)
    if (name := method or next(apart, None)) is None:
        raise UnseenError(
            "in the study's methods no client sends anything.", remedy="Name one by --method."
        )
    if method is not None:
        study = StudySpec(**{**study.model_dump(), "methods": (method,), "reference": None})
    with tempfile.TemporaryDirectory(prefix="unseen-audit-") as folder:
        planned = prepare_study(study, Path(folder), data_dir)
    if planned.data.masks:
        raise UnseenError("the attacks guess one label per example; this study's labels are masks.")
    name = next((m for m in planned.methods if m == compose(name).name), name)
    if name in planned.not_applicable:
        why = f"{name} {planned.not_applicable[name]}."
        raise UnseenError(why, remedy="Choose another --method.")
    if planned.data.times is not None:
        raise UnseenError(
            "the attacks are on classes and numbers; these labels are times until an event.",
            remedy="Audit a study of the event alone: label='died', and drop the time.",
        )
    task, seed = planned.tasks[0], study.seed_list[0]
    prepared = prepare(planned.data, task, study, seed)
    return Subject(study, planned.setting, planned.data, task, prepared, name, seed)


def described(subject: Subject, rounds: int | None) -> dict[str, Any]:
    """Return what is attacked, and for how many rounds, as plain data."""
    study, sources = subject.study, subject.prepared.sources
    plain = type(study.privacy)()
    privacy = {k: v for k, v in study.privacy.model_dump().items() if v != getattr(plain, k)}
    return {
        "study": study.name,
        "data": subject.data.name,
        "model": subject.setting.model,
        "task": subject.task.name,
        "sites": list(sources),
        "examples": [len(c.split("train")) for c in sources.values()],
        "method": subject.method,
        "seed": subject.seed,
        "rounds": rounds or study.rounds,
        "privacy": privacy,
    }
