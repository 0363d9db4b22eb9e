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
from unseen.study.network import as_model, first_network
from unseen.study.prepare import Prepared
from unseen.study.private_jobs import checked, privatised
from unseen.study.setting import Setting
from unseen.study.watcher import check_locals, probed


@dataclass(frozen=True)
class Runtime:
    """What a job runs.

    method: as the study trains and records it. model: the study's network with its first weights,
    as the method trains it. roster: the clients that train.
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
    ) -> Self:
        """The runtime of a method's expression.

        data: names of classes and levels are enough. evaluates: with the study's evaluations.
        network: with other weights than the study's first. device: another than the study's.
        """
        study = setting.study
        method = composed(text, study, data)
        if evaluates:
            method = evaluated(method, prepared, setting, data)
        network = network if network is not None else first_network(setting, prepared, seed)
        model = as_model(network, study, prepared.shape, method, device)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
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
    def participation(self) -> float | int:
        """The share of the roster that takes part in a round, or how many."""
        # The pool of DeepAll is one client, of which no share can stay away.
        return 1.0 if self.method.gather else self.setting.study.participation

    def start(self) -> State:
        """The state before the first round."""
        return start(self.method, self.model, self.names, self.seed)

    def in_process(self, memories: Memories | None = None) -> InProcess:
        """The clients in this process, their rows in memory up to the study's limit."""
        limit = self.setting.study.memory_limit
        size = None if limit is None else int(limit * 2**30)
        return InProcess(self.model, self.clients, memories, size)


def composed(text: str, study: StudySpec, data: DataSet) -> Method:
    """The method of an expression, as the study trains and records it."""
    # What is for classes is composed for them: on numbers the plan then says that it cannot serve.
    numbers = data.classes is None and "classes" not in compose(text).asks
    method = compose(text, study.training.build(numbers))
    if "locals" in study.save or study.cross_evaluation or "gaps" in study.record:
        check_locals(method)
    return checked(privatised(probed(method) if "gaps" in study.record else method, study), study)


def evaluated(method: Method, prepared: Prepared, setting: Setting, data: DataSet) -> Method:
    """The method with two more exchanges: sources validate, targets, if there are any, test."""
    every = setting.study.evaluate_every
    groups = {column: len(data.levels[column]) for column in setting.study.groups}
    evaluate = Evaluate("validation", setting.metrics, method.predict, groups, prepared.scale)
    validators = (*sorted(prepared.sources), *sorted(prepared.validators))
    schedule = (every - 1, every)
    exchanges = [Exchange(VALIDATE, evaluate, rounds=schedule, who=validators)]
    if targets := tuple(sorted(prepared.targets)):
        exchanges.append(Exchange(TEST, evaluate, rounds=schedule, who=targets))
    return replace(method, exchanges=(*method.exchanges, *exchanges))
