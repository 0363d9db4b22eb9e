"""Our rules in a Flower project of the user's own: Flower's messages, our aggregation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds import gamma

pytest.importorskip("flwr", reason="needs the extra flower")

import support.hall  # noqa: F401  (names this process to Flower)
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from unseen.errors import UnseenError
from unseen.flower import strategy
from unseen.methods.combine import PPDG, Collect, GeneralizationAdjustment, Mean, Median, PCGrad


@dataclass
class Nodes:
    """A Grid whose clients move every array by what is their own."""

    moves: dict[int, dict[str, Any]]
    sizes: dict[int, int]
    spoil: set[int] = field(default_factory=set)

    def get_node_ids(self) -> list[int]:
        return list(self.moves)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: Any = None
    ) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        n = {"num-examples": self.sizes[node], "gap": 0.1 * node, "gap_known": 1.0}
        (sent,) = message.content.array_records.values()
        moved = {
            name: Array(np.asarray(old + self.moves[node][name], old.dtype))
            for name, old in ((name, array.numpy()) for name, array in sent.items())
        }
        if node in self.spoil:
            moved["weight"] = Array(np.full(3, np.nan, np.float32))
        records = {"arrays": ArrayRecord(moved), "metrics": MetricRecord(n)}
        if message.metadata.message_type == "evaluate":
            del records["arrays"]
        reply = Message(RecordDict(records), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def nodes(spoil: set[int] | None = None) -> Nodes:
    rng = np.random.default_rng(0)
    moves = {
        node: {
            "weight": rng.normal(size=3).astype(np.float32),
            "running_var": rng.random(2).astype(np.float32),
            "num_batches_tracked": 2,
        }
        for node in (11, 12, 13)
    }
    return Nodes(moves, {11: 10, 12: 30, 13: 60}, spoil or set())


def begin() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.zeros(3, np.float32)),
            "running_var": Array(np.ones(2, np.float32)),
            "num_batches_tracked": Array(np.array(0)),
        }
    )


def played(made: Any, grid: Nodes, rounds: int = 1) -> dict[str, Any]:
    found = made.start(grid, begin(), num_rounds=rounds).arrays
    return {name: array.numpy() for name, array in found.items()}


def test_a_mean_by_examples_is_flowers_own_fedavg() -> None:
    ours, theirs = played(strategy(Mean()), nodes(), 2), played(FedAvg(), nodes(), 2)
    # Two rounds of a mean of three, each six roundings, of entries that end below 8; both ways.
    bound = 2 * gamma(12, torch.float32) * 8
    for name in ("weight", "running_var"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=bound)
    assert ours["num_batches_tracked"] == 4


@pytest.mark.parametrize("rule", [PPDG(lam=0.1, order="fixed"), PCGrad(order="fixed"), Median()])
def test_a_rule_gets_the_updates_and_the_statistics_its_mean(rule: Any) -> None:
    grid = nodes()
    updates = torch.tensor(np.stack([own["weight"] for own in grid.moves.values()]))
    vector, _, _ = rule(updates, {"examples": torch.tensor([10.0, 30.0, 60.0])}, rule.init(3, 3))
    found = played(strategy(rule), grid)
    np.testing.assert_allclose(found["weight"], vector.numpy(), rtol=1e-6)
    spread = np.mean([own["running_var"] for own in grid.moves.values()], axis=0)
    np.testing.assert_allclose(found["running_var"], 1 + spread, rtol=1e-6)


def test_a_rule_remembers_each_client_and_reads_its_numbers() -> None:
    made = strategy(GeneralizationAdjustment(), clients=3)
    played(made, nodes(), 3)
    assert [*made.roster] == [11, 12, 13] and made.rounds == 3


def test_nan_is_left_out() -> None:
    found = played(strategy(Mean("uniform")), nodes({12}))
    kept = [own["weight"] for node, own in nodes().moves.items() if node != 12]
    np.testing.assert_allclose(found["weight"], np.mean(kept, axis=0), rtol=1e-6)


def test_what_cannot_be_a_strategy() -> None:
    with pytest.raises(UnseenError, match="Weighted, Gram or Elementwise rule; found Collect"):
        strategy(Collect())
    with pytest.raises(UnseenError, match="3 clients.*GeneralizationAdjustment, which remembers"):
        played(strategy(GeneralizationAdjustment(), clients=2), nodes())


@pytest.mark.parametrize("rule", [Mean(), PPDG(), Median()])
def test_a_rule_that_remembers_no_client_takes_whoever_comes(rule: Any) -> None:
    assert set(played(strategy(rule, clients=2), nodes())) == set(played(strategy(rule), nodes()))
