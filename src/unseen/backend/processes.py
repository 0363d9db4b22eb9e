"""Jobs over processes: independent work, one thread each, whichever is free takes the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_processes(
    calls: Iterable[tuple[Callable[..., T], tuple[object, ...]]], jobs: int
) -> Iterator[T]:
    """The results of the calls as they finish; with jobs = 1 in this process, in order.

    Clients that share a model's caches lose by being spread over processes (five clients on two
    cores leave one idle a sixth of the time), so it is whole jobs that are spread.
    """
    if jobs == 1:
        for function, arguments in calls:
            yield function(*arguments)
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    yield from pool(delayed(function)(*arguments) for function, arguments in calls)
