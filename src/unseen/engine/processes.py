"""Jobs over processes of this machine, or over a Ray cluster: whichever is free takes the next."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, TypeVar

from unseen.errors import UnseenError, number, optional

T = TypeVar("T")
#: A function, and what it is called with.
Call = tuple[Callable[..., T], tuple[object, ...]]
#: Workers are forked from a process that has only imported this; Windows cannot fork.
PRELOAD = ["unseen.study.runner"]
WAYS = multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in WAYS else "spawn")


def expect_workers(jobs: int) -> None:
    """Let what workers need be imported beside whatever this process does before it calls them."""
    if jobs == 1 or CONTEXT.get_start_method() == "spawn":
        return
    from multiprocessing import forkserver, resource_tracker

    CONTEXT.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # now, since beginning later it would unblock the signal
    with _deaf_children():
        forkserver.ensure_running()


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
    expect_workers(jobs)
    with _Workers(jobs) as workers:
        waiting, running = iter(calls), set[Future[bytes]]()
        while True:
            while len(running) < 2 * jobs and (call := next(waiting, None)) is not None:
                running.add(workers.submit(call))
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield pickle.loads(future.result())


def in_ray(calls: Iterable[Call[T]], jobs: int) -> Iterator[T]:
    """Yield the results of the calls as they finish, at most `jobs` at a time.

    Note:
        The cluster is that of RAY_ADDRESS, or one made here for the time being. Data and records
        are read and written by the workers: they must lie where every machine of the cluster sees
        them under one path. A job whose machine is lost starts again elsewhere, from its last
        checkpoint.
    """
    number("jobs", jobs, 1, whole=True)
    from unseen.engine.messages import QUIET

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


class _Workers:
    """Processes that carry out calls. They end with the block, after an error amid their calls.

    Args:
        jobs: How many there are at most.
    """

    def __init__(self, jobs: int) -> None:
        self.pool = ProcessPoolExecutor(jobs, CONTEXT, _begin, (dict(os.environ),))
        self.processes: set[BaseProcess] = set()

    def submit(self, call: Call[Any]) -> Future[bytes]:
        """Begin a call, in a new process if all are busy.

        Note:
            A script's functions and classes travel by value: what a worker imports is not the
            script, which might begin the study again.
        """
        import cloudpickle

        packed, others = cloudpickle.dumps(call), set(multiprocessing.active_children())
        with _deaf_children(), _script_hidden():
            future = self.pool.submit(_work, packed)
        self.processes |= set(multiprocessing.active_children()) - others
        return future

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for process in self.processes:
                process.terminate()
        self.pool.shutdown(cancel_futures=True)
        if kind is not None and issubclass(kind, BrokenProcessPool):
            what = "a worker process was killed, perhaps because memory ran out."
            remedy = "Run the same command to resume, with fewer --jobs if it happens again."
            raise UnseenError(what, remedy=remedy) from None


def _work(packed: bytes) -> bytes:
    import cloudpickle

    function, arguments = pickle.loads(packed)
    result: bytes = cloudpickle.dumps(function(*arguments))
    return result


def _begin(environment: dict[str, str]) -> None:
    """Take the parent's environment, and end soon after it: a new run may write where this does."""
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Hide the script that runs from new processes, which would import it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Hide Ctrl-C, which a terminal sends to all, from processes that begin here.

    Note:
        Their parent ends them. A signal that comes meanwhile reaches the parent afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
