"""A site answers in its own name alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from support.hall import Hall, kits
from test_hall import SITES, _quick, written

from unseen.sites import flower_workarounds
from unseen.sites.flower import server_run

__all__ = ["_quick"]


def pushed(own: int, *senders: int) -> Any:
    messages = [Message(metadata=Metadata(src_node_id=sender)) for sender in senders]
    return PushMessagesRequest(node=Node(node_id=own), messages_list=messages)


def test_a_message_in_another_node_s_name_is_not_taken() -> None:
    taken: list[Any] = []
    push = flower_workarounds.with_sender(lambda request, state: taken.append(request))
    push(pushed(7, 7), None)
    push(pushed(7), None)
    for senders in ((8,), (7, 8)):
        with pytest.raises(FlowerError):
            push(pushed(7, *senders), None)
    assert len(taken) == 2


def test_flower_has_the_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink.servicer.fleet import fleet_handlers

    monkeypatch.setattr(fleet_handlers, "push_messages", fleet_handlers.push_messages)
    flower_workarounds.check_senders()
    with pytest.raises(FlowerError):
        fleet_handlers.push_messages(request=pushed(7, 8), state=None)


def test_an_answer_that_another_node_gave_costs_the_asked_site_alone(tmp_path: Path) -> None:
    class Forged(Hall):
        def pull_messages(self, message_ids: Any) -> Any:
            messages = super().pull_messages(message_ids)
            for message in messages:
                if message.metadata.src_node_id == 2 and len(self.sent) > 8:
                    message.metadata.__dict__["_src_node_id"] = 3
            return messages

    hall = Forged(kits(tmp_path, SITES, tmp_path))
    server_run.run(str(written(tmp_path, "fedavg", 1)), str(tmp_path / "out"), hall, list(SITES))
    (line,) = (tmp_path / "out").rglob("rounds.jsonl")
    assert "another node gave in its name" in line.read_text()
