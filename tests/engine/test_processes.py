"""Jobs over processes: results, errors, and the end of the workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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


def test_a_worker_that_is_killed_is_an_error_that_says_so() -> None:
    calls = [(os._exit, (9,)), *[(time.sleep, (0.1,))] * 3]
    with pytest.raises(UnseenError, match="a worker process was killed.*fewer --jobs"):
        list(in_processes(calls, 2))


SCRIPT = """
from unseen.engine.processes import in_processes

class Own:
    def __init__(self, value):
        self.value = value

def twice(own):
    return Own(2 * own.value)

print(sorted(own.value for own in in_processes([(twice, (Own(i),)) for i in range(3)], 2)))
"""


def test_a_script_needs_no_guard_and_its_functions_travel(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("[0, 2, 4]\n", 0), ended.stderr


def test_what_is_left_ends_with_an_error() -> None:
    calls = [(time.sleep, (600,)), (number, ("rate", -1, 0, 1))]
    with pytest.raises(UnseenError, match="rate"):
        list(in_processes(calls, 2))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_job_reaches_the_caller(jobs: int) -> None:
    calls = [(number, ("rate", value, 0, 1)) for value in (0.5, -1, 0.25)]
    with pytest.raises(UnseenError, match="rate must be a number in .*found -1"):
        list(in_processes(calls, jobs))
