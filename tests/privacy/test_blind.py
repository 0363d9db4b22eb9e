"""A server that never holds the model: the sites end where they would have in the clear."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.channels import difference, network, trained
from support.sites import federation

pytest.importorskip("tenseal", reason="the extra `he` is not installed")

from unseen import InProcess, Model, Study, Training, UnseenError, method, start
from unseen.core.apply import Descend
from unseen.core.client import Memories
from unseen.core.exchange import Exchange
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.optimiser import SGD, Adam
from unseen.core.round import play
from unseen.core.turn import Turn
from unseen.errors import BadReply
from unseen.privacy import blind, channel, kinds
from unseen.privacy.wire import pack, unpack

MOMENTUM = Training(batch_size=8, server=Descend(SGD(lr=0.9, momentum=0.5)))


def held(backend: channel.Channelled, name: str = "site-a") -> Mapping[str, torch.Tensor]:
    """The model that a site has after the last round, once it took the sums for itself."""
    cargo, turn = backend.server.cargo(), replace(backend.turn, client=name)
    return backend.sites[name].receive({}, cargo, turn)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "expression, training",
    [("fedavg", None), ("fedavg+ga", None), ("scaffold", MOMENTUM)],
)
def test_sites_hold_what_the_server_would(expression: str, training: Training | None) -> None:
    plain, _, _ = trained(expression, 3, training=training)
    found, _, backend = trained(expression, 3, "ckks", "blind", training=training)
    for site in backend.sites:
        for name, entry in plain.inbox.items():
            assert difference(held(backend, site)[name], entry) < 1e-5, name
    for entry in found.inbox.values():
        assert bool(entry.isnan().all())
    assert {left.slot for left in backend.disclosed()} <= {
        "model",
        "buffers",
        "model weights",
        "control",
        "state",
    }


def test_who_stays_away_keeps_up() -> None:
    plain, _, _ = trained("fedavg", 4, fraction=2)
    _, outcomes, backend = trained("fedavg", 4, "ckks", "blind", fraction=2)
    assert all(len(outcome.names) == 2 for outcome in outcomes)
    for site in backend.sites:
        assert difference(held(backend, site)["model"], plain.inbox["model"]) < 1e-5


def test_sites_evaluate_their_own_model() -> None:
    clients = federation(2)
    names = (*sorted(clients),)
    seen = []
    for over in ("clear", "ckks"):
        made, model = method("fedavg", Training(batch_size=8)), Model(network())
        test = Exchange("test", Evaluate("validation"), who=names)
        made = replace(made, exchanges=(*made.exchanges, test))
        state, backend = start(made, model, names, 0), InProcess(model, clients)
        if over == "ckks":
            kind = channel.read(over, "blind")
            backend = channel.wrap(kind, made, backend, names)  # type: ignore[assignment]
            made = backend.played(made)  # type: ignore[attr-defined]
        _, outcomes = play(made, state, backend, names, 2)
        seen.append(outcomes[-1].table["loss"])
    assert torch.allclose(*seen, rtol=1e-5)


def test_a_study_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unseen.studies.execution import job, plan, setting

    settings = {
        "dataset": "rotated-digits", "methods": ["fedavg"], "targets": ["0"], "seeds": 1,
        "rounds": 3, "model": "mlp(widths=[4])",
        "privacy": {"channel": "ckks", "server": "blind"},
    }  # fmt: skip
    original, calls = job.play_round, []

    def stops(*given: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(job, "play_round", stops)
    monkeypatch.setattr(plan, "Setting", functools.partial(setting.Setting, checkpoint_seconds=0.0))
    with pytest.raises(KeyboardInterrupt):
        Study(**settings).run(out=tmp_path / "a")
    assert list(tmp_path.rglob("checkpoint.pt"))
    for folder in "ab":
        Study(**settings).run(out=tmp_path / folder)
    losses = [
        [json.loads(line)["loss"] for line in path.read_text().splitlines()]
        for folder in "ab"
        for path in (tmp_path / folder).rglob("target.jsonl")
    ]
    assert len(losses[0]) == 3 and np.allclose(*losses, rtol=1e-4)


def site(name: str = "site-a") -> tuple[channel.Channelled, blind.Site]:
    _, _, backend = trained("fedavg", 2, "ckks", "blind", rounds=1)
    return backend, backend.sites[name]


def test_a_checkpoint_without_the_state_is_refused() -> None:
    backend, _ = site()
    backend.saved = Memories()
    made = backend.played(method("fedavg", Training(batch_size=8)))
    inbox = {name: blind.stand_in(5, torch.float32) for name in ("model", "buffers")}
    with pytest.raises(UnseenError, match="state with buffers, model is not in this checkpoint"):
        backend.map(made.exchanges[0], inbox, ["site-a"], Turn(0, 1, 3, "train"))


def test_a_checkpoint_goes_on_under_another_key() -> None:
    before, _ = site()
    state, saved = held(before), before.to_checkpoint()
    after, _ = site("site-b")
    after.saved = saved
    after.played(method("fedavg", Training(batch_size=8)))
    found = held(after, "site-b")
    assert found.keys() == state.keys() and all(torch.equal(found[k], state[k]) for k in state)


def test_no_sum_is_opened_for_a_blind_server() -> None:
    _, one = site()
    header, _ = unpack(one.answer(pack({"kind": "open", "slot": "model"})), "an answer")
    assert header["kind"] == "refused" and "blind" in header["why"]


def test_a_sum_that_comes_late_or_changed_is_refused() -> None:
    backend, one = site()
    cargo, turn = backend.server.cargo(), replace(backend.turn, client="site-a")
    header, parts = unpack(cargo["sum/model"], "it")
    header.pop("lengths")
    for changed in ({"round": 9}, {"exchange": "x"}, {"context": "another"}, {"base": "x"}):
        with pytest.raises(BadReply):
            one.receive({}, {**cargo, "sum/model": pack({**header, **changed}, parts)}, turn)
    one.receive({}, cargo, turn)


def test_a_site_goes_on_in_another_process() -> None:
    """Every question is answered by a site that was made again from what the last one saved."""
    clients = federation(2)
    names = sorted(clients)
    made, model = method("fedavg", MOMENTUM), Model(network())
    kind = channel.read("ckks", "blind")
    public, private = kind.keys(names, {})

    class Again(kinds.Site):
        """A site that is made for each call, as sites over Flower are for each message."""

        blind = True
        start = message = respond = None  # type: ignore[assignment]

        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.saved = b""

        def fresh(self) -> kinds.Site:
            one = kind.site(made, self.name, private[self.name], "job")
            if self.saved:
                one.load(self.saved)
            return one

        def receive(self, inbox, cargo, turn):  # type: ignore[no-untyped-def]
            self.one = self.fresh()
            return self.one.receive(inbox, cargo, turn)

        def seal(self, exchange, reply, inbox, turn):  # type: ignore[no-untyped-def]
            messages = self.one.seal(exchange, reply, inbox, turn)
            self.saved = self.one.save()
            return messages

        def state(self) -> bytes:
            return self.one.state()

        def answer(self, question: bytes) -> bytes:
            one = self.fresh()
            reply = one.answer(question)
            self.saved = one.save()
            return reply

        def save(self) -> bytes:
            return self.saved

        def load(self, content: bytes) -> None:
            self.saved = content

    serve = functools.partial(kind.server, public)
    sites = {name: Again(name) for name in names}
    backend = channel.LocalSites(InProcess(model, clients), sites, serve)
    play(backend.played(made), start(made, model, names, 0), backend, names, 2)
    plain, _, _ = trained("fedavg", 2, rounds=2, training=MOMENTUM)
    assert difference(held(backend)["model"], plain.inbox["model"]) < 1e-5


def test_what_a_blind_server_cannot_do_is_refused_before_the_run() -> None:
    adam = method("fedavg", Training(server=Descend(Adam(lr=0.01))))
    with pytest.raises(UnseenError, match=r"^[^`]+\+blind cannot be: the slot.*roots"):
        channel.check(channel.read("ckks", "blind"), adam)
    channel.check(channel.read("ckks"), adam)
    for over in ("clear", "masks()"):
        with pytest.raises(UnseenError, match="needs privacy.channel = 'ckks'"):
            channel.read(over, "blind")


@pytest.mark.parametrize("what", [{"save": ["final"]}, {"record": ["gram"]}])
def test_records_of_what_nobody_sees_are_refused(
    what: dict[str, list[str]], tmp_path: Path
) -> None:
    privacy = {"channel": "ckks", "server": "blind"}
    with pytest.raises(UnseenError, match="in the clear|sites alone may have it"):
        Study(dataset="rotated-digits", privacy=privacy, **what).run(out=tmp_path)
