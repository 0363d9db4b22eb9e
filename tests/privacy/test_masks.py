"""Masks: they cancel exactly, and what the server holds of one row is noise."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.channels import difference, network, trained
from support.sites import federation

pytest.importorskip("cryptography", reason="the extra `he` is not installed")

from unseen import InProcess, Model, Training, UnseenError, method, start
from unseen.combine import Mean
from unseen.core.apply import Add
from unseen.core.exchange import Exchange, Method, Reply, Slot
from unseen.core.metrics import plain
from unseen.core.round import play
from unseen.core.turn import Turn
from unseen.errors import BadReply, Departed
from unseen.privacy import channel, kinds, masks
from unseen.privacy.wire import pack, unpack


@pytest.mark.parametrize("expression", ["fedavg", "fedavg+ga", "fednova", "fedcsa"])
@pytest.mark.parametrize("K", [2, 3, 5])
def test_three_rounds_as_in_the_clear(expression: str, K: int) -> None:
    plain, _, _ = trained(expression, K)
    found, _, backend = trained(expression, K, "masks()")
    for entry in ("model", "buffers"):
        assert difference(found.inbox[entry], plain.inbox[entry]) < 1e-6
    assert {left.form for left in backend.disclosed()} == {"masked"}


@pytest.mark.parametrize("K", [2, 3, 7])
def test_masks_cancel_bit_for_bit(K: int) -> None:
    names = [f"site-{k}" for k in range(K)]
    pairs = {name: masks.make_keys() for name in names}
    publics = {name: public for name, (_, public) in pairs.items()}
    rows = np.random.default_rng(0).integers(0, 1 << 64, (K, 1000), dtype=np.uint64)
    total = np.zeros(1000, np.uint64)
    for name, row in zip(names, rows, strict=True):
        covered = masks.masked(name, pairs[name][0], publics, names, "one", row)
        assert not bool((covered == row).any())
        total = total + covered
    expected = np.zeros(1000, np.uint64)
    for row in rows:
        expected = expected + row
    assert bool((total == expected).all())


def test_the_sum_is_exact_to_the_step() -> None:
    _, outcomes, backend = trained("fedavg", 3, "masks(step=20)", rounds=1)
    weights = outcomes[0].weights["model"].numpy()
    held = [site.pending["held"]["model"].double().numpy() for site in backend.sites.values()]
    fixed = sum(np.rint(np.ldexp(w * row, 20)) for w, row in zip(weights, held, strict=True))
    start_of, _, _ = trained("fedavg", 3, rounds=0)
    found, _, _ = trained("fedavg", 3, "masks(step=20)", rounds=1)
    expected = start_of.inbox["model"] + torch.from_numpy(np.ldexp(fixed, -20)).float()
    assert torch.equal(found.inbox["model"], expected)


def test_two_sides_make_the_same_stream_and_nobody_else_does() -> None:
    first, second = masks.make_keys(), masks.make_keys()
    one = masks.stream(first[0], second[1], "p", 64)
    assert bool((one == masks.stream(second[0], first[1], "p", 64)).all())
    assert not bool((one == masks.stream(first[0], second[1], "q", 64)).any())
    bits = np.unpackbits(masks.stream(first[0], second[1], "p", 1 << 14).view(np.uint8))
    assert abs(float(bits.mean()) - 0.5) < 8 * 0.5 / len(bits) ** 0.5


def behind(K: int, over: str = "masks()") -> tuple[channel.Channelled, object, Model, list[str]]:
    clients = federation(K)
    made, model = method("fedavg+ga", Training(batch_size=8)), Model(network())
    names = sorted(clients)
    backend = channel.wrap(channel.read(over), made, InProcess(model, clients), names)
    return backend, backend.played(made), model, names


def silent(backend: channel.Channelled, who: str, after: int = 0) -> None:
    """From its `after`-th question on, a site does not answer."""
    ask, count = backend.ask, itertools.count()

    def asked(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        gone = next(count) >= after
        return ask({n: q for n, q in questions.items() if not (gone and n == who)})

    backend.ask = asked  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [0, 1])
def test_who_drops_out_is_left_out_and_named(after: int) -> None:
    backend, made, model, names = behind(3)
    silent(backend, "site-b", after)
    state, outcomes = play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    assert outcomes[0].names == ("site-a", "site-c")
    assert list(outcomes[0].dropped) == ["site-b"]
    # The same two clients from the start, in the clear.
    clients = {n: c for n, c in federation(3).items() if n != "site-b"}
    model = Model(network())
    inner = InProcess(model, clients)
    state0 = start(made, model, names, 0)  # type: ignore[arg-type]

    class Absent:
        def map(self, exchange, inbox, asked, turn):  # type: ignore[no-untyped-def]
            here = [n for n in asked if n != "site-b"]
            replies = dict(zip(here, inner.map(exchange, inbox, here, turn), strict=True))
            return [replies.get(n, next(iter(replies.values()))) for n in asked]

        def rows(self, slot, replies, reference):  # type: ignore[no-untyped-def]
            if len(replies) == 3:
                raise Departed(["site-b"])
            return inner.rows(slot, replies, reference)

    expected, _ = play(made, state0, Absent(), names, 1)  # type: ignore[arg-type]
    assert difference(state.inbox["model"], expected.inbox["model"]) < 1e-6


def test_a_sum_of_one_is_refused() -> None:
    backend, made, model, names = behind(2)
    silent(backend, "site-b")
    with pytest.raises(BadReply, match="site-a.*hide a row among at least 2"):
        play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]


def test_weights_that_single_out_a_client_are_refused() -> None:
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    rows = backend.server.rows("model", held(backend), backend.ask)
    for site in backend.sites.values():
        site.pending["asked"] = {}
    with pytest.raises(BadReply, match="leave only site-a"):
        rows.linear(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


def held(backend: channel.Channelled) -> list[kinds.Sealed]:
    sites = backend.sites
    size = len(next(iter(sites.values())).pending["held"]["model"])
    shape = torch.Size([size])
    return [kinds.Sealed(n, shape, torch.float32, {}, ()) for n in sorted(sites)]


def test_other_weights_for_each_make_noise() -> None:
    """A server that tells one client other weights gets masks that do not cancel."""
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    for site in backend.sites.values():
        site.pending["asked"] = {}
    ask = backend.ask

    def lying(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        changed = dict(questions)
        header, _ = unpack(changed["site-b"], "a question")
        changed["site-b"] = pack({**header, "weights": [0.1, 0.8, 0.1]})
        return ask(changed)

    rows = backend.server.rows("model", held(backend), lying)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert float(rows.linear(third).abs().median()) > 1e4


def test_no_mask_covers_two_updates() -> None:
    """A server that plays the same exchange again from another model gets other masks."""
    names = ["site-a", "site-b"]
    pairs = {name: masks.make_keys() for name in names}
    publics = {name: public for name, (_, public) in pairs.items()}
    rule = Mean("uniform")
    exchange = Exchange("train", None, {"model": Slot(rule, apply=Add())})  # type: ignore[arg-type]
    made, kind = Method("m", (exchange,), (), plain), kinds.Masks()
    halves = json.dumps({name: half.hex() for name, half in publics.items()}).encode()
    files = {kinds.PRIVATE: pairs["site-a"][0], kinds.PUBLICS: halves}
    site, server = masks.Site(made, "site-a", files, kind), masks.Server(made, {}, kind)
    turn = Turn(0, 0, 1, "train", "site-a")
    hello = server.hello(exchange, turn)
    question = {"kind": "mask", "slot": "model", **server.label, "names": names, "once": "1",
                "weights": [0.5, 0.5], "blocks": None}  # fmt: skip

    def told(model: float, row: float) -> np.ndarray:
        inbox = {"model": torch.full((64,), model)}
        site.seal(exchange, Reply({"model": torch.full((64,), row)}), inbox, turn, hello)
        return np.frombuffer(unpack(site.answer(pack(question)), "an answer")[1][0], np.uint64)

    step = masks.fixed(np.array([0.5 * (0.25 - 1.0)]), 40, 2)[0]
    assert bool((told(1.0, 0.25) - told(1.0, 1.0) == step).all())
    assert not bool((told(2.0, 0.25) - told(1.0, 1.0) == step).any())


def test_a_question_is_answered_once_or_for_fewer() -> None:
    backend, made, model, names = behind(3)
    questions: list[Mapping[str, bytes]] = []
    ask = backend.ask

    def listening(q: Mapping[str, bytes]) -> dict[str, bytes]:
        questions.append(q)
        return ask(q)

    backend.ask = listening  # type: ignore[method-assign]
    state, _ = play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    one = backend.sites["site-a"]
    again, _ = unpack(one.answer(questions[0]["site-a"]), "an answer")
    assert "asked for before" in again["why"]
    play(made, state, backend, names, 2)  # type: ignore[arg-type]
    old, _ = unpack(one.answer(questions[0]["site-a"]), "an answer")
    assert "another round" in old["why"]
    damaged = bytearray(questions[-1]["site-a"])
    damaged[20] ^= 1
    said, _ = unpack(one.answer(bytes(damaged)), "an answer")
    assert said["kind"] == "refused"


def test_an_overflow_is_refused() -> None:
    with pytest.raises(BadReply, match="would overflow"):
        masks.fixed(np.array([1e7]), 40, 3)
    assert masks.fixed(np.array([-1.0]), 40, 3).view(np.int64)[0] == -(1 << 40)


@pytest.mark.parametrize("expression", ["ppdg", "pcgrad", "fedavg+csac", "agrsum", "deepall"])
def test_rules_that_need_more_than_a_sum_are_refused(expression: str) -> None:
    with pytest.raises(UnseenError, match=r"^[^`]+\+masks cannot be: [^`]+$"):
        channel.check(channel.read("masks()"), method(expression))


def test_what_the_server_sees_of_a_row_is_noise() -> None:
    rows = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0))
    for seen, row in zip(channel.seen_by_server("masks()", rows), rows, strict=True):
        assert isinstance(seen, bytes)
        numbers = np.frombuffer(seen, np.uint64).view(np.int64).astype(float)
        assert abs(np.corrcoef(numbers, row.numpy())[0, 1]) < 8 / 4096**0.5
    assert channel.seen_by_server("clear", rows)[0] is not None


def test_a_row_that_is_not_finite_is_named() -> None:
    clients = federation(3)
    bad = clients["site-b"]
    train = bad.split("train")
    clients["site-b"] = replace(bad, train=replace(train, x=train.x * torch.inf))
    made, model = method("fedavg", Training(batch_size=8)), Model(network())
    names = sorted(clients)
    backend = channel.wrap(channel.read("masks()"), made, InProcess(model, clients), names)
    made = backend.played(made)
    with pytest.raises(BadReply, match="'site-b'.*NaN"):
        play(made, start(made, model, names, 0), backend, names, 1)
