"""One job of a study: a method on a task with a seed, from data to records on disk."""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from unseen.backend.inprocess import InProcess
from unseen.datasets import load
from unseen.datasets.base import DataSet
from unseen.exchange import Exchange, Method, keyed
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.metrics import Evaluate
from unseen.models import build
from unseen.round import play_round, start
from unseen.study import records
from unseen.study.holdout import Task
from unseen.study.prepare import Prepared, prepare
from unseen.study.records import Job, Log
from unseen.study.spec import Study
from unseen.vector import Model

#: Seconds between checkpoints. They change when a job can go on from, never what it computes.
CHECKPOINT_SECONDS = 20.0


@dataclass(frozen=True)
class Setting:
    """What all jobs of a study share; the data set is read once per process."""

    study: Study
    out: Path
    data_dir: Path | None
    model: str
    metrics: tuple[str, ...]
    checkpoint_seconds: float = CHECKPOINT_SECONDS


def run_job(setting: Setting, job: Job, task: Task) -> Job:
    """Run a job to its end, from its last checkpoint if there is one."""
    study, folder = setting.study, job.folder(setting.out)
    begun = time.monotonic()
    with reproducible(study.threads, study.device):
        data = dataset(study.dataset, setting.data_dir)
        prepared = prepare(data, task, study, job.seed)
        method = evaluated(
            compose(job.method, study.training.build(data.classes is None)), prepared, setting, data
        )
        model = Model(module(setting, prepared, job.seed), study.device)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
        found = records.load_checkpoint(folder, study.device)
        state, memories = found or (start(method, model, sorted(roster), job.seed), None)
        everyone = {**prepared.sources, **prepared.validators, **prepared.targets, **roster}
        backend = InProcess(model, everyone, memories)
        roles = {
            **dict.fromkeys(prepared.sources, "source"),
            **dict.fromkeys(prepared.validators, "ood-validation"),
            **dict.fromkeys(prepared.targets, "target"),
        }
        log = Log.resume(folder, state.round)
        saved = time.monotonic()
        try:
            while state.round < study.rounds:
                state, outcomes = play_round(
                    method,
                    state,
                    backend,
                    sorted(roster),
                    study.rounds,
                    study.participation,
                    study.on_bad_reply,
                )
                for outcome in outcomes:
                    if outcome.turn.exchange == "test":
                        log.append(
                            "target.jsonl", records.evaluations(outcome, job, roles, data.levels)
                        )
                    elif outcome.turn.exchange == "validate":
                        log.append(
                            "source.jsonl", records.evaluations(outcome, job, roles, data.levels)
                        )
                    else:
                        log.append("rounds.jsonl", [records.training(outcome)])
                if time.monotonic() - saved >= setting.checkpoint_seconds:
                    records.save_checkpoint(folder, state, backend.memories)
                    saved = time.monotonic()
        finally:
            log.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    records.mark_done(folder, time.monotonic() - begun, peak)
    return job


def evaluated(method: Method, prepared: Prepared, setting: Setting, data: DataSet) -> Method:
    """The method with two more exchanges: sources validate, targets test."""
    every = setting.study.evaluate_every
    groups = {column: len(data.levels[column]) for column in setting.study.groups}
    evaluate = Evaluate("validation", setting.metrics, method.predict, groups)
    validators = (*sorted(prepared.sources), *sorted(prepared.validators))
    schedule = (every - 1, every)
    return replace(
        method,
        exchanges=(
            *method.exchanges,
            Exchange("validate", evaluate, rounds=schedule, who=validators),
            Exchange("test", evaluate, rounds=schedule, who=tuple(sorted(prepared.targets))),
        ),
    )


def module(setting: Setting, prepared: Prepared, seed: int) -> nn.Module:
    """The study's network; its first weights depend on the seed alone."""
    built = build(setting.model, prepared.shape, prepared.outputs, keyed(f"{seed}/model"))
    if setting.study.training.buffers == "batch":
        for layer in built.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    chosen = setting.study.memory_format
    # Small convolution nets train 1.7 to 2 times as fast with channels last on a CPU.
    if chosen == "channels-last" or (chosen == "auto" and _has_convolutions(built)):
        built = built.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return built


@functools.lru_cache(maxsize=2)
def dataset(expression: str, data_dir: Path | None) -> DataSet:
    """The data set an expression names, kept for the next job of this process."""
    (call,) = parse(expression)
    return load(call.name, data_dir, **call.arguments)


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
        torch.use_deterministic_algorithms(before[1])


def _has_convolutions(network: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in network.modules())
