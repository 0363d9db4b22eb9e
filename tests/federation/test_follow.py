"""How a run is followed, by what the app writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from unseen.errors import UnseenError
from unseen.sites import control
from unseen.sites import launch as runs
from unseen.sites.control import Run


class Server:
    """Answers as the SuperLink does, and plays what the app would write meanwhile."""

    def __init__(self, out: Path, news: list[dict[str, object]]) -> None:
        self.out, self.news = out, news

    def run(self, number: int) -> Run:
        if not self.news:
            return Run("finished:completed")
        (self.out / control.STANDING).write_text(json.dumps(self.news.pop(0)))
        return Run("running")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOK", 0.0)
    monkeypatch.setattr(runs, "RARELY", 2)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(runs, "say", lines.append)
    return lines


def follow(out: Path, news: list[dict[str, object]]) -> None:
    assert runs.follow(Server(out, news), 1, out).over  # type: ignore[arg-type]


def test_what_changes_is_said_once(tmp_path: Path, said: list[str]) -> None:
    job = {"method": "fedavg", "task": "va", "seed": 0, "rounds": 2}
    news = [
        {"waiting": "for north"},
        {**job, "round": 0, "exchange": "train"},
        {**job, "round": 0, "exchange": "train", "waiting": "for south"},
        {**job, "round": 1, "exchange": "train", "error": "south: NaN"},
    ]
    follow(tmp_path, news)
    assert said == [
        "fedavg on va, seed 0; round 1 of 2; train",
        "fedavg on va, seed 0; round 2 of 2; train; error: south: NaN",
    ]


def test_the_error_that_ends_a_run_is_said_once(tmp_path: Path, said: list[str]) -> None:
    """By whoever raises it: `carry_out` reads the same file."""
    follow(tmp_path, [{"round": 0}, {"round": 0, "error": "south left", "ended": True}])
    assert said == ["round 1 of ?"]
    assert "south left" in control.progress(control.standing(tmp_path))


def test_a_long_wait_is_said(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LONG", -1.0)
    news: list[dict[str, object]] = [{"waiting": "for north; 0 are here"}, {"round": 0}]
    follow(tmp_path, news)
    assert said == ["waiting for north; 0 are here", "round 1 of ?"]


def test_remarks_are_said_when_they_come(tmp_path: Path, said: list[str]) -> None:
    gone = {"remarks": ["a class occurs at one site alone"], "absent": "south: was not connected"}
    news: list[dict[str, object]] = [{}, {"remarks": gone["remarks"], "absent": ""}, gone, gone, {}]
    follow(tmp_path, news)
    assert said == [
        "of the data: a class occurs at one site alone",
        "goes on without south: was not connected",
    ]


def test_half_a_file_says_nothing(tmp_path: Path) -> None:
    assert control.standing(tmp_path) == {}
    (tmp_path / control.STANDING).write_text('{"round": ')
    assert control.standing(tmp_path) == {} and control.progress({}) == ""


def test_a_run_waits_for_one_that_was_killed(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [[7], [7], []]
    link = SimpleNamespace(running=lambda: listed.pop(0))
    runs.await_turn(link)  # type: ignore[arg-type]
    assert said == ["run 7 has not ended; if it was killed the server finds out in a minute"]
    monkeypatch.setattr(runs, "GONE", -1.0)
    with pytest.raises(UnseenError, match="run 7 has not ended: one at a time"):
        runs.await_turn(SimpleNamespace(running=lambda: [7]))  # type: ignore[arg-type]


def test_a_server_that_fails_once_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    httpx = pytest.importorskip("httpx", reason="comes with the extra flower")

    def failing(status: int) -> Exception:
        response = httpx.Response(status, request=httpx.Request("POST", "http://localhost"))
        return httpx.HTTPStatusError("no", request=response.request, response=response)

    answers: list[object] = [failing(500), Run("running"), failing(500), failing(403)]

    def run(number: int) -> Run:
        answer = answers.pop(0)
        if isinstance(answer, Run):
            return answer
        assert isinstance(answer, Exception)
        raise answer

    link = SimpleNamespace(run=run)
    assert runs.stands(link, 1).state == "running"  # type: ignore[arg-type]
    monkeypatch.setattr(runs, "FAILING", -1.0)
    for _ in answers.copy():
        with pytest.raises(httpx.HTTPStatusError):
            runs.stands(link, 1)  # type: ignore[arg-type]


def test_the_standing_in_words(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def silent(kit: object) -> Iterator[None]:
        raise UnseenError("no server answers")
        yield

    monkeypatch.setattr(control, "control", silent)
    monkeypatch.setattr(control, "say", said.append)
    control.status(None, tmp_path)  # type: ignore[arg-type]
    assert said == ["no server answers", f"{tmp_path / control.STANDING}: not written yet"]
    job = {"method": "fedavg", "task": "va", "seed": 0, "round": 1, "rounds": 3}
    more = {"name": "heart", "exchange": "train", "connected": ["north"], "error": ""}
    (tmp_path / control.STANDING).write_text(
        json.dumps({**job, **more, "waiting": "for south", "finished": False})
    )
    said.clear()
    control.status(None, tmp_path)  # type: ignore[arg-type]
    assert said[1:] == [
        "study heart: not finished",
        "fedavg on va, seed 0; round 2 of 3; train",
        "waiting for south",
        "last seen by the run: north",
    ]


@pytest.mark.parametrize("inside", ["training", "records"])
def test_the_standing_of_a_model_or_of_a_choice(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir()
    (tmp_path / inside / control.STANDING).write_text('{"round": 3}')
    assert control.standing(tmp_path) == {"round": 3}
    (tmp_path / control.STANDING).write_text('{"round": 4}')  # of a run, which has no such folder
    assert control.standing(tmp_path) == {"round": 4}


def test_a_study_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match='base = "NAME"'):
        runs.run(None, tmp_path / "none.toml", tmp_path)  # type: ignore[arg-type]
