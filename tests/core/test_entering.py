"""How sums enter the inbox: parts are written in copies, or where they lie if nobody else reads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from support.alone import RECIPE, blueprint, completed
from support.sites import federation
from torch import Tensor, nn

from unseen import InProcess, Model, method, start
from unseen.core import Client, Exchange, Inbox, Memory, Method, Reply, Slot, Turn, WithState
from unseen.core.exchange import State
from unseen.core.metrics.evaluation import plain
from unseen.core.round import play_round
from unseen.core.rows import RuleState
from unseen.core.types import Table
from unseen.methods.combine import Mean

CLIENTS = federation(3)
ROSTER = sorted(CLIENTS)
ROUNDS = 5


def states(
    chosen: Method, model: Model, owned: set[str] | None
) -> list[tuple[State, dict[str, Tensor]]]:
    """Each round's state, with its inbox as it was then; and the backend's memories at the end."""
    state, backend = start(chosen, model, ROSTER, 0), InProcess(model, CLIENTS)
    passed = []
    for _ in range(ROUNDS):
        passed.append((state, {name: entry.clone() for name, entry in state.inbox.items()}))
        state, _ = play_round(chosen, state, backend, ROSTER, ROUNDS, owned=owned)
    return [*passed, (state, dict(state.inbox))]


@pytest.mark.parametrize(
    "expression",
    [
        "scaffold+ensemble(members=2)", "fedavg+tail(start=0.4)+ensemble(members=2)",
        "forest(trees=4, depth=3)", "portfolio(members=['fedavg', 'forest(trees=2, depth=2)'])",
    ],
)  # fmt: skip
def test_rounds_are_the_same_where_parts_are_written_in_place(expression: str) -> None:
    runs = []
    for owned in (None, set[str]()):
        plan = blueprint(CLIENTS, "mlp(widths=[8])", rounds=ROUNDS)
        runs.append(states(*completed(method(expression, RECIPE), plan), owned))
    for (_, kept), (_, changed) in zip(*runs, strict=True):
        assert kept.keys() == changed.keys()
        assert all(torch.equal(kept[name], changed[name]) for name in kept)
    # Without `owned` a state stays what it was; with it, it lies where the one before did.
    assert all(torch.equal(s.inbox[n], entry) for s, was in runs[0] for n, entry in was.items())
    places = [{state.inbox["model"].data_ptr() for state, _ in run[2:]} for run in runs]
    assert len(places[1]) < len(places[0])


@dataclass(frozen=True)
class Keeps:
    """A local whose rows are the round, and a memory of what it received."""

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        row = torch.full((5,), float(turn.round + 1))
        return Reply({"a": row, "b": -row}, {"examples": 1}), {"received": inbox["model"][:5]}


@dataclass(frozen=True)
class Remembers:
    """A step that puts the new value in the old one's place, and remembers that one."""

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        return new, {"old": old}


def test_what_is_kept_of_an_entry_does_not_change_with_it() -> None:
    slots = {
        "a": Slot(Mean("uniform"), apply=Remembers(), sends="value", to="model", part=(0, 5)),
        "b": Slot(Mean("uniform"), sends="value", to="model", part=(5, 10)),
    }
    chosen = Method("parts", (Exchange("train", Keeps(), slots),), (), plain)
    model = Model(nn.Linear(9, 1))
    state, backend = start(chosen, model, ROSTER, 0), InProcess(model, CLIENTS)
    owned = set[str]()
    for _ in range(ROUNDS):
        state, _ = play_round(chosen, state, backend, ROSTER, ROUNDS, owned=owned)
    assert owned == {"model"}
    assert state.inbox["model"].tolist() == [5.0] * 5 + [-5.0] * 5
    memory = backend.memories.before(ROSTER[0], (ROUNDS, 0))
    assert memory["received"].tolist() == [4.0] * 5
    assert state.rules["train/a"]["apply"]["old"].tolist() == [4.0] * 5


def test_an_entry_that_is_replaced_is_copied_before_parts_of_it_change() -> None:
    """The step's memory is the entry itself."""
    whole = Slot(Mean("uniform"), apply=Same(), sends="value", to="model")
    part = Slot(Mean("uniform"), sends="value", to="model", part=(0, 5))
    exchanges = Exchange("all", Row(10), {"w": whole}), Exchange("part", Row(5), {"p": part})
    chosen = Method("both", exchanges, (), plain)
    model, owned = Model(nn.Linear(9, 1)), set[str]()
    state, backend = start(chosen, model, ROSTER, 0), InProcess(model, CLIENTS)
    for _ in range(2):
        state, _ = play_round(chosen, state, backend, ROSTER, 2, owned=owned)
        assert state.inbox["model"].tolist() == [5.0] * 5 + [10.0] * 5
        assert state.rules["all/w"]["apply"]["new"].tolist() == [10.0] * 10


@dataclass(frozen=True)
class Row:
    """A local whose row, named as its exchange, is its length."""

    size: int

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        row = torch.full((self.size,), float(self.size))
        return Reply({"w" if self.size == 10 else "p": row}, {"examples": 1}), {}


@dataclass(frozen=True)
class Same:
    """A step that remembers the new value, and returns it."""

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        return new, {"new": new}
