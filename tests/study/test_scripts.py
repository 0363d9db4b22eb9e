"""Studies of a script's own network and method, over processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from torch import nn
import unseen

def net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, outputs))

def own(training):
    from unseen.methods.fedavg import fedavg
    return fedavg(training)

study = unseen.Study(
    dataset="rotated-digits", model=net, methods=[own, "fedavg"], targets=["0"], seeds=2, rounds=2,
    stacked=int(sys.argv[2]),
)
print(study.run(jobs=int(sys.argv[1])).table().runs_csv())
"""


@pytest.mark.parametrize("stacked", [pytest.param("0", marks=pytest.mark.slow), "300"])
def test_processes_find_what_a_script_defines(tmp_path: Path, stacked: str) -> None:
    """Without a guard against being imported, which the script has no reason to have."""
    (tmp_path / "script.py").write_text(SCRIPT)
    outputs = []
    for jobs in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "script.py", jobs, stacked], cwd=tmp_path, capture_output=True,
            text=True, timeout=180, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        outputs.append(ended.stdout)
    assert outputs[0] == outputs[1]
    assert "__main__:own" in outputs[0]
