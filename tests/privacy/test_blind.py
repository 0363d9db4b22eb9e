"""A server that never holds the model: the sites end where they would have in the clear."""

from __future__ import annotations

import functools
import json
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
from unseen.core.exchange import Exchange, Turn
from unseen.core.metrics import Evaluate
from unseen.core.optimiser import SGD, Adam
from unseen.core.round import play
from unseen.errors import BadReply
from unseen.privacy import blind, channel, kinds
from unseen.privacy.wire import pack, unpack

MOMENTUM = Training(batch_size=8, server=Descend(SGD(lr=0.9, momentum=0.5)))


@pytest.mark.parametrize(
    "expression, training",
    [("fedavg", None), ("ppdg+ga", None), ("scaffold", MOMENTUM)],
)
def test_sites_hold_what_the_server_would(expression: str, training: Training | None) -> None:
    plain, _, _ = trained(expression, 3, training=training)
    found, _, backend = trained(expression, 3, "ckks", "blind", training=training)
    for site in backend.sites.values():
        for name, entry in plain.inbox.items():
            assert difference(site.inbox[name], entry) < 1e-5, name
    for entry in found.inbox.values():
        assert bool(entry.isnan().all())
    assert {left.slot for left in backend.disclosed()} <= {
        "model",
        "buffers",
        "model weights",
        "control",
    }


def test_who_stays_away_keeps_up() -> None:
    plain, _, _ = trained("ppdg", 4, fraction=2)
    _, outcomes, backend = trained("ppdg", 4, "ckks", "blind", fraction=2)
    assert all(len(outcome.names) == 2 for outcome in outcomes)
    for site in backend.sites.values():
        assert difference(site.inbox["model"], plain.inbox["model"]) < 1e-5


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
            backend = channel.wrap(kind, "blind", made, backend, names)  # type: ignore[assignment]
            made = backend.played(made)  # type: ignore[attr-defined]
        _, outcomes = play(made, state, backend, names, 2)
        seen.append(outcomes[-1].table["loss"])
    assert torch.allclose(*seen, rtol=1e-5)


def test_a_study_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unseen.study import job, plan, setting

    settings = {
        "dataset": "rotated-digits", "methods": ["ppdg"], "targets": ["0"], "seeds": 1,
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


def test_a_site_that_missed_a_sum_says_so() -> None:
    backend, one = site()
    inbox = {name: blind.stand_in(5, torch.float32) for name in ("model", "buffers")}
    exchange = backend.server.label["exchange"]
    hello = backend.server.hello(Exchange(exchange, None), Turn(0, 2, 3, exchange), ["site-a"])  # type: ignore[arg-type]
    backend.server.after = (1, exchange)
    late = backend.server.hello(Exchange(exchange, None), Turn(0, 2, 3, exchange), ["site-a"])  # type: ignore[arg-type]
    assert one.receive(inbox, Turn(0, 2, 3, exchange), hello)["model"].isfinite().all()
    with pytest.raises(BadReply, match="'site-a'.*missed a sum"):
        one.receive(inbox, Turn(0, 2, 3, exchange), late)


def test_no_sum_is_opened_for_a_blind_server() -> None:
    _, one = site()
    header, _ = unpack(one.answer(pack({"kind": "open", "slot": "model"})), "an answer")
    assert header["kind"] == "refused" and "blind" in header["why"]


def test_a_sum_that_comes_twice_or_late_is_refused() -> None:
    backend, one = site()
    label = dict(backend.server.label)
    head = {"kind": "apply", "slot": "model", "context": one.keys.identity}
    for changed in (label, {**label, "round": 9}, {**label, "nonce": "x"}):
        said, _ = unpack(one.answer(pack({**head, **changed})), "an answer")
        assert said["kind"] == "refused"


def test_a_site_that_does_not_take_the_sum_stops_the_round() -> None:
    clients = federation(2)
    made, model = method("fedavg", Training(batch_size=8)), Model(network())
    names = sorted(clients)
    backend = channel.wrap(
        channel.read("ckks", "blind"), "blind", made, InProcess(model, clients), names
    )
    ask = backend.ask
    backend.ask = lambda q: ask({n: x for n, x in q.items() if n != "site-b"})  # type: ignore[method-assign]
    with pytest.raises(BadReply, match="site-b did not take the sum"):
        play(backend.played(made), start(made, model, names, 0), backend, names, 1)


def test_a_site_goes_on_in_another_process() -> None:
    """Every question is answered by a site that was made anew from what the last one saved."""
    clients = federation(2)
    names = sorted(clients)
    made, model = method("ppdg", MOMENTUM), Model(network())
    kind = channel.read("ckks", "blind")
    backend = channel.wrap(kind, "blind", made, InProcess(model, clients), names)
    public, private = channel.keys(kind, names)
    backend.server = channel.serving(kind, "blind", made, names, public)

    class Anew:
        def __init__(self, name: str) -> None:
            self.name, self.saved = name, b""

        def fresh(self) -> kinds.Site:
            made_now = channel.site(
                kind, "blind", made, self.name, private[self.name], backend.memories
            )
            if self.saved:
                made_now.load(self.saved)  # type: ignore[attr-defined]
            return made_now

        def __getattr__(self, call: str) -> object:
            def asked(*given: object) -> object:
                one = self.fresh()
                found = getattr(one, call)(*given)
                self.saved = one.save()  # type: ignore[attr-defined]
                return found

            return asked

    backend.sites = {name: Anew(name) for name in names}  # type: ignore[misc]
    play(backend.played(made), start(made, model, names, 0), backend, names, 2)
    plain, _, _ = trained("ppdg", 2, rounds=2, training=MOMENTUM)
    ended = backend.sites["site-a"].fresh()  # type: ignore[attr-defined]
    kept = ended.memories.before(ended.key, (9, 9))
    assert difference(kept["entry/model"], plain.inbox["model"]) < 1e-5


def test_what_a_blind_server_cannot_do_is_refused_before_the_run() -> None:
    adam = method("fedavg", Training(server=Descend(Adam(lr=0.01))))
    with pytest.raises(UnseenError, match=r"^[^`]+\+blind cannot be: the slot.*roots"):
        channel.check(channel.read("ckks", "blind"), "blind", adam)
    channel.check(channel.read("ckks"), "clear", adam)
    for over in ("clear", "masks()"):
        with pytest.raises(UnseenError, match="needs privacy.channel = 'ckks'"):
            channel.read(over, "blind")


@pytest.mark.parametrize("what", [{"save": ["final"]}, {"record": ["gram"]}])
def test_records_of_what_nobody_sees_are_refused(
    what: dict[str, list[str]], tmp_path: Path
) -> None:
    privacy = {"channel": "ckks", "server": "blind"}
    with pytest.raises(UnseenError, match="in the clear|has none"):
        Study(dataset="rotated-digits", privacy=privacy, **what).run(out=tmp_path)
