"""A method's rounds, timed where they train together with those of other jobs, as in `stacked`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from unseen.core import State
from unseen.core.exchange import Exchange
from unseen.core.round import play_round
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked
from unseen.studies.execution.costs.few_rows import line, shortened
from unseen.studies.execution.runtime import Runtime

#: Models of a batch that gains as much as any (docs/performance.md).
ENOUGH = 64
#: By how much each measurement is longer than the one before it.
LONGER = 4


@dataclass(frozen=True)
class Batch:
    """Jobs of one method, whose models train together.

    Attributes:
        runtimes: One for each job, all of one task and seed.
        tick: The clock.
    """

    runtimes: Sequence[Runtime]
    tick: Callable[[], float]

    def exchange(self, state: State, exchange: Exchange, budget: float) -> tuple[State, float]:
        """Return the state after an exchange of all clients, and what it takes one job, in seconds.

        Clients work on one batch of their rows, on four, and on more while the budget lasts. A line
        through the last two measurements gives what all rows take.

        Args:
            state: The state before it, of every job.
            exchange: What is played.
            budget: Seconds for measuring.
        """
        runtime = self.runtimes[0]
        sizes = [len(client.split("train")) for client in runtime.roster.values()]
        rows = min(runtime.setting.study.training.batch_size, max(sizes))
        _, total = self.play(state, exchange, rows)  # the first use of a kernel takes longer
        points: list[tuple[float, float]] = []
        while True:
            after, took = self.play(state, exchange, rows)
            again = self.play(state, exchange, rows)[1]
            # What disturbs a measurement only adds to it.
            points.append((sum(min(rows, size) for size in sizes), min(took, again)))
            total += took + again
            dear = len(points) > 1 and total + 2 * LONGER * took > budget
            if dear or rows >= max(sizes):
                break
            rows = min(LONGER * rows, max(sizes))
        constant, each = line(*points)
        return after, (constant + each * sum(sizes)) / len(self.runtimes)

    def play(self, state: State, exchange: Exchange, rows: int) -> tuple[State, float]:
        """Play an exchange in every job at once; return the first one's state, and the seconds."""
        once, meeting = replace(exchange, rounds=(0, 1), who="all"), Meeting(Trainer())

        def job(runtime: Runtime) -> State:
            torch.set_num_threads(runtime.setting.study.threads)  # of this thread
            clients = {n: shortened(c, rows, "train") for n, c in runtime.roster.items()}
            limit = runtime.setting.study.memory_bytes
            backend = Stacked(runtime.model, clients, memory_limit=limit, trainer=meeting)
            method = replace(runtime.method, exchanges=(once,))
            rounds = max(runtime.rounds, state.round + 1)
            return play_round(method, state, backend, runtime.names, rounds, on_bad_reply="drop")[0]

        start = self.tick()
        states = meeting.hold([partial(job, runtime) for runtime in self.runtimes])
        return states[0], self.tick() - start
