"""Jobs that train together: each goes its own way, until all that are left wait for their batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from unseen.engine.batch_plan import Answer, Member
from unseen.engine.model_batch import Trainer

T = TypeVar("T")


class Cancelled(Exception):
    """The meeting is over, because one of its jobs failed."""


@dataclass
class Account:
    """What a job has taken, in seconds.

    Attributes:
        total: Of its ended turns, and of its models' share of the batches.
        began: When its turn began, while it has it.
    """

    total: float
    began: float

    def pause(self) -> None:
        self.total += time.monotonic() - self.began


class Meeting:
    """Where jobs bring the models of an exchange, and get them back trained.

    Note:
        Each job has a thread, and one of them runs at a time: it gives up its turn here alone, so
        that jobs may use what is global to torch. The last one to arrive trains for all.

    Args:
        trainer: Trains the models.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._turn = threading.Condition()
        self._waiting: list[tuple[Sequence[Member], list[Answer], Account]] = []
        self._jobs, self._cancelled = 0, False
        self._accounts: dict[int, Account] = {}

    def __call__(self, members: Sequence[Member]) -> list[Answer]:
        """Return these models trained, as `Trainer` does, as soon as every other job waits too."""
        trained: list[Answer] = []
        account = self._accounts[threading.get_ident()]
        account.pause()
        self._waiting.append((members, trained, account))
        self._train_if_all_wait()
        self._turn.wait_for(lambda: self._cancelled or len(trained) == len(members))
        if self._cancelled:
            raise Cancelled
        account.began = time.monotonic()
        return trained

    def seconds(self) -> float:
        """Return what the job that asks has taken: its own turns, its models' share of batches."""
        account = self._accounts[threading.get_ident()]
        return account.total + time.monotonic() - account.began

    def hold(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Return what the jobs return; raise what the first of them raised that failed.

        Args:
            jobs: Whose backends train here.
        """
        self._jobs, self._cancelled = len(jobs), False
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            try:
                outcomes = [pool.submit(self._attend, job) for job in jobs]
                errors = [outcome.exception() for outcome in outcomes]
            except BaseException:  # Ctrl-C: the jobs end where they next wait
                with self._turn:
                    self._end()
                raise
        failures = [e for e in errors if e is not None and not isinstance(e, Cancelled)]
        if failures:
            raise failures[0]
        return [outcome.result() for outcome in outcomes]

    def _attend(self, job: Callable[[], T]) -> T:
        with self._turn:
            if self._cancelled:
                raise Cancelled
            self._accounts[threading.get_ident()] = Account(0.0, time.monotonic())
            try:
                result = job()
                self._jobs -= 1
                self._train_if_all_wait()
            except BaseException:
                self._end()
                raise
            return result

    def _train_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._jobs:
            return
        waiting, self._waiting = self._waiting, []
        everyone = [member for members, _, _ in waiting for member in members]
        start = time.monotonic()
        trained = iter(self.trainer(everyone))
        each = (time.monotonic() - start) / max(1, len(everyone))
        for members, own, account in waiting:
            own += [next(trained) for _ in members]
            account.total += each * len(members)
        self._turn.notify_all()

    def _end(self) -> None:
        self._cancelled = True
        self._turn.notify_all()
