"""Jobs over processes of this machine, or over a Ray cluster: whichever is free takes the next."""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from unseen.engine.messages import QUIET
from unseen.errors import UnseenError, number, optional

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


def in_ray(calls: Iterable[Call[T]], jobs: int) -> Iterator[T]:
    """Yield the results of the calls as they finish, at most `jobs` at a time.

    Note:
        The cluster is that of RAY_ADDRESS, or one made here for the time being. Data and records
        are read and written by the workers: they must lie where every machine of the cluster sees
        them under one path. A job whose machine is lost starts again elsewhere, from its last
        checkpoint.
    """
    number("jobs", jobs, 1, whole=True)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = optional("ray", "--executor ray needs", "flower", "take --executor processes")
    waiting = list(calls)
    if not waiting:
        return
    own_cluster = not ray.is_initialized()
    if own_cluster:
        address = os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    work = ray.remote(num_cpus=1, max_retries=2)(lambda function, rest: function(*rest))
    running: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                function, arguments = waiting.pop(0)
                running.append(work.remote(function, arguments))
            ready, running = ray.wait(running, num_returns=1)
            try:
                yield ray.get(ready[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if own_cluster:
            ray.shutdown()


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
