"""A search is the same wherever it runs: killed and repeated, in processes, over Flower."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Command
from support.small_studies import rows, write

KILLED = """
import os, signal, sys
import unseen.studies.results.records as records
from unseen.cli.main import main

left, mark = int(sys.argv.pop(1)), records.mark_done

def marked(*arguments, **named):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return mark(*arguments, **named)

records.mark_done = marked
main()
"""


def command(table: Path, out: Path, *more: str) -> list[str]:
    """A search among three recipes at two rates, of two groups of sites and of sites alone."""
    members = "['fedavg', 'glm(steps=3)']"
    return [
        "choose", str(table), "--site", "site", "--label", "y", "rounds=2",
        "model=mlp(widths=[4])", "--recipes", f"glm,stack(members={members})", "--groups", "2",
        "--rates", "1,5", "--out", str(out), *more,
    ]  # fmt: skip


def answer(out: Path) -> dict[str, Any]:
    """What is in choice.json, but for seconds."""
    whole: dict[str, Any] = json.loads((out / "choice.json").read_text())
    return whole | {"rows": [{**row, "seconds": None} for row in whole["rows"]]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("table") / "sites.csv", rows())


@pytest.fixture
def whole(table: Path, tmp_path: Path, unseen: Command) -> dict[str, Any]:
    """The answer of one process that nobody disturbs."""
    assert unseen(*command(table, tmp_path / "whole")).code == 0
    return answer(tmp_path / "whole")


def test_killed_and_repeated_is_the_answer_of_one_search(
    table: Path, tmp_path: Path, unseen: Command, whole: dict[str, Any]
) -> None:
    out, jobs = tmp_path / "out", len(list((tmp_path / "whole").rglob("done.json")))
    for calls in (3, jobs - 3):  # in the first rate's studies, then in those of sites alone
        script = [sys.executable, "-c", KILLED, str(calls), *command(table, out)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        died = subprocess.run(script, env=env, capture_output=True, timeout=120)
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        assert not (out / "choice.json").exists()
    before = {p: p.stat().st_mtime_ns for p in out.rglob("done.json")}
    assert 0 < len(before) < jobs
    assert unseen(*command(table, out)).code == 0
    assert answer(out) == whole
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_two_processes_give_the_answer_of_one(
    table: Path, tmp_path: Path, unseen: Command, whole: dict[str, Any]
) -> None:
    assert unseen(*command(table, tmp_path / "out", "--jobs", "2")).code == 0
    assert answer(tmp_path / "out") == whole


@pytest.mark.slow
def test_a_simulated_federation_gives_the_answer_of_one_process(
    table: Path, tmp_path: Path, unseen: Command, whole: dict[str, Any]
) -> None:
    pytest.importorskip("flwr", reason="needs the extra flower")
    pytest.importorskip("ray", reason="needs the extra flower")
    over = ("--backend", "flower-simulation")
    assert unseen(*command(table, tmp_path / "out", *over)).code == 0
    assert answer(tmp_path / "out") == whole


def test_an_unknown_backend_is_refused(table: Path, tmp_path: Path, unseen: Command) -> None:
    ran = unseen(*command(table, tmp_path / "out", "--backend", "flower"))
    assert ran.code == 2
    assert "backend must be one of 'in-process'" in ran.err
