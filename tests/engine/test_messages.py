"""What goes into a message comes out of it, in parts that a proxy lets pass."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from support import hall

from unseen.core.exchange import Reply
from unseen.engine.messages import from_reply, pack, size, to_reply, unpack
from unseen.sites.doctor import PART


def test_all_kinds_of_values_come_back() -> None:
    sent = {
        "row": torch.randn(3, 4), "whole": torch.arange(5), "none": torch.zeros(0),
        "number": 0.1, "count": 7, "numbers": [0.5, float("nan")], "text": "é", "bytes": b"\0\xff",
    }  # fmt: skip
    found = unpack(pack(sent))
    assert set(found) == set(sent) and size(found) == size(sent)
    for name, value in sent.items():
        if isinstance(value, torch.Tensor):
            other = found[name]
            assert isinstance(other, torch.Tensor) and other.dtype == value.dtype
            assert torch.equal(other, value)
        else:
            assert repr(found[name]) == repr(value)


def test_a_large_vector_travels_in_parts_that_the_doctor_tries() -> None:
    vector = torch.randn(4_000_000)
    message = Message(pack({"row/model": vector}), 1, "query")
    parts = [len(part.deflate()) for part in get_all_nested_objects(message).values()]
    assert max(parts) <= PART and sum(part > 2**18 for part in parts) == 4
    (found,) = unpack(hall.through_bytes(message).content).values()
    assert isinstance(found, torch.Tensor) and torch.equal(found, vector)


def test_a_reply_keeps_the_order_of_its_scalars() -> None:
    reply = Reply({"model": torch.ones(2)}, {"b": 1.0, "a": torch.tensor([1.0, 2.0])})
    found = to_reply(unpack(pack(from_reply(reply))))
    assert list(found.scalars) == ["b", "a"] and torch.equal(found.rows["model"], torch.ones(2))
