"""Checkpoints: what they give back, where it goes, and which are none."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.job_folders import log

from unseen.core.client import Memories
from unseen.core.exchange import State
from unseen.studies.results import checkpoint
from unseen.studies.results.records import FILES

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_checkpoint_gives_back_state_and_memories(tmp_path: Path) -> None:
    matrix = torch.arange(12.0).view(3, 4)
    weights = torch.tensor([1 / 3], dtype=torch.float64)
    rules = {"train/model": {"combine": {"weights": weights, "n": 2, "name": "x"}, "apply": {}}}
    inbox = OrderedDict(model=matrix[1], buffers=torch.zeros(0))
    memories = Memories()
    memories.write("a", (3, 0), {"optimiser.m": matrix[:, 2]})
    memories.write("a", (4, 1), {})
    state = State(5, inbox, rules, 7)
    log(tmp_path)
    checkpoint.save(tmp_path, state, memories)
    found = checkpoint.load(tmp_path, "cpu")
    assert found is not None
    back, kept, lengths = found
    assert lengths == {name: (tmp_path / name).stat().st_size for name in FILES}
    assert (back.round, back.seed) == (5, 7)
    assert back.inbox["model"].tolist() == [4, 5, 6, 7]
    assert back.inbox["buffers"].shape == (0,)
    assert back.rules["train/model"]["combine"]["weights"].equal(weights)
    assert back.rules["train/model"]["combine"] | {"weights": 0} == {
        "weights": 0, "n": 2, "name": "x",
    }  # fmt: skip
    assert kept.before("a", (4, 0))["optimiser.m"].tolist() == [2, 6, 10]
    assert kept.before("a", (5, 0)) == {}
    assert kept.before("b", (5, 0)) == {}
    size = (tmp_path / "checkpoint.pt").stat().st_size
    big = torch.zeros(1_000_000)
    checkpoint.save(tmp_path, State(5, {**inbox, "model": big[:4]}, rules, 7), memories)
    assert (tmp_path / "checkpoint.pt").stat().st_size < 2 * size  # a view without its storage


def test_what_a_rule_remembers_beside_the_model_goes_where_the_model_goes(tmp_path: Path) -> None:
    """Adam's moments at the server, for one: a run on a GPU goes on there."""
    moments = {"first": torch.ones(3), "steps": 4, "path": [torch.zeros(3)]}
    state = State(3, {"model": torch.ones(3)}, {"train/model": {"apply": moments}}, 0)
    log(tmp_path)
    checkpoint.save(tmp_path, state, Memories())
    found = checkpoint.load(tmp_path, "meta")  # the one other device that every machine has
    assert found is not None
    back = found[0].rules["train/model"]["apply"]
    assert found[0].inbox["model"].is_meta and back["first"].is_meta and back["path"][0].is_meta
    assert back["steps"] == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_what_a_rule_keeps_on_the_cpu_stays_there(tmp_path: Path) -> None:
    apart = {"combine": {"weights": torch.ones(2)}, "apply": {"first": torch.ones(3).cuda()}}
    state = State(3, {"model": torch.ones(3).cuda()}, {"train/model": apart}, 0)
    log(tmp_path)
    checkpoint.save(tmp_path, state, Memories())
    found = checkpoint.load(tmp_path, "cuda")
    assert found is not None
    back = found[0].rules["train/model"]
    assert back["combine"]["weights"].is_cpu and back["apply"]["first"].is_cuda


def test_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, "cpu") is None


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A job's folder with records of three rounds and their checkpoint."""
    log(tmp_path)
    inbox = {"model": torch.ones(3), "buffers": torch.zeros(0)}
    checkpoint.save(tmp_path, State(3, inbox, {}, 0), Memories())
    assert checkpoint.load(tmp_path, "cpu") is not None
    return tmp_path


@pytest.mark.parametrize("content", [b"", b"garbage" * 99, b"PK\x03\x04 half a zip file"])
def test_an_unreadable_checkpoint_is_none(saved: Path, content: bytes) -> None:
    (saved / "checkpoint.pt").write_bytes(content)
    assert checkpoint.load(saved, "cpu") is None


@given(st.integers(0, 100_000), st.integers(1, 255))
@same_folder
def test_a_checkpoint_with_one_wrong_byte_is_none(tmp_path: Path, where: int, flip: int) -> None:
    good = tmp_path / "good.pt"
    if not good.exists():
        log(tmp_path)
        inbox = {"model": torch.ones(3), "buffers": torch.zeros(0)}
        checkpoint.save(tmp_path, State(3, inbox, {}, 0), Memories())
        good.write_bytes((tmp_path / "checkpoint.pt").read_bytes())
    content = bytearray(good.read_bytes())
    content[where % len(content)] ^= flip
    (tmp_path / "checkpoint.pt").write_bytes(content)
    assert checkpoint.load(tmp_path, "cpu") is None


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_of_other_records_is_none(saved: Path, name: str) -> None:
    good = (saved / name).read_bytes()
    for bad in (b"", good[:-1], good.replace(b"1", b"2", 1), good[::-1]):
        (saved / name).write_bytes(bad)
        assert checkpoint.load(saved, "cpu") is None
    (saved / name).unlink()
    assert checkpoint.load(saved, "cpu") is None
    (saved / name).write_bytes(good + b'{"round": 3')  # what came later is cut off on resuming
    assert checkpoint.load(saved, "cpu") is not None
