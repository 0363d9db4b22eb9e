"""The server: who takes part, what is due, and which replies it may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bounds import gamma
from support.sites import federation
from torch import Tensor, nn

from unseen.core.apply import Add
from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Method, Reply, Slot
from unseen.core.metrics.evaluation import Evaluate, plain
from unseen.core.replies import finite
from unseen.core.round import due, play, play_round, sample, start
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model
from unseen.engine.inprocess import InProcess
from unseen.errors import BadReply, UnseenError
from unseen.methods.combine import Mean

names = st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=6)


@dataclass(frozen=True)
class Move:
    """A local that moves every parameter by what the client's name says, and reports it."""

    by: Mapping[str, float]
    spoil: Mapping[tuple[str, int], Callable[[Reply], Reply]] = field(default_factory=dict)

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        model.vector.add_(self.by[client.name])
        rows = {"model": model.vector, "buffers": model.buffers}
        reply = Reply(rows, {"examples": 1, "by": self.by[client.name]})
        spoil = self.spoil.get((client.name, turn.round))
        return (spoil(reply) if spoil else reply), {"rounds": torch.tensor(turn.round)}


def mean_of(local: Move, *more: Exchange) -> Method:
    slots = {"model": Slot(Mean("uniform"), apply=Add()), "buffers": Slot(like="model")}
    return Method("mean", (Exchange("train", local, slots), *more), (), plain)


MOVES = {"site-a": 1.0, "site-b": 2.0, "site-c": 4.0}
CLIENTS = federation(3)
ROSTER = sorted(CLIENTS)


def rounding(rounds: int) -> float:
    """Of as many means of three moves of up to 4, each added to parameters that begin below 1."""
    return rounds * gamma(5, torch.float32) * (1 + 4 * rounds)


def run(method: Method, rounds: int = 1, **options: object) -> tuple[Tensor, list[object]]:
    """How far each parameter moved, and the outcomes."""
    model = Model(nn.Linear(6, 3))
    begun = start(method, model, ROSTER, seed=0)
    backend = InProcess(model, CLIENTS, Memories())
    state, outcomes = play(method, begun, backend, ROSTER, rounds, **options)  # type: ignore[arg-type]
    moved = state.inbox["model"].double() - begun.inbox["model"].double()
    assert float(moved.max() - moved.min()) <= 2 * rounding(rounds)
    return moved.mean(), outcomes


# --- who takes part --------------------------------------------------------------------------


def turn(seed: int = 0, round: int = 0) -> Turn:
    return Turn(seed, round, 100)


@pytest.mark.parametrize(
    ("K", "fraction", "count"),
    [
        (5, 1.0, 5),
        (5, 0.6, 3),
        (5, 0.4, 2),
        (10, 0.25, 2),
        (5, 0.01, 1),  # somebody always does
        (1, 0.5, 1),
        (5, 1, 1),  # a count
        (5, 3, 3),
        (5, 5, 5),
    ],
)
def test_how_many_take_part(K: int, fraction: float, count: int) -> None:
    roster = [f"c{i}" for i in range(K)]
    assert len(sample(roster, fraction, turn())) == count


@given(K=st.integers(1, 12), count=st.integers(1, 12), seed=st.integers(0, 9))
def test_a_sample_is_part_of_the_roster_in_its_order(K: int, count: int, seed: int) -> None:
    roster = [f"c{i:02}" for i in range(K)]
    chosen = sample(roster, min(count, K), turn(seed))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(roster)


@pytest.mark.parametrize("fraction", [0, 6, -1, True, 0.0, 1.5, -0.5, math.nan])
def test_shares_and_counts_that_cannot_be(fraction: float) -> None:
    with pytest.raises(UnseenError, match="participation") as caught:
        sample(list("abcde"), fraction, turn())
    assert f"found {fraction!r}" in str(caught.value)


def test_participation_is_drawn_anew_each_round_and_evenly() -> None:
    roster = list("abcde")
    drawn = ["".join(sample(roster, 2, turn(round=r))) for r in range(1000)]
    assert len(set(drawn)) == math.comb(5, 2)
    for name in roster:  # 400 expected, standard deviation 15
        assert 340 < sum(name in pair for pair in drawn) < 460
    assert drawn[:20] == ["".join(sample(roster, 2, turn(round=r))) for r in range(20)]
    assert drawn[:20] != ["".join(sample(roster, 2, turn(1, r))) for r in range(20)]


def test_participation_does_not_depend_on_the_order_of_the_roster() -> None:
    method, model = mean_of(Move(MOVES)), Model(nn.Linear(6, 3))
    found = []
    for roster in (ROSTER, ROSTER[::-1]):
        backend = InProcess(model, CLIENTS, Memories())
        begun = start(method, model, roster, seed=3)
        _, outcomes = play(method, begun, backend, roster, 4, 2)
        found.append([outcome.names for outcome in outcomes])
    assert found[0] == found[1]


# --- what is due -----------------------------------------------------------------------------


def exchange(first: int, every: int, evaluation: bool) -> Exchange:
    return Exchange("x", Move(MOVES), {} if evaluation else {"model": Slot()}, (first, every))


@pytest.mark.parametrize(
    ("first", "every", "training", "evaluation"),
    [
        (0, 1, [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]),
        (0, 3, [0, 3, 6], [0, 3, 6]),
        (2, 3, [2, 5], [2, 5, 6]),  # an evaluation also at the end
        (3, 1, [3, 4, 5, 6], [3, 4, 5, 6]),
        (0, 0, [0], [0, 6]),
        (4, 0, [4], [4, 6]),
        (9, 10, [], [6]),
    ],
)
def test_rounds_in_which_an_exchange_is_due(
    first: int, every: int, training: list[int], evaluation: list[int]
) -> None:
    for is_evaluation, expected in ((False, training), (True, evaluation)):
        made = exchange(first, every, is_evaluation)
        assert [r for r in range(7) if due(made, r, 7)] == expected


def test_everyone_or_some_by_name_can_be_asked() -> None:
    evaluate = Evaluate("validation", ("loss",))
    method = mean_of(
        Move(MOVES),
        Exchange("everyone", evaluate, who="all"),
        Exchange("some", evaluate, who=("site-c", "site-a")),
    )
    _, outcomes = run(method, rounds=3, fraction=1)
    asked = {o.turn.exchange: o.names for o in outcomes}  # type: ignore[attr-defined]
    assert asked["everyone"] == ("site-a", "site-b", "site-c")
    assert asked["some"] == ("site-c", "site-a")
    assert len(asked["train"]) == 1


# --- a round ---------------------------------------------------------------------------------


def test_a_mean_of_updates_and_its_record() -> None:
    moved, (outcome,) = run(mean_of(Move(MOVES)))
    assert float(moved) == pytest.approx((1 + 2 + 4) / 3, abs=rounding(1))
    table = outcome.table  # type: ignore[attr-defined]
    assert table["by"].tolist() == [1, 2, 4]
    assert table["client"].tolist() == [0, 1, 2]
    weights = outcome.weights["model"]  # type: ignore[attr-defined]
    assert weights.tolist() == pytest.approx([1 / 3] * 3)


def test_the_table_says_who_and_how_far() -> None:
    _, outcomes = run(mean_of(Move(MOVES)), rounds=4, fraction=2)
    for r, outcome in enumerate(outcomes):
        table = outcome.table  # type: ignore[attr-defined]
        index = [ROSTER.index(name) for name in outcome.names]  # type: ignore[attr-defined]
        assert table["client"].tolist() == index
        assert table["progress"].tolist() == [r / 4] * 2
        assert table["rounds"].tolist() == [4, 4]
        assert table["by"].tolist() == [MOVES[ROSTER[i]] for i in index]


def test_played_in_parts_is_played_at_once() -> None:
    method, model = mean_of(Move(MOVES)), Model(nn.Linear(6, 3))
    begun = start(method, model, ROSTER, seed=0)
    backend = InProcess(model, CLIENTS, Memories())
    state, _ = play(method, begun, backend, ROSTER, 5, 2)
    again = begun
    for _ in range(5):
        again, _ = play_round(method, again, backend, ROSTER, 5, 2)
    assert again.round == state.round == 5
    assert again.inbox["model"].equal(state.inbox["model"])
    assert begun.round == 0


# --- bad replies -----------------------------------------------------------------------------


def with_row(row: Tensor) -> Callable[[Reply], Reply]:
    return lambda reply: Reply({**reply.rows, "model": row}, reply.scalars)


def with_scalar(name: str, value: float | Tensor) -> Callable[[Reply], Reply]:
    return lambda reply: Reply(reply.rows, {**reply.scalars, name: value})


def one(value: float, n: int = 21) -> Tensor:
    row = torch.zeros(n)
    row[n // 2] = value
    return row


FAULTS = {
    "nan": (with_row(one(math.nan)), "NaN or infinite values in 'model'"),
    "infinity": (with_row(one(math.inf)), "NaN or infinite values in 'model'"),
    "minus infinity": (with_row(one(-math.inf)), "NaN or infinite values in 'model'"),
    "short": (with_row(torch.zeros(20)), "'model' of shape [20] where [21] was expected"),
    "matrix": (with_row(torch.zeros(21, 1)), "'model' of shape [21, 1] where [21] was expected"),
    "scalar": (with_scalar("by", math.nan), "'by'"),
    "examples": (with_scalar("examples", math.inf), "'examples'"),
    "vector": (with_scalar("by", torch.tensor([1.0, math.nan])), "'by'"),
    "longer": (with_scalar("by", torch.tensor([1.0, 2.0])), "'by'"),
    "silent": (lambda reply: Reply(reply.rows, {"examples": 1}), "'by'"),
}


@pytest.mark.parametrize(("spoil", "fault"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("who", ["site-a", "site-b", "site-c"])
def test_a_bad_reply_stops_the_round_with_the_clients_name(
    who: str, spoil: Callable[[Reply], Reply], fault: str
) -> None:
    method = mean_of(Move(MOVES, {(who, 1): spoil}))
    run(method)  # round 0 is sound
    with pytest.raises(UnseenError) as caught:
        run(method, rounds=2)
    assert fault in str(caught.value)
    assert who in str(caught.value)
    assert all(other not in str(caught.value) for other in ROSTER if other != who)


@pytest.mark.parametrize(("spoil", "fault"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("who", ["site-a", "site-b", "site-c"])
def test_a_bad_reply_can_be_dropped(who: str, spoil: Callable[[Reply], Reply], fault: str) -> None:
    method = mean_of(Move(MOVES, {(who, 1): spoil}))
    moved, outcomes = run(method, rounds=3, on_bad_reply="drop")
    rest = [move for name, move in MOVES.items() if name != who]
    assert float(moved) == pytest.approx(2 * 7 / 3 + sum(rest) / 2, abs=rounding(3))
    dropped = [dict(o.dropped) for o in outcomes]  # type: ignore[attr-defined]
    assert [list(d) for d in dropped] == [[], [who], []]
    assert fault in dropped[1][who]
    assert outcomes[1].names == tuple(n for n in ROSTER if n != who)  # type: ignore[attr-defined]


@pytest.mark.parametrize("on_bad_reply", ["stop", "drop"])
def test_a_round_of_bad_replies_is_an_error(on_bad_reply: str) -> None:
    spoilt = {(name, 0): with_row(one(math.nan)) for name in ROSTER}
    with pytest.raises(BadReply) as caught:
        run(mean_of(Move(MOVES, spoilt)), on_bad_reply=on_bad_reply)
    assert all(name in str(caught.value) for name in (ROSTER if on_bad_reply == "drop" else ["a"]))


def test_a_missing_row_is_a_bad_reply() -> None:
    slots = {"model": Slot(Mean("uniform"), apply=Add()), "extra": Slot(Mean(), start=zeros)}
    method = Method("two", (Exchange("train", Move(MOVES), slots),), (), plain)
    with pytest.raises(BadReply, match="client 'site-a' .* no row 'extra'"):
        run(method)


def zeros(model: Model) -> Tensor:
    return torch.zeros(2)


def test_an_error_at_a_client_says_where() -> None:
    def fail(reply: Reply) -> Reply:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        run(mean_of(Move(MOVES, {("site-b", 1): fail})), rounds=2)
    (note,) = caught.value.__notes__
    for word in ("'site-b'", "'train'", "round 1"):
        assert word in note


# --- randomness ------------------------------------------------------------------------------


def stream(turn: Turn, purpose: str) -> list[int]:
    return torch.randint(2**31, (4,), generator=turn.generator(purpose)).tolist()


@given(st.lists(st.tuples(names, names, names), min_size=2, max_size=4, unique=True))
def test_streams_of_different_names_never_meet(keys: list[tuple[str, str, str]]) -> None:
    streams = [
        stream(Turn(seed, r, 9, exchange, client), purpose)
        for purpose, exchange, client in keys
        for seed in (0, 1, 11)
        for r in (0, 1, 11)
    ]
    assert len({tuple(s) for s in streams}) == len(streams)


def test_a_stream_depends_on_names_alone() -> None:
    here = Turn(0, 1, 5, "train", "a", order=0)
    assert stream(here, "batches") == stream(Turn(0, 1, 5, "train", "a", order=3), "batches")
    assert stream(here, "batches") == stream(Turn(0, 1, 50, "train", "a"), "batches")
    assert stream(here, "batches") != stream(here, "layers")
    before = torch.get_rng_state()
    torch.rand(3, generator=here.generator("batches"))
    assert torch.get_rng_state().equal(before)


def test_using_one_stream_leaves_the_others() -> None:
    here = Turn(0, 1, 5, "train", "a")
    expected = stream(here, "layers")
    torch.rand(1000, generator=here.generator("batches"))
    assert stream(here, "layers") == expected


def test_numbers_whose_sum_overflows_are_finite() -> None:
    large = torch.finfo(torch.float32).max
    assert finite(torch.full((3,), large)) and finite(torch.tensor([large, -large, -large]))
    for bad in (math.nan, math.inf, -math.inf):
        assert not finite(torch.tensor([large, bad, -large]))
    assert not finite(torch.tensor([math.inf, -math.inf])) and finite(torch.zeros(0))
