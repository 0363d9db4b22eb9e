"""Jobs over a Ray cluster, or over this machine by Ray: whole jobs, one worker each.

Data and records are read and written by the workers: they must lie where every machine of the
cluster sees them under one path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

from unseen.engine.messages import QUIET
from unseen.errors import UnseenError, number

T = TypeVar("T")


def in_ray(calls: Iterable[tuple[Callable[..., T], tuple[object, ...]]], jobs: int) -> Iterator[T]:
    """The results of the calls as they finish, at most `jobs` at a time.

    The cluster is that of RAY_ADDRESS, or one made here for the time being. A job whose machine is
    lost starts again elsewhere, from its last checkpoint.
    """
    number("jobs", jobs, 1, whole=True)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise UnseenError("--executor ray needs Ray: pip install 'unseen[flower]'.") from None
    waiting = list(calls)
    if not waiting:
        return
    begun = not ray.is_initialized()
    if begun:
        address = os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    work = ray.remote(num_cpus=1, max_retries=2)(_work)
    running: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                function, arguments = waiting.pop(0)
                running.append(work.remote(function, arguments))
            done, running = ray.wait(running, num_returns=1)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if begun:
            ray.shutdown()


def _work(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    """One call in a worker."""
    return function(*arguments)
