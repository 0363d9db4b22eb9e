"""The model on its way with a blind server: exact bits for who has the key, nothing for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.channels import network
from support.sites import federation

pytest.importorskip("tenseal", reason="the extra `he` is not installed")

from unseen import InProcess, Model, Training, UnseenError, method, start
from unseen.core.apply import Descend
from unseen.core.optimiser import SGD
from unseen.core.round import play_round
from unseen.core.turn import Turn
from unseen.errors import BadReply
from unseen.privacy import blind, channel, ckks, kinds
from unseen.privacy.blind import State, open_state, seal_state
from unseen.privacy.wire import pack, unpack

MOMENTUM = Training(batch_size=8, server=Descend(SGD(lr=0.9, momentum=0.5)))
STATE = State(
    {"model": torch.randn(5), "buffers": torch.zeros(0), "wide": torch.randn(2, 3).double()},
    {"train:model": {"momentum": torch.randn(5)}},
    "abc",
)


def test_a_state_comes_back_bit_for_bit() -> None:
    content = seal_state(STATE, b"secret", "run/ppdg/a/0")
    found = open_state(content, b"secret", "run/ppdg/a/0")
    assert found.after == "abc" and found.entries.keys() == STATE.entries.keys()
    for name, entry in STATE.entries.items():
        assert torch.equal(found.entries[name], entry) and found.entries[name].dtype == entry.dtype
    moments = found.moments["train:model"]["momentum"]
    assert torch.equal(moments, STATE.moments["train:model"]["momentum"])
    assert STATE.entries["wide"].numpy().tobytes()[:16] not in content
    assert seal_state(STATE, b"secret", "run") != seal_state(STATE, b"secret", "run")


def test_a_state_of_another_key_run_or_time_is_refused() -> None:
    content = seal_state(STATE, b"secret", "run/ppdg/a/0")
    with pytest.raises(BadReply, match="under another key"):
        open_state(content, b"other", "run/ppdg/a/0")
    with pytest.raises(BadReply, match="of another job.*run/ppdg/b/0"):
        open_state(content, b"secret", "run/ppdg/b/0")
    header, parts = unpack(content, "it")
    header.pop("lengths")
    renamed = pack({**header, "job": "run/ppdg/b/0"}, parts)
    with pytest.raises(BadReply, match="was changed"):
        open_state(renamed, b"secret", "run/ppdg/b/0")
    with pytest.raises(BadReply, match="was changed"):
        open_state(pack({**header, "after": "abd"}, parts), b"secret", "run/ppdg/a/0")
    changed = bytearray(parts[1])
    changed[7] ^= 1
    with pytest.raises(BadReply, match="was changed"):
        open_state(pack(header, [parts[0], bytes(changed)]), b"secret", "run/ppdg/a/0")


class Carried:
    """A federation whose sites are built again for every message, as over a network."""

    def __init__(self, expression: str, training: Training | None = None) -> None:
        clients = federation(3)
        self.names = sorted(clients)
        self.plan = method(expression, training or Training(batch_size=8))
        model = Model(network())
        self.state = start(self.plan, model, self.names, 0)
        self.backend = InProcess(model, clients)
        self.secret, self.public = ckks.make_keys()
        self.server = self.restarted()
        self.played = self.server.method(self.plan)
        self.kept: dict[str, bytes] = {}
        self.away: set[str] = set()

    def restarted(self) -> blind.Server:
        return blind.Server({kinds.PUBLIC: self.public})

    def site(self, name: str) -> blind.Site:
        one = blind.Site(self.plan, name, {kinds.SECRET: self.secret}, "run")
        if name in self.kept:
            one.load(self.kept[name])
        return one

    def map(self, exchange: Any, inbox: Any, clients: Any, turn: Turn) -> list[Any]:
        self.server.begin(exchange, turn)
        cargo, replies, stale = self.server.cargo(), [], self.server.stale
        for name in clients:
            own, one = replace(turn, client=name), self.site(name)
            entries = one.receive(blind.clear_entries(inbox), cargo, own)
            (reply,) = self.backend.map(exchange, entries, [name], turn)
            assert one.reports == stale
            if stale:
                self.server.take(name, one.state())
            messages = one.seal(exchange, reply, entries, own)
            self.kept[name] = one.save()
            rows: Any = self.server.opened(name, messages)
            replies.append(replace(reply, rows=rows))
        return replies

    def rows(self, slot: str, replies: Any, reference: Any) -> Any:
        return self.server.rows(slot, [reply.rows[slot] for reply in replies], self.ask)

    def ask(self, questions: Any) -> dict[str, bytes]:
        answers = {}
        for name, question in questions.items():
            one = self.site(name)
            answers[name] = one.answer(question)
            self.kept[name] = one.save()
        return answers

    def play(self, rounds: int, fraction: float | int = 1.0) -> None:
        for _ in range(rounds):
            self.state, _ = play_round(
                self.played,
                self.state,
                self,
                self.names,
                9,
                fraction,  # type: ignore[arg-type]
            )

    def model(self) -> torch.Tensor:
        turn = Turn(0, self.state.round, 9)
        entries = self.site("site-a").receive(
            blind.clear_entries(self.state.inbox), self.server.cargo(), turn
        )
        return entries["model"]


@pytest.mark.parametrize(("expression", "training"), [("fedavg+ga", None), ("scaffold", MOMENTUM)])
@pytest.mark.parametrize("fraction", [1.0, 2])
def test_the_model_is_that_of_the_run_in_the_clear(
    expression: str, training: Training | None, fraction: float | int
) -> None:
    found = Carried(expression, training)
    clear, backend = found.state, InProcess(Model(network()), federation(3))
    found.play(3, fraction)
    for _ in range(3):
        clear, _ = play_round(found.plan, clear, backend, found.names, 9, fraction)
    assert torch.allclose(found.model(), clear.inbox["model"], rtol=1e-5, atol=1e-6)
    assert all(bool(entry.isnan().all()) for entry in found.state.inbox.values())


def test_a_server_goes_on_from_what_it_saved() -> None:
    found = Carried("fedavg", MOMENTUM)
    found.play(2)
    before, again = found.model(), found.restarted()
    again.load(found.server.save())
    found.server = again
    assert torch.equal(found.model(), before)
    found.play(1)
    assert not torch.equal(found.model(), before)


def test_sums_without_their_state_are_refused() -> None:
    found = Carried("fedavg")
    found.play(1)
    cargo, site, turn = found.server.cargo(), found.site("site-a"), Turn(0, 1, 9)
    assert set(cargo) == {"state", "sum/model", "sum/buffers"}
    sums = {name: part for name, part in cargo.items() if name != "state"}
    with pytest.raises(BadReply, match="without the state"):
        site.receive({}, sums, turn)
    with pytest.raises(BadReply, match="not those of an exchange"):
        site.receive({}, {n: c for n, c in cargo.items() if n != "sum/buffers"}, turn)
    with pytest.raises(BadReply, match="are of round 0, and this is"):
        site.receive({}, cargo, Turn(0, -1, 9))
    older = State({"model": torch.zeros(3)}, {}, "older")
    with pytest.raises(BadReply, match="of another base"):
        site.receive({}, {**cargo, "state": seal_state(older, found.secret, "run")}, turn)
    with pytest.raises(BadReply, match="of another after"):
        found.server.take("site-a", seal_state(older, found.secret, "run"))


def test_no_sum_is_opened_and_none_replaces_another() -> None:
    found = Carried("fedavg")
    found.play(1)
    header, _ = unpack(found.site("site-a").answer(pack({"kind": "open"})), "an answer")
    assert header["kind"] == "refused" and "blind" in header["why"]
    late = {"round": 7, "exchange": "later", "slot": "model", "size": 3}
    with pytest.raises(UnseenError, match="no site sent the state"):
        found.server.deliver(late, [], [], found.ask)


def test_a_site_takes_no_older_state_and_no_model_in_the_clear() -> None:
    """It knows after which exchange's sums the state has to be."""
    found = Carried("fedavg")
    found.play(1)
    first = found.server.cargo()
    found.play(1)
    site, turn = found.site("site-a"), Turn(0, 2, 9)
    site.expected = blind.where(1, "train")
    mine = {"model": torch.zeros(3), "buffers": torch.zeros(0)}
    assert "model" in site.receive({}, found.server.cargo(), turn)
    with pytest.raises(BadReply, match="in the clear"):
        site.receive(mine, {}, turn)
    with pytest.raises(BadReply, match="is that after 0/train; 1/train comes before this"):
        older = found.site("site-a")
        older.expected = blind.where(1, "train")
        older.receive({}, first, turn)
    with pytest.raises(UnseenError, match="ppdg.blind cannot be.*No site can check"):
        channel.check(channel.Blind(), method("ppdg"))
