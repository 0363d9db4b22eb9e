"""Answers that are fetched in threads of their own reach who asked for them, and nobody else."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from unseen.sites.flower import pulls

#: How many bytes an answer may have, and who it is asked of.
NODE = 1, (0, "")


class Slow:
    """A Grid whose answers come once it is told so, each once, as Flower hands them out."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.left = ["train", "hello"]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        self.there.wait(10)
        (id,) = ids
        if id not in self.left:
            return []
        self.left.remove(id)
        return [SimpleNamespace(id=id)]


def test_an_answer_is_not_lost_to_who_asked_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulls, "WAIT", 0.2)
    grid: Any = Slow()
    line = pulls.Pulls(grid)
    assert not list(line.arrived({"train": NODE}))
    grid.there.set()
    time.sleep(0.1)  # it comes while somebody looks for another one
    assert [got.id for got in line.arrived({"hello": NODE})] == ["hello"]
    assert [got.id for got in line.arrived({"train": NODE})] == ["train"]
