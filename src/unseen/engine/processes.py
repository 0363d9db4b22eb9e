"""Jobs over processes: independent work, one thread each, whichever is free takes the next."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from unseen.errors import number

T = TypeVar("T")


def in_processes(
    calls: Iterable[tuple[Callable[..., T], tuple[object, ...]]], jobs: int
) -> Iterator[T]:
    """The results of the calls as they finish; with jobs = 1 in this process, in order.

    Clients that share a model's caches lose by being spread over processes (five clients on two
    cores leave one idle a sixth of the time), so it is whole jobs that are spread.
    """
    number("jobs", jobs, 1, whole=True)
    if jobs == 1:
        for function, arguments in calls:
            yield function(*arguments)
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    parent = os.getpid()
    with _deaf_children():
        results = pool(delayed(_work)(parent, function, *rest) for function, rest in calls)
    yield from results


def _work(parent: int, function: Callable[..., T], *arguments: object) -> T:
    """One call in a worker that ends with its parent."""
    _end_with(parent)
    return function(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, lest it write where a new run already writes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes begun here never see Ctrl-C, which a terminal sends to all: their parent ends
    them. A signal that comes meanwhile reaches the parent afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    from multiprocessing import resource_tracker as standard

    from joblib.externals.loky.backend import resource_tracker as loky

    for tracker in (standard, loky):
        tracker.ensure_running()  # now, since beginning later it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
