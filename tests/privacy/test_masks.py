"""Masks: they cancel exactly, and what the server holds of one row is noise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.channels import difference, network, trained
from support.sites import federation

pytest.importorskip("cryptography", reason="the extra `he` is not installed")

from unseen import InProcess, Model, Training, UnseenError, method, start
from unseen.core.exchange import Exchange, Reply, Slot
from unseen.core.round import play
from unseen.errors import BadReply, Departed
from unseen.methods.combine.mean import Mean, Sum
from unseen.privacy import channel, kinds, masks
from unseen.privacy.masks import masked_site
from unseen.privacy.wire import pack, unpack


@pytest.mark.parametrize("expression", ["fedavg", "fedavg+ga", "fednova", "fedcsa"])
@pytest.mark.parametrize("K", [2, 3, 5])
def test_three_rounds_as_in_the_clear(expression: str, K: int) -> None:
    plain, _, _ = trained(expression, K)
    found, _, backend = trained(expression, K, "masks()")
    for entry in ("model", "buffers"):
        assert difference(found.inbox[entry], plain.inbox[entry]) < 1e-6
    rows = [left for left in backend.disclosed() if left.slot in ("model", "buffers")]
    assert {left.form for left in rows} == {"masked"}
    seeds = {(left.slot, left.form) for left in backend.disclosed()} - {
        (left.slot, left.form) for left in rows
    }
    assert seeds >= {("seeds", "encrypted"), ("model agreement", "encrypted")}


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


def behind(
    K: int, over: str = "masks()", named: str = "fedavg+ga", batch_size: int = 8
) -> tuple[channel.Channelled, object, Model, list[str]]:
    clients = federation(K)
    made, model = method(named, Training(batch_size=batch_size)), Model(network())
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


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([1.0, 0.0, 0.0], "leave only site-a"),
        ([1.0, 1e-13, -1e-13], "leave only site-a"),
        ([1.0, float("nan"), float("nan")], "not all finite"),
    ],
)
def test_weights_that_single_out_a_client_are_refused(weights: list[float], why: str) -> None:
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    rows = backend.server.rows("model", held(backend), backend.ask)
    again(backend)
    with pytest.raises(BadReply, match=why):
        rows.linear(torch.tensor(weights, dtype=torch.float64))


@pytest.mark.parametrize("weights", [[0.5, 0.25, 0.25], [0.5, 0.5]])
def test_no_second_sum_of_the_same_rows_is_opened(weights: list[float]) -> None:
    """Two sums would differ by rows of few sites, of one in the case of two sites of three."""
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    first = backend.server.rows("model", held(backend), backend.ask)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    begin_again(backend)
    first.linear(third)  # the same sum, as after a crash of the server
    begin_again(backend)
    others = backend.server.rows("model", held(backend)[: len(weights)], backend.ask)
    with pytest.raises(BadReply, match="would differ by rows of few sites"):
        others.linear(torch.tensor(weights, dtype=torch.float64))


def again(backend: channel.Channelled) -> None:
    """As if no sum of the rows that the sites have was ever asked for."""
    begin_again(backend)
    for site in backend.sites.values():
        site.pending |= {"final": {}}


def begin_again(backend: channel.Channelled) -> None:
    """As if the exchange began once more: sites have the same rows, and know what they opened."""
    for site in backend.sites.values():
        site.pending |= {"asked": {}, "deals": {}, "open": []}
    server = backend.server
    server.deals, server.waiting, server.final, server.asked = {}, {}, [], set()


def held(backend: channel.Channelled) -> list[kinds.Sealed]:
    sites = backend.sites
    size = len(next(iter(sites.values())).pending["held"]["model"])
    shape = torch.Size([size])
    return [kinds.Sealed(n, shape, torch.float32, {}, ()) for n in sorted(sites)]


def test_other_weights_for_each_make_noise() -> None:
    """A server that tells one client other weights gets masks that do not cancel."""
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    again(backend)
    ask = backend.ask

    def lying(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        changed = dict(questions)
        header, parts = unpack(changed["site-b"], "a question")
        if header["kind"] == "mask":
            changed["site-b"] = pack({**header, "weights": [0.1, 0.8, 0.1]}, parts)
        return ask(changed)

    rows = backend.server.rows("model", held(backend), lying)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert float(rows.linear(third).abs().median()) > 1e4


def test_no_mask_covers_two_updates() -> None:
    """The same row, played again, comes under other masks, and no mask is taken over."""
    backend, made, model, names = behind(2)
    vectors: list[np.ndarray] = []
    ask, masked = backend.ask, []

    def listening(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = ask(questions)
        if unpack(questions["site-a"], "a question")[0]["kind"] == "mask":
            masked.append(questions["site-a"])
            vectors.append(np.frombuffer(unpack(answers["site-a"], "one")[1][0], np.uint64))
        return answers

    half = torch.full((2,), 0.5, dtype=torch.float64)
    state = start(made, model, names, 0)  # type: ignore[arg-type]
    play(made, state, backend, names, 1)  # type: ignore[arg-type]
    sums = []
    for _ in range(2):
        again(backend)
        sums.append(backend.server.rows("model", held(backend), listening).linear(half))
    assert torch.equal(*sums) and not bool((vectors[0] == vectors[1]).any())
    late, _ = unpack(backend.sites["site-a"].answer(masked[0]), "an answer")
    assert "among others than seeds were shared among" in late["why"]


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
    assert again["kind"] == "shared"  # new seeds, which open no other sum than the first ones
    play(made, state, backend, names, 2)  # type: ignore[arg-type]
    old, _ = unpack(one.answer(questions[0]["site-a"]), "an answer")
    assert "another round" in old["why"]
    damaged = bytearray(questions[-1]["site-a"])
    damaged[20] ^= 1
    said, _ = unpack(one.answer(bytes(damaged)), "an answer")
    assert said["kind"] == "refused"


def test_an_overflow_is_refused() -> None:
    with pytest.raises(BadReply, match="would overflow") as refused:
        masks.fixed(np.array([1.234567e7]), 40, 3)
    assert "1.23" not in str(refused.value)  # which would be a number of the row
    assert masks.fixed(np.array([-1.0]), 40, 3).view(np.int64)[0] == -(1 << 40)


@pytest.mark.parametrize("expression", ["ppdg", "pcgrad", "fedavg+csac", "agrsum", "deepall"])
def test_rules_that_need_more_than_a_sum_are_refused(expression: str) -> None:
    with pytest.raises(UnseenError, match=r"^[^`]+\+masks cannot be: [^`]+$"):
        channel.check(channel.read("masks()"), method(expression))


def test_what_the_server_sees_of_a_row_is_noise() -> None:
    rows = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0))
    for seen, row in zip(channel.read("masks()").seen_by_server(rows), rows, strict=True):
        assert isinstance(seen, bytes)
        numbers = np.frombuffer(seen, np.uint64).view(np.int64).astype(float)
        assert abs(np.corrcoef(numbers, row.numpy())[0, 1]) < 8 / 4096**0.5
    assert channel.read("clear").seen_by_server(rows)[0] is not None


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


def kinds_asked(backend: channel.Channelled) -> list[str]:
    ask, asked = backend.ask, []

    def listening(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        asked.append(unpack(next(iter(questions.values())), "a question")[0]["kind"])
        return ask(questions)

    backend.ask = listening  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("after", range(5))
def test_who_leaves_in_any_phase_costs_no_row_twice(after: int) -> None:
    """Of four, whose sums three can open: one is silent from its `after`-th question on."""
    backend, made, model, names = behind(4, named="fedavg")
    asked = kinds_asked(backend)
    silent(backend, "site-b", after)
    state, outcomes = play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    sums = ["mask", "confirm", "unmask"]
    assert asked == [*["share"] * (2 if after == 0 else 1), *sums, *sums]  # parameters, buffers
    left = ["site-b"] if after < 2 else []
    assert list(outcomes[0].dropped) == left
    plain, model = method("fedavg", Training(batch_size=8)), Model(network())
    here = [name for name in names if name not in left]
    clients = {n: c for n, c in federation(4).items() if n in here}
    # The roster keeps all four: what GA remembers of each is of the same size.
    first = start(plain, model, names, 0)
    inner = InProcess(model, clients)

    class Absent(InProcess):
        def map(self, exchange, asked, sites, turn):  # type: ignore[no-untyped-def]
            replies = dict(zip(here, inner.map(exchange, asked, here, turn), strict=True))
            return [replies.get(n, Reply(fault="away")) for n in sites]

    expected, _ = play(plain, first, Absent(model, clients), names, 1, on_bad_reply="drop")
    assert difference(state.inbox["model"], expected.inbox["model"]) < 1e-6


def test_too_few_to_open_a_sum_leave_it_closed() -> None:
    backend, made, model, names = behind(4)
    for name in ("site-a", "site-b"):
        silent(backend, name, 2)
    with pytest.raises(UnseenError, match="2 sites help to open the sum of 'model', and 3 are"):
        play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]


def phases(backend: channel.Channelled, K: int, lose: str = "") -> dict[str, dict[str, bytes]]:
    """The last questions of each kind, in a sum that one site leaves after its row came."""
    ask, seen = backend.ask, {}

    def listening(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        kind = unpack(next(iter(questions.values())), "a question")[0]["kind"]
        seen[kind] = dict(questions)
        return ask(questions)

    again(backend)
    even = torch.full((K,), 1 / K, dtype=torch.float64)
    backend.server.rows("model", held(backend), listening).linear(even)
    return seen


def test_a_server_never_gets_both_kinds_of_shares() -> None:
    backend, made, model, names = behind(4)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    asked, site = phases(backend, 4), backend.sites["site-a"]
    header, parts = unpack(asked["unmask"]["site-a"], "a question")
    others = {**header, "kind": "confirm", "present": ["site-a", "site-c", "site-d"]}
    said, _ = unpack(site.answer(pack(others)), "an answer")
    assert "others were said to be left" in said["why"]
    said, _ = unpack(site.answer(pack({**header, "vouched": ["site-b"]}, parts[:1])), "an answer")
    assert "2 vouch for who is left; 3 are needed" in said["why"]
    forged = [bytes(parts[1]), bytes(parts[2]), *parts[2:]]  # vouches for nothing
    said, _ = unpack(site.answer(pack(header, forged)), "an answer")
    assert "2 vouch for who is left; 3 are needed" in said["why"]
    opened = site.answer(pack(header, parts))
    assert unpack(opened, "an answer")[0]["kind"] == "unmasked"
    assert site.answer(pack(header, parts)) == opened
    few = {**header, "kind": "confirm", "present": ["site-a", "site-b"]}
    said, _ = unpack(site.answer(pack(few)), "an answer")
    assert "2 are left in the sum" in said["why"]


def test_a_vector_that_comes_late_stays_closed() -> None:
    """The seed that covers the others is opened for it, and its own stream never is."""
    backend, made, model, names = behind(4)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    again(backend)
    vectors: dict[str, np.ndarray] = {}
    sent: list[dict[str, object]] = []
    ask = backend.ask

    def late(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = ask(questions)
        kind = unpack(next(iter(questions.values())), "a question")[0]["kind"]
        if kind == "mask":
            sent.append(unpack(questions["site-b"], "a question")[0])
            content = {n: unpack(a, "one")[1][0] for n, a in answers.items()}
            vectors.update((n, np.frombuffer(c, np.uint64)) for n, c in content.items())
            return {n: a for n, a in answers.items() if n != "site-b"}
        return answers

    rows = backend.server.rows("model", held(backend), late)
    even = torch.full((4,), 0.25, dtype=torch.float64)
    with pytest.raises(Departed):
        rows.linear(even)
    three = rows.take(torch.tensor([0, 2, 3]))
    three.linear(torch.full((3,), 1 / 3, dtype=torch.float64))
    # All that the server can take off the late vector: the streams between it and the others.
    site = backend.sites["site-b"]
    deal = site.pending["deals"]["model"]
    private = masks.shares.key_of(bytes.fromhex(deal["seeds"]["model"][0]))
    bound = masks.shares.purpose(sent[0], site.pending["received"])
    publics = {n: bytes.fromhex(keys["model"]) for n, keys in deal["keys"].items()}
    nothing = np.zeros(len(vectors["site-b"]), np.uint64)
    covers = masks.masked("site-b", private, publics, names, bound, nothing)
    row = masks.fixed(0.25 * site.pending["held"]["model"].double().numpy(), 40, 4)
    own = bytes.fromhex(deal["seeds"]["model"][1])
    stream = masks.shares.own_stream(own, bound, len(row))
    assert bool((vectors["site-b"] - covers - stream == row).all())
    left = (vectors["site-b"] - covers).view(np.int64).astype(float)
    assert abs(np.corrcoef(left, row.view(np.int64))[0, 1]) < 8 / len(row) ** 0.5


def test_shares_that_were_changed_are_refused_by_name() -> None:
    backend, made, model, names = behind(3)
    ask = backend.ask

    def changed(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        swapped = dict(questions)
        header, parts = unpack(swapped["site-a"], "a question")
        if header["kind"] == "mask":
            swapped["site-a"] = pack(header, [bytes(parts[1]), bytes(parts[0])])
        return ask(swapped)

    backend.ask = changed  # type: ignore[method-assign]
    # One site against each of two: nobody can tell who lies, and too few are left.
    with pytest.raises(BadReply, match="'site-a' says that it cannot use the shares that 'site-b'"):
        play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]


def test_a_seed_is_made_again_of_as_many_shares_as_are_needed() -> None:
    names, seed = ["a", "b", "c", "d"], bytes(range(16))
    parts = masks.shares.split(seed, 3, names)
    fits = masks.shares.commitment(seed)
    del parts["b"]
    found = masks.shares.joined(parts, 3, names, lambda s: masks.shares.commitment(s) == fits, "x")
    assert found == seed
    with pytest.raises(BadReply, match="the shares that 'x' dealt give another seed"):
        masks.shares.joined(parts, 3, names, lambda s: False, "x")
    assert len({masks.shares.least(2 / 3, n, 2) for n in (2, 3, 6, 9)}) == 4


def test_who_is_left_counts_with_the_weights_of_those() -> None:
    """Two of large weight hide each other; when one is said to have left, nothing is opened."""
    backend, made, model, names = behind(4)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    again(backend)
    ask = backend.ask

    def dropping(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = ask(questions)
        kind = unpack(next(iter(questions.values())), "a question")[0]["kind"]
        gone = "site-b" if kind == "mask" else ""
        return {name: answer for name, answer in answers.items() if name != gone}

    weights = torch.tensor([1.0, 1.0, 1e-7, 1e-7], dtype=torch.float64)
    rows = backend.server.rows("model", held(backend), dropping)
    with pytest.raises(Departed):
        rows.linear(weights)
    left = torch.tensor([0, 2, 3])
    with pytest.raises(BadReply, match="it would be that client's own row"):
        rows.take(left).linear(weights[left])


def test_a_site_opens_no_sum_of_fewer_than_it_counts_on() -> None:
    backend, made, model, names = behind(6)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    for site in backend.sites.values():
        site.fewest = 5
    even = torch.full((6,), 1 / 6, dtype=torch.float64)
    for count, opens in ((6, True), (5, True), (4, False)):
        again(backend)
        rows = backend.server.rows("model", held(backend), backend.ask).take(torch.arange(count))
        if opens:
            rows.linear(even[:count])
            continue
        with pytest.raises(BadReply, match="masks hide a row among at least 5"):
            rows.linear(even[:count])


@pytest.mark.parametrize("weights", [[1.0, 0.001, 0.001], [1.0, 1 / 25, 1 / 25]])
def test_weights_that_show_one_row_are_refused(weights: list[float]) -> None:
    backend, made, model, names = behind(3)
    play(made, start(made, model, names, 0), backend, names, 1)  # type: ignore[arg-type]
    again(backend)
    rows = backend.server.rows("model", held(backend), backend.ask)
    with pytest.raises(UnseenError, match="leave only site-a"):
        rows.linear(torch.tensor(weights, dtype=torch.float64))


def test_a_position_opens_one_sum_whatever_model_it_came_from() -> None:
    """Two sums of one round, from models one ulp apart, would differ by one site's row."""
    backend, made, model, names = behind(3)
    state = start(made, model, names, 0)  # type: ignore[arg-type]
    play(made, state, backend, names, 1)
    nearly = torch.nextafter(state.inbox["model"], state.inbox["model"] + 1)
    other = replace(state, inbox={**state.inbox, "model": nearly})
    with pytest.raises(UnseenError, match="another sum of the rows of 'model' was opened"):
        play(made, other, backend, names[:2], 1)


def test_a_rule_that_weighs_all_rows_alike_is_known_by_the_site() -> None:
    slots = {"model": Slot(Mean("uniform")), "own": Slot(Mean("examples")), "sum": Slot(Sum())}
    exchange = Exchange("train", None, slots)  # type: ignore[arg-type]
    alike = [masked_site.weighs_alike(exchange, name) for name in (*slots, "none")]
    assert alike == [True, False, True, False]
