"""What a study will cost: a little of every method's work, timed and scaled to all of it.

What is timed of an exchange: the steps of training, as seconds per step and per example; the rest
of what a client does, per client and per example of its split; and what the server does. Cheap
studies are measured in whole batches of all clients, dear ones in as many examples as the time
allows; how a step's time grows from there to a whole batch is then that of plain training, of which
larger batches are measured.
"""

from __future__ import annotations

import copy
import math
import resource
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from unseen.backend.inprocess import InProcess
from unseen.client import Client
from unseen.exchange import Exchange, Inbox, Local, Memory, Method, Reply, State, Turn
from unseen.metrics import EVALUATION_BATCH
from unseen.round import due, play_round, sample, start
from unseen.study.job import EVALUATIONS, adapted, composed, evaluated, module, reproducible
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, prepare
from unseen.study.records import Job
from unseen.study.spec import Study
from unseen.training import Training
from unseen.vector import Model

#: Seconds of measured training of all methods together, and the most for one.
SECONDS, MOST = 50.0, 6.0
#: Seconds of plain training that tell how a step's time grows with its examples.
PLAIN = 10.0
#: Seconds of measured evaluation, for each way to predict.
EVALUATION = 3.0
#: Examples of the first batches: BatchNorm needs two.
FIRST = 2
#: Most batches of each client in one measurement.
BATCHES = 4
#: Seconds after which the methods are named as they are measured.
SILENT = 3.0


@dataclass(frozen=True)
class Estimate:
    """One method's jobs. seconds: of one job; jobs: how many are missing; whole: whether batches
    as large as the study's were measured, in training and evaluation, so that a job takes no more
    memory."""

    method: str
    seconds: float
    jobs: int
    whole: bool = True

    @property
    def total(self) -> float:
        """Seconds of CPU for all that is missing, one job after the other."""
        return self.seconds * self.jobs


def estimates(planned: Plan) -> tuple[list[Estimate], float]:
    """An estimate per method that has jobs missing, and the most memory that this process took,
    in MiB.

    It holds for methods whose rounds are alike after those of their warm-up. With one thread it
    counts CPU time, which other processes do not change.
    """
    study, found = planned.setting.study, []
    missing = [job.method for job in planned.missing]
    names = [name for name in planned.methods if name in missing]
    begun = time.monotonic()
    with reproducible(study.threads, study.device):
        budget, stage = min(MOST, SECONDS / max(1, len(names))), None
        for i, name in enumerate(names):
            if time.monotonic() - begun > SILENT:
                print(f"{name} ({i + 1} of {len(names)}) ...", file=sys.stderr, flush=True)
            job = next(job for job in planned.missing if job.method == name)
            if stage is None or (stage.job.task, stage.job.seed) != (job.task, job.seed):
                stage = Stage.of(planned, job)
            seconds, whole = _job(stage, name, budget)
            found.append(Estimate(name, seconds, missing.count(name), whole))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found, peak


def ticker(study: Study) -> Callable[[], float]:
    """What measures a step: CPU seconds where one thread does all the work."""
    alone = study.threads == 1 and study.device == "cpu"
    return time.process_time if alone else time.perf_counter


@dataclass(frozen=True)
class Stage:
    """What the methods of one task and seed share. evaluations: what `_evaluation` found, by all
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
        return cls(planned, job, prepared, module(planned.setting, prepared, job.seed))

    def bench(self, name: str) -> Bench:
        """Where a method is measured."""
        setting, prepared, data = self.planned.setting, self.prepared, self.planned.data
        study = setting.study
        method = evaluated(composed(name, study, data), prepared, setting, data)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
        network = adapted(method, copy.deepcopy(self.network))
        model = Model(network, study.device, prepared.shape, study.precision)
        limit = None if study.memory_limit is None else int(study.memory_limit * 2**30)
        # The pool of DeepAll is one client, of which no share can stay away.
        fraction = 1.0 if method.gather else study.participation
        return Bench(self, method, Sampled(model, roster, ticker(study), limit), fraction)

    def constant(self, examples: int) -> float:
        """The share of a step's seconds that does not depend on its examples."""
        if not self.plain:
            # Uniform weights, since noise of clients goes with no others.
            bench = self.bench("fedavg(weights='uniform')")
            _, cost = bench.measured(bench.begun(), 0, 1, PLAIN, least=2)
            self.plain.append(cost.step())
        fixed, each = self.plain[0]
        return fixed / total if (total := fixed + each * examples) else 0.0


def _job(stage: Stage, name: str, budget: float) -> tuple[float, bool]:
    """Seconds of one job of a method, and whether whole batches were measured."""
    study, bench = stage.planned.setting.study, stage.bench(name)
    method, state = bench.method, bench.begun()
    key = (method.predict, method.adapt)
    if key not in stage.evaluations:
        stage.evaluations[key] = _evaluation(bench, state.inbox)
    once, complete = stage.evaluations[key]
    times = sum(due(method.exchanges[-1], r, study.rounds) for r in range(study.rounds))
    seconds, whole = bench.training(state, budget)
    return seconds + once * times, whole and complete


@dataclass(frozen=True)
class Work:
    """What a measurement has: clients that train, their batches, examples in each."""

    clients: int
    steps: int
    examples: int

    @property
    def rows(self) -> int:
        """Examples of a client's training split."""
        return self.steps * self.examples


@dataclass(frozen=True)
class Point:
    """What a measurement found. step: seconds of one step of training; client: of the rest of what
    a client does; server: of what the server does."""

    work: Work
    step: float
    client: float
    server: float

    def least(self, other: Point | None) -> Point:
        """The least of two measurements of the same work: what disturbs only adds."""
        if other is None:
            return self
        pairs = zip(self._seconds, other._seconds, strict=True)
        return Point(self.work, *(min(pair) for pair in pairs))

    @property
    def _seconds(self) -> tuple[float, float, float]:
        return self.step, self.client, self.server


@dataclass(frozen=True)
class Cost:
    """Seconds of an exchange, from a measurement and one of smaller batches, if there is one.

    share: of the first one's step, what does not depend on the examples; none where the two tell.
    It stands for the rest as well where there is no second.
    """

    large: Point
    small: Point | None = None
    share: float | None = None

    def step(self) -> tuple[float, float]:
        """Seconds of a step, and more for each of its examples."""
        a, b = self.large, self.small
        if self.share is not None:
            return a.step * self.share, a.step * (1 - self.share) / a.work.examples
        return line(a.work.examples, a.step, *((b.work.examples, b.step) if b else (0, 0.0)))

    def rest(self) -> tuple[float, float]:
        """Seconds of the rest of what a client does, and more for each example of its split."""
        a, b = self.large, self.small
        if b is None and self.share is not None:
            return a.client * self.share, a.client * (1 - self.share) / a.work.rows
        return line(a.work.rows, a.client, *((b.work.rows, b.client) if b else (0, 0.0)))

    def round(self, sizes: Sequence[int], recipe: Training | None, clients: int) -> float:
        """One round's, for clients of which so many of the roster take part.

        sizes: examples of the roster's training splits; recipe: how the exchange trains, if it
        does.
        """
        (fixed, each), (apart, row) = self.step(), self.rest()
        total = sum(apart + row * size for size in sizes)
        if recipe is not None:
            for steps, examples in (drawn(size, recipe) for size in sizes):
                total += fixed * steps + each * examples
        return total / len(sizes) * clients + self.large.server


def line(x: float, y: float, x0: float, y0: float) -> tuple[float, float]:
    """The constant and the slope, neither negative, of a line through (x, y), and near (x0, y0).

    >>> line(4, 9.0, 2, 5.0), line(4, 8.0, 2, 9.0), line(4, 8.0, 2, 1.0)
    ((1.0, 2.0), (8.0, 0.0), (0.0, 2.0))
    """
    slope = min(max(0.0, (y - y0) / (x - x0)), y / x)
    return y - slope * x, slope


def drawn(size: int, recipe: Training) -> tuple[int, int]:
    """Steps and examples of one round of a client with so many examples."""
    batch = recipe.batch_size
    steps = size // batch if recipe.drop_last else math.ceil(size / batch)
    examples = min(size, steps * batch)
    if recipe.epochs is not None:
        return recipe.epochs * steps, recipe.epochs * examples
    assert recipe.steps is not None  # one of the two is set
    return recipe.steps, round(recipe.steps * examples / max(1, steps))


class Sampled(InProcess):
    """Clients of which some do a little of their work, and the others hand in what those made.

    The server meets as many rows as in the study, and what rules and memories take is there, but
    only the first `work.clients` of an exchange are worked for. busy: seconds of these;
    idle: of making the others' replies; trained: of steps alone.
    """

    def __init__(
        self,
        model: Model,
        clients: Mapping[str, Client],
        tick: Callable[[], float],
        memory_limit: int | None = None,
    ) -> None:
        self.whole, self.tick = clients, tick
        self.busy = self.idle = self.trained = 0.0
        self.work = Work(1, 1, 1)
        self.latest: list[tuple[Reply, Memory]] = []
        few = {name: shortened(client, 1) for name, client in clients.items()}
        super().__init__(model, few, memory_limit=memory_limit)

    def give(self, work: Work) -> None:
        """What is done next."""
        self.work, self.latest = work, []
        self.busy = self.idle = self.trained = 0.0
        device = self.model.device
        for name, client in self.whole.items():
            short = shortened(client, work.rows)
            self.clients[name] = replace(short, train=short.split("train").to(device))

    def _one(self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int) -> Reply:
        begun, label = self.tick(), (turn.round, turn.order)
        if len(self.latest) < self.work.clients:
            reply = super()._one(exchange, inbox, name, turn, k)
            kept = self.memories.before(name, (turn.round, turn.order + 1))
            self.latest.append((reply, kept))
            self.busy += self.tick() - begun
            return reply
        reply, memory = self.latest[k % self.work.clients]
        rows = {slot: row.clone() for slot, row in reply.rows.items()}
        if "model" in rows:
            # Another direction of the same length: equal rows would be a special case to rules.
            rows["model"] = self.matrix[k].copy_(rows["model"].roll(k))
        self.memories.write(name, label, {key: value.clone() for key, value in memory.items()})
        self.idle += self.tick() - begun
        return Reply(rows, reply.scalars)


@dataclass(frozen=True)
class Timed:
    """Adds the seconds of the local that takes the steps to those of its backend."""

    local: Local
    backend: Sampled

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        begun = self.backend.tick()
        found = self.local(model, inbox, client, memory, turn)
        self.backend.trained += self.backend.tick() - begun
        return found


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


def recipe_of(local: Any) -> Training | None:
    """How the innermost local trains, if it does."""
    while hasattr(local, "local"):
        local = local.local
    found: Training | None = getattr(local, "training", None)
    return found


def timed(local: Any, work: Work, backend: Sampled) -> Any:
    """The local with its innermost part timed where that trains, for so many steps whatever the
    method says."""
    if hasattr(local, "local"):
        return replace(local, local=timed(local.local, work, backend))
    if not hasattr(local, "training"):
        return local
    training = replace(local.training, epochs=None, steps=work.steps, drop_last=False)
    return Timed(replace(local, training=training), backend)


def _evaluation(bench: Bench, inbox: Inbox) -> tuple[float, bool]:
    """Seconds of evaluating every validation split and target once, and whether the largest
    passes were measured."""
    exchanges = [e for e in bench.method.exchanges if e.name in EVALUATIONS]
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


def shortened(client: Client, rows: int, name: str = "train") -> Client:
    """The client with so many rows of one split, spread over it so that classes are there, and
    without the other."""
    split = client.split(name)
    spread = torch.linspace(0, len(split) - 1, min(rows, len(split)), dtype=torch.float64)
    short = split.take(spread.round().long())
    if name == "train":
        return replace(client, train=short, validation=None)
    return replace(client, train=None, validation=short)


def report(found: Sequence[Estimate], peak: float, processes: int) -> list[str]:
    """The estimates as lines for people, the longest first."""
    if not found:
        return ["nothing is left to run"]
    lines = ["estimate, from short rounds on this machine:"]
    for one in sorted(found, key=lambda e: -e.total):
        lines.append(f"  {one.method}: {one.jobs} x {clock(one.seconds)} = {clock(one.total)}")
    total = sum(one.total for one in found)
    # Larger batches than those that were measured take more.
    least = "" if all(one.whole for one in found) else "at least "
    lines.append(
        f"  all: {clock(total)} in one process, about {clock(total / processes)} in {processes}; "
        f"{least}{peak / 1024:.1f} GiB of memory in each"
    )
    return lines


def clock(seconds: float) -> str:
    """
    >>> clock(0.4), clock(75), clock(4000), clock(200000)
    ('0.4 s', '1.2 min', '1.1 h', '2.3 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
