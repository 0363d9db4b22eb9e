"""A search finds what is there, at any alignment, in files and in a process, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support.secret_scan import files, holds, memory, words

VECTOR = torch.randn(300, generator=torch.Generator().manual_seed(1))
RAW = VECTOR.numpy().tobytes()
NOISE = os.urandom(100_000)


@pytest.mark.parametrize("shift", range(9))
@pytest.mark.parametrize("begin", (0, 4, 1000, 1200 - 64))
def test_any_64_bytes_are_found_at_any_alignment(shift: int, begin: int) -> None:
    content = NOISE[: 5000 + shift] + RAW[begin : begin + 64] + NOISE[5000:]
    assert holds([NOISE, content], words(VECTOR))


def test_less_than_that_is_not_found() -> None:
    looked_for = words(VECTOR)
    assert not holds([NOISE, b"", b"short"], looked_for)
    pieces = [RAW[i : i + 48] + NOISE[i : i + 16] for i in range(0, 1100, 48)]
    assert not holds([b"".join(pieces)], looked_for)
    assert not holds([RAW], words(torch.zeros(300)))


def test_what_may_be_there_is_left_out() -> None:
    other = VECTOR.clone()
    other[:200] += 1
    assert holds([RAW], words(VECTOR)) and not holds([RAW], words(VECTOR, but=[VECTOR]))
    assert not holds([RAW], words(other, but=[VECTOR]))
    assert holds([other.numpy().tobytes()], words(other, but=[RAW]))


def test_files_and_a_process(tmp_path: Path) -> None:
    secret = torch.randn(64, generator=torch.Generator().manual_seed(os.getpid()))
    looked_for = words(secret)
    (tmp_path / "a").mkdir()
    assert not holds(files(tmp_path), looked_for)
    (tmp_path / "a" / "it").write_bytes(b"abc" + secret.numpy().tobytes())
    assert holds(files(tmp_path), looked_for)
    if Path("/proc/self/maps").exists():
        assert holds(memory(os.getpid()), looked_for)
