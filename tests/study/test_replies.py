"""Bad replies stop a study or are dropped; the target teaches nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_studies import (
    FILES,
    domain,
    expression,
    records,
    rows,
    shown,
    study,
    write,
    written,
)

from unseen.core.exchange import Exchange, Reply
from unseen.engine.inprocess import InProcess
from unseen.errors import BadReply, UnseenError
from unseen.studies.results.records import Job

# --- bad replies ---------------------------------------------------------------------------


class Spoilt(InProcess):
    """Spoils what client b sends in round 1 of training, or what everybody does."""

    who: tuple[str, ...] = ("b",)

    @staticmethod
    def spoil(row: torch.Tensor) -> torch.Tensor:
        return torch.full_like(row, float("nan"))

    def _one(
        self, exchange: Exchange, inbox: Any, name: str, turn: Any, k: int, ready: Any
    ) -> Reply:
        reply = super()._one(exchange, inbox, name, turn, k, ready)
        if not exchange.slots or turn.round != 1 or name not in self.who:
            return reply
        return Reply({**reply.rows, "model": self.spoil(reply.rows["model"])}, reply.scalars)


class Cut(Spoilt):
    @staticmethod
    def spoil(row: torch.Tensor) -> torch.Tensor:
        return row[:-1].clone()


class Everyone(Spoilt):
    who = ("a", "b", "c")


def test_a_reply_of_the_wrong_shape_stops_the_study_by_name(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unseen.studies.execution.runtime.InProcess", Cut)
    with pytest.raises(BadReply) as caught:
        study(table, targets=["d"], rounds=3).run(tmp_path)
    for word in ("client 'b'", "shape", "drop"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")) == 1
    assert not list(tmp_path.rglob("done.json"))


def test_a_job_that_diverges_ends_and_the_others_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client b sends NaN in round 1; where b is the target it takes no part in training."""
    monkeypatch.setattr("unseen.studies.execution.runtime.InProcess", Spoilt)
    results = study(table, targets=["b", "d"], rounds=3).run(tmp_path)
    assert len(records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")) == 1
    assert len(records(tmp_path, Job("fedavg", "b", 0), "rounds.jsonl")) == 3
    assert shown(results, "fedavg", "d") == "undefined"
    assert float(shown(results, "fedavg", "b")) > 0
    notes = [n for n in results.table().notes if n.startswith("diverged")]
    assert len(notes) == 1
    for word in ("fedavg at d, seed 0", "client 'b'", "NaN"):
        assert word in notes[0]
    before = written(tmp_path)
    study(table, targets=["b", "d"], rounds=3).run(tmp_path)  # is not tried again
    assert written(tmp_path) == before


@pytest.mark.parametrize(("backend", "fault"), [(Spoilt, "NaN"), (Cut, "shape")])
def test_a_bad_reply_is_dropped_and_counted(
    table: Path,
    tmp_path: Path,
    backend: type[InProcess],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unseen.studies.execution.runtime.InProcess", backend)
    study(table, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    rounds = records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")
    assert [r["clients"] for r in rounds] == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]
    assert [list(r["dropped"]) for r in rounds] == [[], ["b"], []]
    assert fault in rounds[1]["dropped"]["b"]
    assert [len(r["weights"]["model"]) for r in rounds] == [3, 2, 3]
    assert sum(rounds[1]["weights"]["model"]) == pytest.approx(1)


def test_all_replies_bad_is_an_error(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unseen.studies.execution.runtime.InProcess", Everyone)
    results = study(table, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    (why,) = results.diverged().values()
    assert "every client's reply" in why
    for name in "abc":
        assert f"'{name}'" in why


def test_a_client_that_diverges_is_dropped_again_and_again(
    register: Callable[..., str], tmp_path: Path
) -> None:
    name = register(domain("a"), domain("b", scale=1e30), domain("c"), domain("d"))
    study(name, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    rounds = records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")
    assert [r["clients"] for r in rounds] == [["a", "c"]] * 3
    assert [list(r["dropped"]) for r in rounds] == [["b"]] * 3
    (why,) = study(name, targets=["d"], rounds=3).run(tmp_path / "stop").diverged().values()
    assert "client 'b'" in why


# --- nothing is learnt from the target -------------------------------------------------------


def sources_of(path: Path, out: Path, **options: Any) -> dict[str, bytes]:
    """The records of the sources when site c is the target."""
    study(path, targets=["c"], methods=["fedavg+ga"]).run(out)
    return {name: b for name, b in written(out).items() if name.endswith(FILES[0::2])}


TARGETS: dict[str, Callable[[list[str]], list[str]]] = {
    "numbers": lambda row: [row[0], "1e6", "-3", *row[3:]],
    "missing": lambda row: [row[0], "", "", "", *row[4:]],
    "labels": lambda row: [*row[:5], "0"],
    "a category": lambda row: [*row[:3], "a", *row[4:]],
    "metadata": lambda row: [*row[:4], "E", row[5]],
}


@pytest.mark.parametrize("change", TARGETS.values(), ids=TARGETS)
def test_the_target_changes_nothing_at_the_sources(
    tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    body = [row for row in rows("abc") if row[0] != "c" or row[3] == "p"]
    before = sources_of(write(tmp_path / "before.csv", body), tmp_path / "before")
    body = [change(row) if row[0] == "c" else row for row in body] + [change(body[-1])]
    after = sources_of(write(tmp_path / "after.csv", body), tmp_path / "after")
    assert before == after
    assert len(before) == 2


def test_spellings_at_the_target_change_nothing_at_the_sources(tmp_path: Path) -> None:
    """Sites write one code as 3 and as 3.0; a word at the target must not tell them apart."""

    def coded(target: str) -> dict[str, bytes]:
        body = [[*row[:3], "3" if row[3] == "p" else "3.0", *row[4:]] for row in rows("abc")]
        body = [[*r[:3], target, *r[4:]] if r[0] == "c" else r for r in body]
        path = write(tmp_path / f"{target}.csv", body)
        text = expression(path)[:-1] + ', categorical=["kind"])'
        out = tmp_path / f"out-{target}"
        study(text, targets=["c"]).run(out)
        return {name: b for name, b in written(out).items() if name.endswith(FILES[0::2])}

    assert coded("4") == coded("unknown")


@pytest.mark.filterwarnings("ignore:column 'u'")
def test_a_word_in_a_column_of_the_targets_numbers_is_refused(tmp_path: Path) -> None:
    body = rows("abc")
    body[-1][1] = "n.a."
    with pytest.raises(UnseenError, match=r"only numbers in some domains and words .*'n\.a\.'"):
        sources_of(write(tmp_path / "after.csv", body), tmp_path / "after")
