"""Sums of rows that are formed as the clients answer."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.alone import played

from unseen import Training, UnseenError
from unseen.core import Exchange, Reply, Slot
from unseen.core.added_rows import Added, AddedRows, add, totals
from unseen.core.client import Client, Split
from unseen.core.replies import sound
from unseen.engine.inprocess import InProcess
from unseen.errors import BadReply
from unseen.methods.combine import Sum
from unseen.methods.exact.boosting import Counts

N, COLUMNS = 600, 4


def sites(count: int) -> dict[str, Client]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, COLUMNS)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64)
    parts = np.array_split(np.arange(N), count)
    return {
        f"s{k:03}": Client(f"s{k:03}", Split(torch.tensor(x[p]), torch.tensor(y[p])), None, 2)
        for k, p in enumerate(parts)
    }


class Counting(InProcess):
    """Counts the bytes of float64 in tensors that are alive whenever a client has answered."""

    most = 0

    def _one(self, *asked):
        reply = super()._one(*asked)
        alive = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
        own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
               for t in alive if t.dtype == torch.float64}  # fmt: skip
        Counting.most = max(Counting.most, sum(own.values()))
        return reply


@pytest.mark.parametrize(
    ("text", "rounds"), [("boost(trees=1, depth=3)", 3), ("forest(trees=2, depth=3)", 3)]
)
def test_memory_of_sums_does_not_grow_with_sites(text: str, rounds: int) -> None:
    def most(count: int) -> int:
        gc.collect()
        Counting.most = 0
        played(text, sites(count), rounds, backend=Counting, training=Training())
        return Counting.most

    few, many = most(4), most(16)
    assert many < 1.2 * few


@pytest.mark.parametrize("text", ["boost(trees=2, depth=3)", "forest(trees=4, depth=3)"])
def test_the_bits_are_those_of_rows_side_by_side(text: str, monkeypatch) -> None:
    one = played(text, sites(7), 6).model.vector.clone()
    monkeypatch.setattr(Sum, "adds", False)
    assert torch.equal(played(text, sites(7), 6).model.vector, one)


def exchange() -> tuple[Exchange, dict[str, torch.Tensor]]:
    slots = {"model": Slot(Sum(3), sends="value")}
    return Exchange("bins", Counts(2), slots), {"model": torch.zeros(5)}


def test_a_reply_with_a_fault_is_in_no_sum() -> None:
    asked, inbox = exchange()
    sums = totals(asked, inbox)
    rows = [
        torch.ones(3).double(),
        torch.full((3,), torch.nan).double(),
        torch.arange(3.0).double(),
    ]
    replies = [add(Reply({"model": row}, {"examples": 1}), sums, asked, inbox) for row in rows]
    names, kept, dropped = sound(["a", "b", "c"], replies, asked, inbox, "drop")
    assert names == ["a", "c"]
    assert set(dropped) == {"b"}
    left = AddedRows([reply.rows["model"] for reply in kept])
    assert left.shape == (2, 3)
    assert left.linear(torch.ones(2)).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(BadReply, match="a sum over 2 clients was asked for 1 of them"):
        AddedRows([kept[0].rows["model"]])
    for read in (left.dense, left.gram, lambda: left.linear(torch.tensor([1.0, 0.5]))):
        with pytest.raises(UnseenError, match="only their sum is left"):
            read()


def test_rows_that_adding_rounds_stay_side_by_side() -> None:
    asked, inbox = exchange()
    assert isinstance(
        add(Reply({"model": torch.ones(3).double()}), totals(asked, inbox), asked, inbox).rows[
            "model"
        ],
        Added,
    )
    for other in (replace(asked, local=lambda *_: None), replace(asked, slots={})):
        assert totals(other, inbox) == {}
