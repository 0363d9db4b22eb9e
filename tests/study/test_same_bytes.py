"""Saved tensors are the same bytes, whichever process writes them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load, save

from unseen.studies.execution.watcher import save_tensors

NOTES = {name: str(i) for i, name in enumerate(("task", "run", "method", "seed", "model", "ü"))}
TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(3, dtype=torch.int64)}
WRITE = """
import sys
from pathlib import Path
from test_same_bytes import NOTES, TENSORS
from unseen.studies.execution.watcher import save_tensors
save_tensors(Path(sys.argv[1]), TENSORS, NOTES)
"""


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    found = set()
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        env = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": places}
        subprocess.run([sys.executable, "-c", WRITE, str(path)], env=env, check=True)
        found.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(found) == 1


def test_so_does_one_process_whatever_the_order_of_the_notes(tmp_path: Path) -> None:
    found = set()
    for number in range(8):
        notes = dict(sorted(NOTES.items(), reverse=number % 2 == 1))
        save_tensors(tmp_path / "t", TENSORS, notes)
        found.add((tmp_path / "t").read_bytes())
    assert len(found) == 1


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_tensors(path, TENSORS, NOTES)
    content = path.read_bytes()
    with safe_open(path, "pt") as file:
        assert file.metadata() == NOTES
        assert all(torch.equal(file.get_tensor(name), t) for name, t in TENSORS.items())
    assert {n: t.tolist() for n, t in load(content).items()} == {
        n: t.tolist() for n, t in TENSORS.items()
    }
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0 and list(json.loads(content[8 : 8 + length])["__metadata__"]) == sorted(
        NOTES
    )
    # Where there is one order alone, the bytes are safetensors' own, as they were before.
    for notes in ({}, {"round": "3"}):
        save_tensors(path, TENSORS, notes)
        assert path.read_bytes() == save(TENSORS, notes)
