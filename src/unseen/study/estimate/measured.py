"""Where the methods of one task and seed are measured: their exchanges, and evaluation."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from unseen.core.exchange import Method, State, Turn
from unseen.core.metrics import EVALUATION_BATCH
from unseen.core.round import due, play_round, sample, start
from unseen.core.types import Inbox
from unseen.engine.inprocess import InProcess
from unseen.results.records import TEST, VALIDATE, Job
from unseen.spec.study import StudySpec
from unseen.study.estimate.cost import Cost, Point, Work
from unseen.study.estimate.sampled import Sampled, recipe_of, shortened, timed
from unseen.study.network import first_network
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, prepare
from unseen.study.runtime import Runtime, composed

#: Seconds of plain training that tell how a step's time grows with its examples.
PLAIN = 10.0
#: Seconds of measured evaluation, for each way to predict.
EVALUATION = 3.0
#: Examples of the first batches: BatchNorm needs two.
FIRST = 2
#: Most batches of each client in one measurement.
BATCHES = 4


def ticker(study: StudySpec) -> Callable[[], float]:
    """What measures a step: CPU seconds where one thread does all the work."""
    alone = study.threads == 1 and study.device == "cpu"
    return time.process_time if alone else time.perf_counter


@dataclass(frozen=True)
class Stage:
    """What the methods of one task and seed share. evaluations: what `evaluation` found, by all
    that it depends on; plain: a step's seconds (constant, per example) in plain training, once
    somebody asked."""

    planned: Plan
    job: Job
    prepared: Prepared
    network: nn.Module
    evaluations: dict[Hashable, tuple[float, bool]] = field(default_factory=dict)
    plain: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, planned: Plan, job: Job) -> Stage:
        """The clients and the network of a job."""
        task = next(task for task in planned.tasks if task.name == job.task)
        prepared = prepare(planned.data, task, planned.setting.study, job.seed)
        return cls(planned, job, prepared, first_network(planned.setting, prepared, job.seed))

    def bench(self, name: str) -> Bench:
        """Where a method is measured."""
        setting, data = self.planned.setting, self.planned.data
        network = copy.deepcopy(self.network)
        runtime = Runtime.of(setting, data, self.prepared, name, self.job.seed, network=network)
        study = setting.study
        limit = None if study.memory_limit is None else int(study.memory_limit * 2**30)
        backend = Sampled(runtime.model, runtime.roster, ticker(study), limit)
        return Bench(self, runtime.method, backend, runtime.participation)

    def constant(self, examples: int) -> float:
        """The share of a step's seconds that does not depend on its examples."""
        if not self.plain:
            # Uniform weights, since noise of clients goes with no others.
            bench = self.bench("fedavg(weights='uniform')")
            _, cost = bench.measured(bench.begun(), 0, 1, PLAIN, least=2)
            self.plain.append(cost.step())
        fixed, each = self.plain[0]
        return fixed / total if (total := fixed + each * examples) else 0.0


@dataclass(frozen=True)
class Bench:
    """Measures a method's exchanges one by one. fraction: who takes part, as the study has it."""

    stage: Stage
    method: Method
    backend: Sampled
    fraction: float | int

    @property
    def sizes(self) -> list[int]:
        """Examples of every client's training split."""
        return [len(client.split("train")) for client in self.backend.whole.values()]

    def begun(self) -> State:
        """The state to measure from: what begins later, such as a penalty after its warm-up, is
        on."""
        late = max(exchange.rounds[0] for exchange in self.method.exchanges if exchange.slots)
        state = start(self.method, self.backend.model, sorted(self.backend.whole), seed=0)
        return replace(state, round=late)

    def training(self, state: State, budget: float) -> tuple[float, bool]:
        """Seconds of all rounds without evaluations, and whether whole batches were measured."""
        study = self.stage.planned.setting.study
        total, whole, everyone = 0.0, True, len(self.backend.whole)
        orders = [i for i, e in enumerate(self.method.exchanges) if e.slots]
        sampled = len(sample(sorted(self.backend.whole), self.fraction, Turn(0, 0, study.rounds)))
        for order in orders:
            exchange = self.method.exchanges[order]
            recipe = recipe_of(exchange.local)
            clients = sampled if exchange.who == "sampled" else everyone
            state, cost = self.measured(state, order, clients, budget / len(orders))
            if (n := cost.large.work.examples) < study.training.batch_size:
                whole, cost = False, replace(cost, share=self.stage.constant(n))
            times = sum(due(exchange, r, study.rounds) for r in range(study.rounds))
            total += times * cost.round(self.sizes, recipe, clients)
        return total, whole

    def measured(
        self, state: State, order: int, clients: int, budget: float, least: int = 1
    ) -> tuple[State, Cost]:
        """An exchange's cost: batches are doubled, and then there are more of them, for as long as
        the budget bears it. least: sizes of batches that there are in any case."""
        fewest = min(self.sizes)
        batch = min(self.stage.planned.setting.study.training.batch_size, fewest)
        examples, spent = [min(FIRST, batch)], 0.0
        points: dict[Work, Point] = {}

        def play(work: Work) -> float:
            nonlocal state, spent
            state, point, took = self.play(state, order, work)
            points[work], spent = point.least(points.get(work)), spent + took
            return took

        play(Work(1, 1, examples[0]))  # the first use of a kernel takes longer
        took = play(Work(1, 1, examples[0]))
        # One that is twice as large, and then both of them again.
        while examples[-1] < batch and (len(examples) < least or spent + 5 * took < budget):
            examples.append(min(2 * examples[-1], batch))
            took = play(Work(1, 1, examples[-1]))
        pair = [Work(1, 1, n) for n in examples[:-3:-1]]
        number = int((budget - spent) / (3 * took)) if took else clients * BATCHES
        if examples[-1] == batch and number > 0:
            many = min(clients, number)
            steps = min(BATCHES, number // many, fewest // batch)
            pair = [replace(work, clients=many, steps=steps) for work in pair]
        for work in pair * (2 if pair[0].clients * pair[0].steps > 1 else len(examples) > 1):
            play(work)
        small = points[pair[1]] if len(pair) > 1 else None
        return state, Cost(points[pair[0]], small)

    def play(self, state: State, order: int, work: Work) -> tuple[State, Point, float]:
        """One exchange with so much work, and its seconds."""
        planned, backend = self.stage.planned, self.backend
        study = planned.setting.study
        recipe = study.training.model_copy(
            update={"epochs": None, "steps": work.steps, "batch_size": work.examples}
        )
        short = composed(
            self.method.name, study.model_copy(update={"training": recipe}), planned.data
        )
        exchange = short.exchanges[order]
        exchange = replace(exchange, rounds=(0, 1), local=timed(exchange.local, work, backend))
        backend.give(work)
        names, rounds = sorted(backend.whole), max(study.rounds, state.round + 1)
        # Every measurement begins with the first model: so many in a row may diverge where a job's
        # rounds, of whole batches, do not.
        first = {name: state.inbox[name].clone() for name in ("model", "buffers")}
        begun = backend.tick()
        state, _ = play_round(
            replace(short, exchanges=(exchange,)), state, backend, names, rounds, self.fraction,
            on_bad_reply="drop",
        )  # fmt: skip
        took = backend.tick() - begun
        state = replace(state, inbox={**state.inbox, **first})
        clients = len(backend.latest)
        step = backend.trained / (clients * work.steps)
        client = (backend.busy - backend.trained) / clients
        return state, Point(work, step, client, took - backend.busy - backend.idle), took


def evaluation(bench: Bench, inbox: Inbox) -> tuple[float, bool]:
    """Seconds of evaluating every validation split and target once, and whether the largest
    passes were measured."""
    exchanges = [e for e in bench.method.exchanges if e.name in (VALIDATE, TEST)]
    everyone, tick = bench.stage.prepared.everyone, bench.backend.tick
    sizes = {n: len(everyone[n].split("validation")) for e in exchanges for n in e.who}

    def seconds(counts: Mapping[str, int]) -> float:
        clients = {n: shortened(everyone[n], count, "validation") for n, count in counts.items()}
        backend, begun = InProcess(bench.backend.model, clients), tick()
        for order, exchange in enumerate(exchanges):
            names = [name for name in exchange.who if name in counts]
            backend.map(exchange, inbox, names, Turn(0, 0, 1, exchange.name, order=order))
        return tick() - begun

    first = next(iter(sizes))
    few = {first: min(FIRST, sizes[first])}
    each = min(seconds(few) for _ in range(2)) / few[first]
    counts = shares(sizes, int(EVALUATION / each) if each else sum(sizes.values()))
    scale = sum(sizes.values()) / sum(counts.values())
    largest = min(EVALUATION_BATCH, max(sizes.values()))
    return seconds(counts) * scale, max(counts.values()) >= largest


def shares(sizes: Mapping[str, int], number: int) -> dict[str, int]:
    """How many of `number` images each client is evaluated on; two at least, if it has them, for as
    long as there are any left.

    >>> shares({"a": 9, "b": 1, "c": 5}, 100), shares({"a": 9, "b": 1, "c": 5}, 3)
    ({'a': 9, 'b': 1, 'c': 5}, {'a': 2, 'b': 1})
    """
    found: dict[str, int] = {}
    enough = number >= sum(sizes.values())
    for name, size in sizes.items():
        left = number - sum(found.values())
        if found and left <= 0:
            break
        found[name] = size if enough else min(size, max(FIRST, number // len(sizes)))
    return found
