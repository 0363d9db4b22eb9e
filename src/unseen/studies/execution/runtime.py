"""What a job runs, made in one place out of a setting, its data, a method's text and a seed."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Memories, Model, start
from unseen.core.exchange import Blueprint, Exchange, Method, State
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.turn import keyed, other_seed
from unseen.data.dataset import DataSet
from unseen.data.networks import build
from unseen.data.networks.partial import choice, with_frozen_norms
from unseen.data.networks.stages import cut
from unseen.data.networks.weight_files import Report, Source
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.methods.unfit import unfit
from unseen.studies.execution.checks import check_completed, checked, privatised
from unseen.studies.execution.prepare import Prepared
from unseen.studies.execution.setting import Setting
from unseen.studies.execution.watcher import check_locals, probed
from unseen.studies.results.records import TEST, VALIDATE
from unseen.studies.settings.study import StudySpec


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
            device: Another device than the study's.
            clients: How many clients train, where not all of them are here.
        """
        study = setting.study
        method = composed(text, study, data)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
        plan = blueprint(setting, prepared, seed, clients or len(roster))
        model = as_model(adapted(method, plan), study, prepared.shape, device)
        method = method.completed(model, plan)
        check_completed(method, study, plan.clients)
        if evaluates:
            method = evaluated(method, prepared, setting, data)
        return cls(setting, prepared, method, model, dict(roster), seed)

    @property
    def clients(self) -> dict[str, Client]:
        """Everyone by name: those who train and those who evaluate."""
        return self.prepared.everyone | dict(self.roster)

    @property
    def names(self) -> tuple[str, ...]:
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
        return start(self.method, self.model, self.names, self.seed)

    def in_process(self, memories: Memories | None = None) -> InProcess:
        """Return the clients in this process, their rows in memory up to the study's limit."""
        return InProcess(self.model, self.clients, memories, self.setting.study.memory_bytes)


def composed(text: str, study: StudySpec, data: DataSet) -> Method:
    """Return the method of an expression, as the study trains and records it."""
    # What is for classes is composed for them: on others the plan then says that it cannot serve.
    kind = "classes" if "classes" in compose(text).asks else data.kind
    if kind == "times" and unfit(text, study.training.build("times")):
        kind = "numbers"
    training = study.training.build(kind)
    if study.frozen:  # images were changed before the frozen part saw them
        training = replace(training, augment=None)
    method = compose(text, training)
    if "locals" in study.save or study.cross_evaluation or "gaps" in study.record:
        check_locals(method)
    return checked(privatised(probed(method) if "gaps" in study.record else method, study), study)


def evaluated(method: Method, prepared: Prepared, setting: Setting, data: DataSet) -> Method:
    """Add two exchanges to the method: sources validate, targets, if there are any, test."""
    if setting.study.privacy.metrics == "none":
        return method
    every = setting.study.evaluate_every * method.cycle
    groups = {column: len(data.levels[column]) for column in setting.study.groups}
    evaluate = Evaluate("validation", setting.metrics, method.predict, groups, prepared.scale)
    who = {
        VALIDATE: (*sorted(prepared.sources), *sorted(prepared.validators)),
        TEST: tuple(sorted(prepared.targets)),
    }
    more = [Exchange(n, evaluate, rounds=(every - 1, every), who=w) for n, w in who.items() if w]
    return replace(method, exchanges=(*method.exchanges, *more))


def first_network(setting: Setting, prepared: Prepared, seed: int) -> nn.Module:
    """Return the study's network; its first weights depend on the seed and the file alone."""
    return first_network_and_report(setting, prepared, seed)[0]


def first_model(
    setting: Setting, prepared: Prepared, seed: int, device: str | None = None
) -> Model:
    """Return the study's network with its first weights, as no method in particular trains it."""
    network = first_network(setting, prepared, seed)
    return as_model(network, setting.study, prepared.shape, device)


def first_network_and_report(
    setting: Setting, prepared: Prepared, seed: int
) -> tuple[nn.Module, Report | None]:
    """Return the network, and what became of the file of initial weights if there is one."""
    recipe = setting.model, prepared.whole, prepared.outputs, seed, setting.weights
    if not setting.study.frozen:
        module, report = built(*recipe)
        return as_trained(module, setting.study), report
    rest, report = rest_of(*recipe, setting.study.freeze)
    return as_trained(copy.deepcopy(rest), setting.study), report


def built(
    model: str, shape: tuple[int, ...], outputs: int, seed: int, weights: Source | None
) -> tuple[nn.Module, Report | None]:
    """Return a whole network with its first weights, and what became of their file."""
    module = build(model, shape, outputs, keyed(f"{seed}/model"))
    return module, weights.load(module) if weights is not None else None


@functools.lru_cache(maxsize=16)
def rest_of(
    model: str, shape: tuple[int, ...], outputs: int, seed: int, weights: Source | None, freeze: str
) -> tuple[nn.Module, Report | None]:
    """Return what is behind the frozen part of a network; to be copied, since jobs share it.

    Note:
        Most of a whole network and of its file is in the frozen part. To make and to read that for
        every job took more time than the training of what is behind it.
    """
    module, report = built(model, shape, outputs, seed, weights)
    return cut(module, freeze)[1], report


def formed(module: nn.Module, study: StudySpec) -> nn.Module:
    """Return the part of a whole network that the study trains, as it trains it."""
    return as_trained(cut(module, study.freeze)[1] if study.frozen else module, study)


def as_trained(module: nn.Module, study: StudySpec) -> nn.Module:
    """Return the part that trains with the study's kind of statistics and its format."""
    if study.training.buffers == "frozen":
        module = with_frozen_norms(module)
    module = choice(study.train)(module)
    if study.training.buffers == "batch":
        for layer in module.modules():
            if isinstance(layer, _BatchNorm):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    # Small convolution nets train 1.7 to 2 times as fast with channels last on a CPU.
    if has_layer(module, nn.Conv2d):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def blueprint(
    setting: Setting,
    prepared: Prepared,
    seed: int,
    clients: int,
    network: nn.Module | None = None,
) -> Blueprint:
    """Return what a method builds its network of.

    Args:
        setting: What all jobs share.
        prepared: The clients.
        seed: The job's seed.
        clients: How many of them train.
        network: A network with other weights than the study's first.
    """

    def another(m: int) -> nn.Module:
        if m == 0 and network is not None:
            return copy.deepcopy(network)
        return first_network(setting, prepared, other_seed(seed, m))

    first = network if network is not None else first_network(setting, prepared, seed)
    shape, outputs, rounds = prepared.shape, prepared.outputs, setting.study.rounds
    return Blueprint(
        first, shape, outputs, another, prepared.classes, rounds, clients, prepared.frozen
    )


def as_model(
    network: nn.Module, study: StudySpec, shape: tuple[int, ...], device: str | None = None
) -> Model:
    """Return a network as the study computes with it, in its precision.

    Args:
        network: The network.
        study: The study.
        shape: The shape of one input.
        device: Another device than the study's.
    """
    return Model(network, device or study.device, shape, study.precision)


def adapted(method: Method, blueprint: Blueprint) -> nn.Module:
    """Return the network as the method trains it, or refuse what the method cannot serve."""
    if reason := method.unfit(blueprint):
        raise UnseenError(f"{method.name} {reason}.")
    return method.adapt(blueprint) if method.adapt is not None else blueprint.network


def has_layer(network: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer of the network is of a kind."""
    return any(isinstance(layer, kind) for layer in network.modules())
