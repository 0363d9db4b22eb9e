"""A run ends while a site receives its message: the site answers the next run at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.nodestate import NodeStateFactory

from unseen.sites import flower_workarounds

BUNDLE = "0"


class _Site:
    """What a SuperNode keeps, and a server whose run may end while a message is on its way."""

    def __init__(self) -> None:
        objects = ObjectStoreFactory()
        self.store, self.state = objects.store(), NodeStateFactory(objects).state()
        self.state.set_node_id(2)
        self.pull = flower_workarounds.with_check(supernode._pull_and_store_message)
        self.sent: list[str] = []

    def receive(self, run: int, ended: bool = False, answered: bool = False) -> int | None:
        """Take a message; ended: its run ends meanwhile; answered: after the reply to it."""
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = run
        message = Message(RecordDict({"a": ArrayRecord({})}), dst_node_id=2, message_type="query")
        message.metadata.__dict__.update(_run_id=run, _src_node_id=1)
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            contents = {k: v.deflate() for k, v in get_all_nested_objects(message).items()}
            tree = get_object_tree(message)
        self.state.store_run(SimpleNamespace(run_id=run, fab_hash=BUNDLE, primary_task_type=""))

        def confirm(*_: Any) -> None:
            if answered:
                self.answer(run)
            if ended:
                raise RunNotRunningException

        return self.pull(
            state=self.state, object_store=self.store, node_config={},
            receive=lambda: (message, tree), get_run=lambda _: None,
            get_fab=lambda digest, _: Fab(digest, b"", {}),
            pull_object=lambda _, name: contents[name], confirm_message_received=confirm,
            trusted_entities=None,
        )  # fmt: skip

    def answer(self, run: int) -> None:
        """Do what a ClientApp does: take the run's message, if it is there, and answer it."""
        for message in self.state.get_messages_legacy(run_ids=[run], is_reply=False):
            reply = Message(RecordDict(), reply_to=message)
            supernode._insert_message(reply, self.state, self.store)

    def send(self) -> None:
        def sent(message: Message, *_: Any) -> tuple[set[str], str]:
            self.sent.append(str(message.metadata.run_id))
            return set(), ""

        supernode._push_messages(self.state, self.store, sent, lambda *_: None)


@pytest.fixture(autouse=True)
def _no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, None)


def test_a_message_of_an_ended_run_is_forgotten() -> None:
    site = _Site()
    assert site.receive(1, ended=True) is None
    site.answer(1)
    assert site.receive(2) == 2
    site.answer(2)
    site.send()
    assert site.sent == ["2"]


def test_an_answer_to_an_ended_run_is_forgotten() -> None:
    """The ClientApp was faster than the end of its run."""
    site = _Site()
    assert site.receive(1, ended=True, answered=True) is None
    assert {task.status.status for task in site.state.get_tasks()} == {"finished"}
    assert site.receive(2) == 2
    site.answer(2)
    site.send()
    assert site.sent == ["2"]
