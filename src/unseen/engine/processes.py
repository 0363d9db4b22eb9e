"""Jobs over processes of this machine: whichever is free takes the next."""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from unseen.errors import UnseenError, number

T = TypeVar("T")
#: A function, and what it is called with.
Call = tuple[Callable[..., T], tuple[object, ...]]


def in_processes(calls: Iterable[Call[T]], jobs: int) -> Iterator[T]:
    """Yield the results of the calls as they finish; with jobs = 1 in this process, in order.

    Note:
        Clients that share a model's caches lose by being spread over processes (five clients on two
        cores leave one idle a sixth of the time), so it is whole jobs that are spread.

    Raises:
        UnseenError: If a worker is killed.
    """
    number("jobs", jobs, 1, whole=True)
    if jobs == 1:
        for function, arguments in calls:
            yield function(*arguments)
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    parent = os.getpid()
    with _ignoring_interrupts():
        results = pool(delayed(_work)(parent, function, *rest) for function, rest in calls)
    try:
        yield from results
    except TerminatedWorkerError:
        what = "a worker process was killed, perhaps because memory ran out."
        remedy = "Run the same command to resume, with fewer --jobs if it happens again."
        raise UnseenError(what, remedy=remedy) from None


def _work(parent: int, function: Callable[..., T], *arguments: object) -> T:
    _end_with(parent)
    return function(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent: a new run may already write where it writes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Hide Ctrl-C, which a terminal sends to all, from processes that begin here.

    Note:
        Their parent ends them. A signal that comes meanwhile reaches the parent afterwards.
    """
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
