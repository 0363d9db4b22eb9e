"""What one site sends, too much, too large or half of it, costs that site alone."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import Message
from support.hall import Answer, Hall, kits

from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.sites.flower import server_run, site_messages
from unseen.sites.flower.answers import fault_of, introduced
from unseen.sites.flower.pulls import counted
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.flower.terms import PROTOCOL, Refused, Terms
from unseen.sites.policy.site_ledger import SiteLedger

SITES = {"east": "train", "north": "train", "south": "train"}
STUDY = """
dataset = "table(path='visits.csv', domain='site', label='died')"
methods = ["fedavg"]
seeds = 1
rounds = {rounds}
model = "mlp(widths=[4])"
on_bad_reply = "drop"
save = ["final"]
holdout = "none"
[training]
batch_size = 16
[federation]
sites = ["east", "north", "south"]
deadline = {deadline}
patience = 0
minimum = 2
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)


def written(folder: Path, rounds: int = 2, deadline: float = 60) -> Path:
    lines = ["site,a,b,died"]
    for name in SITES:
        x = torch.randn(40, 2, generator=keyed(name))
        pairs = zip(x.tolist(), (x.sum(1) > 0).long().tolist(), strict=True)
        lines += [",".join(map(str, (name, *values, label))) for values, label in pairs]
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    (folder / "study.toml").write_text(STUDY.format(rounds=rounds, deadline=deadline))
    return folder / "study.toml"


def trains(question: Answer) -> int:
    """The round in which a question asks for training, or −1."""
    turn = json.loads(str(question["head"])).get("position", {})
    return int(turn["round"]) if turn.get("exchange") == "train" else -1


def played(folder: Path, change: Callable[[Answer, int], Iterable[Answer]]) -> dict[int, Any]:
    """Round -> who was left out and why; `change` is what the site north does to its answers."""

    def tamper(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        at = trains(question)
        return change(answer, at) if site == "north" and at >= 0 else [answer]

    hall = Hall(kits(folder, SITES, folder), tamper)
    server_run.run(str(written(folder, 3)), str(folder / "out"), hall, list(SITES))
    (path,) = (folder / "out").rglob("rounds.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (final,) = (folder / "out").rglob("final.safetensors")
    assert all(bool(t.isfinite().all()) and t.abs().max() < 1e3 for t in
               load(final.read_bytes()).values() if t.is_floating_point())  # fmt: skip
    return {line["round"]: line["dropped"] for line in lines if line["exchange"] == "train"}


def test_what_is_too_large_is_refused_in_its_round_by_name(tmp_path: Path) -> None:
    def change(answer: Answer, at: int) -> Iterable[Answer]:
        row = answer["row/model"]
        changes: list[Answer] = [
            {"row/model": torch.full_like(row, 1e38)},
            {"scalar/examples": 1e15},
            {"row/model": torch.zeros(2_000_000)},
        ]
        return [answer | changes[at]]

    dropped = played(tmp_path, change)
    assert [set(dropped[r]) for r in range(3)] == [{"north"}] * 3
    assert "numbers too large to be squared in 'model'" in dropped[0]["north"]
    assert "1e+15 as 'examples', and it said that it has 40" in dropped[1]["north"]
    assert "larger than the 1,04" in dropped[2]["north"]


def test_an_answer_is_fetched_up_to_its_bound_and_no_further() -> None:
    fetched: list[str] = []

    def make() -> Callable[[str], bytes]:
        def pull(id: str) -> bytes:
            fetched.append(id)
            return bytes(100)

        return pull

    from unseen.sites.flower import pulls

    answer = pulls._THREAD.pull = pulls.Pull(250)
    pull = counted(make, ValueError)()
    with pytest.raises(ValueError, match="larger than the 250 bytes"):
        for i in range(10):
            pull(str(i))
    assert fetched == ["0", "1", "2"] and answer.larger


def test_flower_has_the_place_where_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink.grid import http_grid

    from unseen.sites import flower_workarounds

    before = http_grid.make_pull_object_fn_protobuf
    monkeypatch.setattr(http_grid, "make_pull_object_fn_protobuf", before)
    flower_workarounds.bound_answers(counted)
    assert http_grid.make_pull_object_fn_protobuf is not before


class Stalling(Hall):
    """Announces north's answers, and never has the rest of them, as Flower waits for it."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = set(message_ids)
        node = {m.metadata.reply_to_message_id: m.metadata.src_node_id for m in self.waiting}
        if any(node.get(id) == 2 for id in ids) and self.stalled:
            self.stalled = False
            self.end.wait(60)
        return super().pull_messages(ids)

    stalled = False
    end = threading.Event()


def test_a_half_sent_answer_costs_its_sender_alone(tmp_path: Path) -> None:
    hall = Stalling(kits(tmp_path, SITES, tmp_path))

    def tamper(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        hall.stalled |= site == "north" and trains(question) == 1
        return [answer]

    hall.tamper = tamper
    begun = time.monotonic()
    try:
        file = written(tmp_path, 2, deadline=4)
        server_run.run(str(file), str(tmp_path / "out"), hall, list(SITES))
    finally:
        hall.end.set()
    (path,) = (tmp_path / "out").rglob("rounds.jsonl")
    last = [json.loads(line) for line in path.read_text().splitlines()][-1]
    assert last["clients"] == ["east", "south"]
    assert "no answer within the deadline of 4 s" in last["dropped"]["north"]
    assert time.monotonic() - begun < 50


WEIRD: list[Any] = [
    0, -1, 2**63 - 1, 1e300, "", "x" * 10_000, "\n\x00\x1b[2J", "[]", "{}", "null", "[1]", '"a"',
    '{"site": []}', b"", b"\x80\x04N.", [1.0, 2.0], [], torch.zeros(2), torch.zeros(0),
    torch.tensor([float("nan")]), torch.zeros(2, 2, dtype=torch.complex64),
    torch.zeros(3, dtype=torch.bool), torch.full((5,), 2**62),
]  # fmt: skip


def spoilt(answer: Answer, draws: Random) -> Answer:
    """An answer with a few of its fields replaced, taken away or added."""
    found = dict(answer)
    for _ in range(draws.randint(1, 3)):
        key = draws.choice([*found, "refused", "failed", "rule", "ledger", "order", "row/other",
                            "scalar/examples", "site", "about", "protocol", "facts"])  # fmt: skip
        if draws.random() < 0.2:
            found.pop(key, None)
        else:
            found[key] = draws.choice(WEIRD)
    return found


def test_no_field_of_a_site_ends_a_run(tmp_path: Path) -> None:
    """Seed 0. What cannot be used is a fault of its site; whatever else is raised is a defect."""
    draws = Random(0)

    def change(answer: Answer, at: int) -> Iterable[Answer]:
        return [spoilt(answer, draws) for _ in range(20)]

    played(tmp_path, change)


def test_answers_are_read_in_words_whatever_they_hold(tmp_path: Path) -> None:
    draws, kit = Random(1), kits(tmp_path, SITES, tmp_path)[2]
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    server_run.run(str(written(tmp_path, 1)), str(tmp_path / "out"), hall, list(SITES))
    asked = [q for s, q in hall.sent if s == "north"]
    hello = next(q for q in asked if q["kind"] == "hello")
    train = next(q for q in asked if trains(q) == 0)
    answers = {kind: handle(q, Site.read(kit)) for kind, q in (("hello", hello), ("train", train))}
    facts = introduced(answers["hello"], "", "north")
    for _ in range(300):
        own = json.loads(str(answers["hello"]["facts"]))
        for key in draws.sample(sorted(own), 2):
            own[key] = draws.choice([None, 0, -1, "x", [], ["a"], {}, {"a": "b"}, [[1]], 1e300])
        said = spoilt(answers["hello"] | {"facts": json.dumps(own)}, draws)
        with contextlib.suppress(UnseenError):
            Terms.agree([facts, introduced(said, "", "north")])
        other = spoilt(answers["train"], draws)
        assert isinstance(fault_of(other, "north", str(train["about"]), lambda _: ""), str)
    with pytest.raises(Refused):
        introduced(answers["hello"] | {"facts": torch.zeros(2)}, "", "north")
    assert answers["hello"]["protocol"] == PROTOCOL and facts.examples == 40


def test_a_site_takes_only_a_model_like_its_own(tmp_path: Path) -> None:
    kit = kits(tmp_path, SITES, tmp_path)[2]
    hall = Hall(kits(tmp_path, SITES, tmp_path))
    server_run.run(str(written(tmp_path, 1)), str(tmp_path / "out"), hall, list(SITES))
    question = next(q for s, q in hall.sent if s == "north" and trains(q) == 0)
    model, account = question["inbox/model"], Site.read(kit).account
    SiteLedger(account).path.unlink()  # nothing was answered at this position
    for other, why in (
        (model.double(), "float64"),
        (model.half(), "float16"),
        (model.int(), "int32"),
        (model[:-1], "came as"),
        (model * float("nan"), "NaN"),
    ):
        answer = handle({**question, "inbox/model": other}, Site.read(kit))
        assert why in str(answer["refused"]) and "row/model" not in answer
