"""A method's rounds, timed: each exchange as it is, with all clients or as many as a budget allows.

Where it allows none, batches are doubled from 2 examples while it bears them, and a line through
the last two gives a step's constant and what each example adds.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from torch import nn

from unseen.core import Client, Exchange, Inbox, Local, Memory, Model, Reply, State, Turn
from unseen.core.metrics.evaluation import EVALUATION_BATCH
from unseen.core.parts import Wrapper, innermost, rewrapped
from unseen.core.round import due, play_round, sample
from unseen.core.row_store import MIB
from unseen.engine.inprocess import InProcess, Ready
from unseen.engine.stacked import models_of
from unseen.methods.compose import method as compose
from unseen.methods.local.train import Train
from unseen.studies.execution.costs.batch_costs import ENOUGH, Batch
from unseen.studies.execution.costs.few_rows import amount, line, shortened
from unseen.studies.execution.plan import Plan
from unseen.studies.execution.prepare import Prepared, prepare
from unseen.studies.execution.runtime import Runtime, composed, first_network
from unseen.studies.results.records import TEST, VALIDATE, Job
from unseen.studies.settings.study import StudySpec

#: Seconds of measured evaluation, for each way to predict.
EVALUATION = 3.0
#: Models that a job holds beside its clients' replies, as measured: the network, its first weights,
#: the state, and what an exchange makes of them.
MODELS = 8
#: Examples of the first batches: BatchNorm needs two.
FIRST = 2


@dataclass(frozen=True)
class Stage:
    """What the methods of one task and seed share.

    Attributes:
        planned: The study.
        job: The job whose task and seed they are.
        prepared: Its clients.
        network: Its network.
        evaluations: What `Bench.evaluation` found, by all that it depends on.
    """

    planned: Plan
    job: Job
    prepared: Prepared
    network: nn.Module
    evaluations: dict[Hashable, tuple[float, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: Plan, job: Job) -> Stage:
        task = next(task for task in planned.tasks if task.name == job.task)
        prepared = prepare(planned.data, task, planned.setting.study, job.seed)
        return cls(planned, job, prepared, first_network(planned.setting, prepared, job.seed))

    def bench(self, name: str) -> Bench:
        setting, network = self.planned.setting, copy.deepcopy(self.network)
        parts = setting, self.planned.data, self.prepared, name, self.job.seed
        runtime = Runtime.of(*parts, network=network)
        return Bench(self, runtime, Sampled(runtime, ticker(setting.study)))


def ticker(study: StudySpec) -> Callable[[], float]:
    """Return the clock: CPU seconds where one thread does all the work."""
    alone = study.threads == 1 and study.device == "cpu"
    return time.process_time if alone else time.perf_counter


class Sampled(InProcess):
    """Clients of which the first few do their work, and the others hand in what those made.

    The server meets as many rows as in the study, so that its rules cost, and take the memory,
    that they will.

    Attributes:
        count: How many clients of an exchange work.
        busy: Seconds of their work.
        idle: Seconds of making the others' replies.
        trained: Seconds of their steps alone, where these are timed.
    """

    joint = False

    def __init__(self, runtime: Runtime, tick: Callable[[], float]) -> None:
        self.study = runtime.setting.study
        super().__init__(runtime.model, runtime.roster, memory_limit=self.study.memory_bytes)
        self.whole, self.tick = dict(self.clients), tick
        self.begin(1, None)

    def begin(self, count: int, rows: int | None) -> None:
        """Let `count` clients work at the next exchange, on `rows` of their rows or on all."""
        self.count, self.busy, self.idle, self.trained = count, 0.0, 0.0, 0.0
        self.replies: list[tuple[Reply, Memory]] = []
        self.clients = dict(self.whole)
        if rows is not None:
            self.clients = {n: shortened(c, rows, "train") for n, c in self.whole.items()}

    def _one(
        self, exchange: Exchange, inbox: Inbox, name: str, turn: Turn, k: int, ready: Ready
    ) -> Reply:
        start, label = self.tick(), (turn.round, turn.order)
        if len(self.replies) < self.count:
            reply = super()._one(exchange, inbox, name, turn, k, ready)
            self.replies.append((reply, self.memories.before(name, (label[0], label[1] + 1))))
            self.busy += self.tick() - start
            return reply
        reply, memory = self.replies[k % self.count]
        rows = {slot: row.clone() for slot, row in reply.rows.items()}
        if "model" in rows:
            # Another direction of the same length: equal rows would be a special case to rules.
            rows["model"] = self.matrix[k].copy_(rows["model"].roll(k))
        self.memories.write(name, label, {key: value.clone() for key, value in memory.items()})
        self.idle += self.tick() - start
        return Reply(rows, reply.scalars)


@dataclass(frozen=True)
class Timed(Wrapper):
    """Adds the seconds of the local that takes the steps to those of its backend."""

    inner: Local
    backend: Sampled

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        start = self.backend.tick()
        reply = self.inner(model, inbox, client, memory, turn)
        self.backend.trained += self.backend.tick() - start
        return reply


@dataclass(frozen=True)
class Bench:
    """Measures a method's exchanges one by one.

    Attributes:
        stage: What it shares with other methods.
        runtime: What a job of the method runs.
        backend: Its clients.
    """

    stage: Stage
    runtime: Runtime
    backend: Sampled

    @property
    def memory(self) -> float:
        """MiB that a job holds: its models, and replies, where these are whole models."""
        vector, exchanges = self.runtime.model.vector, self.runtime.method.exchanges
        whole = any(exchange.slots and exchange.reads is None for exchange in exchanges)
        copies = MODELS + (len(self.runtime.roster) if whole else 0)
        return copies * vector.numel() * vector.element_size() / MIB

    def often(self, exchange: Exchange) -> int:
        """Return how many rounds of a job have the exchange."""
        rounds = self.runtime.rounds
        return sum(due(exchange, round, rounds) for round in range(rounds))

    def job(self, budget: float) -> tuple[float, bool]:
        """Return the seconds of one job, and whether whole batches were measured.

        Args:
            budget: Seconds for measuring its training.
        """
        method = self.runtime.method
        batch = self.batch()
        if compose(method.name).sized is not None:
            return self.first_rounds(batch, budget), batch is None
        # What begins later, such as a penalty after its warm-up, is on.
        late = max(exchange.rounds[0] for exchange in method.exchanges if exchange.slots)
        state = replace(self.runtime.start(), round=late)
        key = (method.predict, method.adapt)
        if key not in self.stage.evaluations:
            self.stage.evaluations[key] = self.evaluation(state.inbox)
        once, whole = self.stage.evaluations[key]
        total = once * self.often(method.exchanges[-1])
        orders = [i for i, exchange in enumerate(method.exchanges) if exchange.slots]
        for order in orders:
            exchange, share = method.exchanges[order], budget / len(orders)
            if batch is None:
                state, seconds, complete = self.exchange(state, order, share)
            else:
                state, seconds = batch.exchange(state, exchange, share)
                complete = False  # the study's batches may be larger
            seconds *= self.sampled(exchange) * self.often(exchange)
            total, whole = total + seconds, whole and complete
        return total, whole

    def batch(self) -> Batch | None:
        """Return the jobs beside which this one trains; None where it trains by itself."""
        planned, name = self.stage.planned, self.runtime.method.name
        study = planned.setting.study
        if not study.stacked or name in planned.alone:
            return None
        models = models_of(self.runtime.method) * len(self.runtime.roster)
        most = min(len(planned.missing), max(1, study.stacked // models))
        others = range(1, min(most, math.ceil(ENOUGH / models)))
        runtimes = self.runtime, *(self.stage.bench(name).runtime for _ in others)
        return Batch(runtimes, self.backend.tick)

    def sampled(self, exchange: Exchange) -> float:
        """Return the share of the clients that take part in an exchange."""
        if exchange.who != "sampled":
            return 1.0
        names, turn = self.runtime.names, Turn(0, 0, self.runtime.rounds)
        return len(sample(names, self.runtime.participation, turn)) / len(names)

    def first_rounds(self, batch: Batch | None, budget: float) -> float:
        """Return the seconds of a job whose messages depend on the network, from its first rounds.

        Every exchange is timed in the round in which it begins, with all clients.
        """
        method, rounds, state = self.runtime.method, self.runtime.rounds, self.runtime.start()
        training = [exchange for exchange in method.exchanges if exchange.slots]
        backend, names, total = self.runtime.in_process(), self.runtime.names, 0.0
        for exchange in sorted(training, key=lambda exchange: exchange.rounds[0]):
            state = replace(state, round=exchange.rounds[0])
            if batch is not None:
                state, seconds = batch.exchange(state, exchange, budget / len(training))
                total += seconds * self.sampled(exchange) * self.often(exchange)
                continue
            alone, took = replace(method, exchanges=(exchange,)), list[float]()
            for _ in range(2):  # the first use of a kernel takes longer
                start = self.backend.tick()
                after, _ = play_round(alone, state, backend, names, rounds)
                took.append(self.backend.tick() - start)
            state, total = after, total + min(took) * self.often(exchange)
        return total

    def exchange(self, state: State, order: int, budget: float) -> tuple[State, float, bool]:
        """Return the state after an exchange, its seconds, and whether a whole batch was seen."""
        exchange = self.runtime.method.exchanges[order]
        sizes = [len(self.backend.whole[name].split("train")) for name in self.runtime.names]
        batch_size = self.runtime.setting.study.training.batch_size
        batch = min(batch_size, *sizes)
        # Seconds of one client's step by its examples, and of the rest of its work.
        steps, rests = dict[int, float](), dict[int, float]()
        so_far = server = 0.0

        def play(worked: int, rows: int | None) -> tuple[float, float]:
            nonlocal state, so_far, server
            state, took = self.play(state, order, worked, rows)
            clients, steps = self.backend.busy, self.backend.trained
            so_far, server = so_far + took, took - clients - self.backend.idle
            return steps, clients - steps

        n = min(FIRST, batch)
        play(1, n)  # the first use of a kernel takes longer
        while True:
            # What disturbs a measurement only adds to it.
            steps[n], rests[n] = map(min, play(1, n), play(1, n))
            if n == batch or (len(steps) > 1 and so_far + 8 * (steps[n] + rests[n]) > budget):
                break
            n = min(2 * n, batch)
        (step, each), (rest, row) = (line(*list(x.items())[-2:]) for x in (steps, rests))
        costs, trains = [], innermost(exchange.local)
        for size in sizes:
            count, examples = amount(size, trains.training) if isinstance(trains, Train) else (0, 0)
            costs.append(step * count + each * examples + rest + row * size)
        total, fitting = sum(costs), 0
        while n == batch and fitting < len(costs) and sum(costs[: fitting + 1]) < budget - so_far:
            fitting += 1
        if fitting and total:
            total *= sum(play(fitting, None)) / sum(costs[:fitting])
        return state, total + server, n >= batch_size

    def play(self, state: State, order: int, worked: int, rows: int | None) -> tuple[State, float]:
        """Play one exchange; return the state after it, and its seconds.

        Args:
            state: The state before it.
            order: Its place among the method's exchanges.
            worked: How many clients work.
            rows: Examples of the one step that they take; None for all that the study asks for.
        """
        method, backend = self.runtime.method, self.backend
        local = method.exchanges[order].local
        if rows is not None:
            recipe, study = {"epochs": None, "steps": 1, "batch_size": rows}, backend.study
            training = study.training.model_copy(update=recipe)
            study = study.model_copy(update={"training": training})
            shortest = composed(method.name, study, self.stage.planned.data)
            local = rewrapped(shortest.exchanges[order].local, self._one_step)
        exchange = replace(method.exchanges[order], local=local, rounds=(0, 1), who="all")
        backend.begin(worked, rows)
        # Every measurement begins with the first model: many in a row of small batches may diverge.
        first = {name: state.inbox[name].clone() for name in ("model", "buffers")}
        rounds = max(self.runtime.rounds, state.round + 1)
        alone, names = replace(method, exchanges=(exchange,)), self.runtime.names
        start = backend.tick()
        state, _ = play_round(alone, state, backend, names, rounds, on_bad_reply="drop")
        took = backend.tick() - start
        return replace(state, inbox={**state.inbox, **first}), took

    def _one_step(self, local: Local) -> Local:
        """Return a local that trains for one step, whatever the method says, and is timed."""
        if not isinstance(local, Train):
            return local
        training = replace(local.training, epochs=None, steps=1, drop_last=False)
        return Timed(replace(local, training=training), self.backend)

    def evaluation(self, inbox: Inbox) -> tuple[float, bool]:
        """Return the seconds of evaluating every validation split and target once.

        The second value says whether the largest passes were measured.
        """
        exchanges = [e for e in self.runtime.method.exchanges if e.name in (VALIDATE, TEST)]
        everyone, tick = self.stage.prepared.everyone, self.backend.tick
        sizes = {n: len(everyone[n].split("validation")) for e in exchanges for n in e.who}

        def seconds(rows: int) -> float:
            short = {name: shortened(everyone[name], rows, "validation") for name in sizes}
            backend, start = InProcess(self.backend.model, short), tick()
            for order, exchange in enumerate(exchanges):
                turn = Turn(0, 0, 1, exchange.name, order=order)
                backend.map(exchange, inbox, list(exchange.who), turn)
            return tick() - start

        few = min(seconds(FIRST), seconds(FIRST))
        largest = max(sizes.values())
        rows = min(largest, max(FIRST, int(EVALUATION / few * FIRST))) if few else largest
        scale = sum(sizes.values()) / sum(min(size, rows) for size in sizes.values())
        took = few if rows == FIRST else seconds(rows)
        return took * scale, rows >= min(EVALUATION_BATCH, largest)
