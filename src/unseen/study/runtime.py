"""What a job runs, made in one place out of a setting, its data, a method's text and a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Method, State
from unseen.core.metrics import Evaluate
from unseen.core.round import start
from unseen.core.vector import Model
from unseen.datasets.dataset import DataSet
from unseen.engine.inprocess import InProcess
from unseen.methods.compose import method as compose
from unseen.results.records import TEST, VALIDATE
from unseen.spec.study import StudySpec
from unseen.study.network import adapted, as_model, blueprint, completed
from unseen.study.prepare import Prepared
from unseen.study.private_jobs import checked, privatised
from unseen.study.setting import Setting
from unseen.study.watcher import check_locals, probed


@dataclass(frozen=True)
class Runtime:
    """What a job runs.

    Attributes:
        setting: What all jobs share.
        prepared: The clients.
        method: The method as the study trains and records it.
        model: The study's network with its first weights, as the method trains it.
        roster: The clients that train.
        seed: The job's seed.
    """

    setting: Setting
    prepared: Prepared
    method: Method
    model: Model
    roster: Mapping[str, Client]
    seed: int

    @classmethod
    def of(
        cls,
        setting: Setting,
        data: DataSet,
        prepared: Prepared,
        text: str,
        seed: int,
        *,
        evaluates: bool = True,
        network: nn.Module | None = None,
        device: str | None = None,
        clients: int | None = None,
    ) -> Self:
        """Make the runtime of a method's expression.

        Args:
            setting: What all jobs share.
            data: The data set, of which names of classes and levels are enough.
            prepared: The clients.
            text: The expression.
            seed: The job's seed.
            evaluates: Whether the study's evaluations are exchanges of the method.
            network: A network with other weights than the study's first.
            device: Another device than the study's.
            clients: How many clients train, where not all of them are here.
        """
        study = setting.study
        method = composed(text, study, data)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
        plan = blueprint(setting, prepared, seed, clients or len(roster), network)
        model = as_model(adapted(method, plan), study, prepared.shape, device)
        method = completed(method, model, plan)
        if evaluates:
            method = evaluated(method, prepared, setting, data)
        return cls(setting, prepared, method, model, dict(roster), seed)

    @property
    def clients(self) -> dict[str, Client]:
        """Everyone by name: those who train and those who evaluate."""
        return self.prepared.everyone | dict(self.roster)

    @property
    def names(self) -> tuple[str, ...]:
        """The roster's names."""
        return tuple(sorted(self.roster))

    @property
    def rounds(self) -> int:
        """How many rounds the method takes: its own, or the study's."""
        return self.method.rounds or self.setting.study.rounds

    @property
    def participation(self) -> float | int:
        """The share of the roster that takes part in a round, or how many."""
        # The pool of DeepAll is one client, of which no share can stay away.
        return 1.0 if self.method.gather else self.setting.study.participation

    def start(self) -> State:
        """Return the state before the first round."""
        return start(self.method, self.model, self.names, self.seed)

    def in_process(self, memories: Memories | None = None) -> InProcess:
        """Return the clients in this process, their rows in memory up to the study's limit."""
        return InProcess(self.model, self.clients, memories, self.setting.study.memory_bytes)


def composed(text: str, study: StudySpec, data: DataSet) -> Method:
    """Return the method of an expression, as the study trains and records it."""
    # What is for classes is composed for them: on numbers the plan then says that it cannot serve.
    numbers = data.classes is None and "classes" not in compose(text).asks
    method = compose(text, study.training.build(numbers))
    if "locals" in study.save or study.cross_evaluation or "gaps" in study.record:
        check_locals(method)
    return checked(privatised(probed(method) if "gaps" in study.record else method, study), study)


def evaluated(method: Method, prepared: Prepared, setting: Setting, data: DataSet) -> Method:
    """Add two exchanges to the method: sources validate, targets, if there are any, test."""
    every = setting.study.evaluate_every * method.cycle
    groups = {column: len(data.levels[column]) for column in setting.study.groups}
    evaluate = Evaluate("validation", setting.metrics, method.predict, groups, prepared.scale)
    who = {
        VALIDATE: (*sorted(prepared.sources), *sorted(prepared.validators)),
        TEST: tuple(sorted(prepared.targets)),
    }
    more = [Exchange(n, evaluate, rounds=(every - 1, every), who=w) for n, w in who.items() if w]
    return replace(method, exchanges=(*method.exchanges, *more))
