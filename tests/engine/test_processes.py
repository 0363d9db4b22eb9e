"""Jobs over processes: results, errors, and the end of the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from unseen.engine.processes import in_processes
from unseen.errors import UnseenError, number

DIVISIONS = [(divmod, (i, 7)) for i in range(20)]


def test_one_process_is_this_one_in_order() -> None:
    assert list(in_processes(DIVISIONS, 1)) == [divmod(i, 7) for i in range(20)]
    assert set(in_processes([(os.getpid, ())] * 3, 1)) == {os.getpid()}


def test_one_process_begins_a_call_when_the_one_before_was_taken() -> None:
    begun = []

    def calls() -> Iterator[tuple[object, tuple[object, ...]]]:
        for i in range(3):
            begun.append(i)
            yield abs, (-i,)

    results = in_processes(calls(), 1)  # type: ignore[arg-type]
    assert begun == []
    assert next(results) == 0
    assert begun == [0]
    assert list(results) == [1, 2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_calls_have_no_results(jobs: int) -> None:
    assert list(in_processes([], jobs)) == []


def test_several_processes_are_others_and_lose_nothing() -> None:
    assert sorted(in_processes(DIVISIONS, 2)) == [divmod(i, 7) for i in range(20)]
    workers = set(in_processes([(os.getpid, ())] * 12, 2))
    assert os.getpid() not in workers
    assert 1 <= len(workers) <= 2


def test_results_come_as_they_finish() -> None:
    calls = [(time.sleep, (2.0,)), *[(divmod, (i, 7)) for i in range(3)]]
    assert list(in_processes(calls, 2))[-1] is None  # the sleeper is last


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_job_reaches_the_caller(jobs: int) -> None:
    calls = [(number, ("rate", value, 0, 1)) for value in (0.5, -1, 0.25)]
    with pytest.raises(UnseenError, match="rate must be a number in .*found -1"):
        list(in_processes(calls, jobs))
