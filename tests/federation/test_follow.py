"""How a run is followed, by what the app writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unseen.errors import UnseenError
from unseen.federation import run as runs
from unseen.federation.control import Run


class Server:
    """Answers as the SuperLink does, and plays what the app would write meanwhile."""

    def __init__(self, out: Path, news: list[dict[str, object]]) -> None:
        self.out, self.news = out, news

    def run(self, number: int) -> Run:
        if not self.news:
            return Run(number, "finished:completed")
        (self.out / runs.STANDING).write_text(json.dumps(self.news.pop(0)))
        return Run(number, "running")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOK", 0.0)
    monkeypatch.setattr(runs, "RARELY", 2)


def follow(out: Path, news: list[dict[str, object]]) -> list[str]:
    said: list[str] = []
    ended = runs.follow(Server(out, news), 1, out, said.append)  # type: ignore[arg-type]
    assert ended.over
    return said


def test_what_changes_is_said_once(tmp_path: Path) -> None:
    job = {"method": "fedavg", "task": "va", "seed": 0, "rounds": 2}
    news = [
        {"waiting": "for north"},
        {**job, "round": 0, "exchange": "train"},
        {**job, "round": 0, "exchange": "train", "waiting": "for south"},
        {**job, "round": 1, "exchange": "train", "error": "south: NaN"},
    ]
    assert follow(tmp_path, news) == [
        "fedavg on va, seed 0; round 1 of 2; train",
        "fedavg on va, seed 0; round 2 of 2; train; error: south: NaN",
    ]


def test_a_long_wait_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LONG", -1.0)
    news: list[dict[str, object]] = [{"waiting": "for north; 0 are here"}, {"round": 0}]
    said = follow(tmp_path, news)
    assert said == ["waiting for north; 0 are here", "round 1 of ?"]


def test_half_a_file_says_nothing(tmp_path: Path) -> None:
    assert runs.standing(tmp_path) == {}
    (tmp_path / runs.STANDING).write_text('{"round": ')
    assert runs.standing(tmp_path) == {} and runs.progress({}) == ""


def test_a_study_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match='base = "NAME"'):
        runs.run(None, tmp_path / "none.toml", tmp_path)  # type: ignore[arg-type]
