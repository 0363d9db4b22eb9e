"""Flower's Grid with every site in this process: messages are Flower's own, taken apart into bytes
and put together again, and each is answered as if its process had just been started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from support.kits import membership
from unseen.engine.messages import pack, unpack
from unseen.sites.flower.script import Position
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.kits.signatures import AUTHORITY, MEMBER, MEMBER_KEY, RECEIPT, read, signed

Answer = dict[str, Any]
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def through_bytes(message: Message) -> Message:
    objects = get_all_nested_objects(message)
    contents = {id: bytes(item.deflate()) for id, item in objects.items()}
    metadata = message.metadata
    copy = inflate_object_from_contents(message.object_id, contents)
    copy.metadata.__dict__.update(metadata.__dict__)
    return copy


@dataclass
class Hall:
    """tamper: (site, question, answer) -> the answers that arrive: none, one or several; or an
    exception's text, which is what a process that ended leaves behind."""

    kits: Mapping[int, Path]
    tamper: Callable[[str, Answer, Answer], Iterable[Answer] | str] = field(
        default=lambda site, question, answer: [answer]
    )
    away: set[int] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)
    keyed: dict[int, str] = field(default_factory=dict)
    waiting: list[Message] = field(default_factory=list)
    sent: list[tuple[str, Answer]] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                node_id=id,
                last_activated_at=str(self.starts.get(id, 0)),
                name=self.keyed.get(id, ""),
            )
            for id in self.kits
            if id not in self.away
        ]

    def begun(self, name: str, folder: Path, data: Path, policy: str = "") -> Site:
        """A site with an account of its own in which the run of this hall has just begun."""
        role = next(site.role for site in map(Site.read, self.kits.values()) if site.name == name)
        (kit,) = kits(folder, {name: role}, data, policy or OPEN).values()
        (own,) = (path for path in self.kits.values() if path.name == name)
        for file in (AUTHORITY, MEMBER, MEMBER_KEY):
            shutil.copy(own / file, kit / file)
        for site, question in self.sent:
            if site == name and question["kind"] == "hello":
                assert "refused" not in handle(question, Site.read(kit))
        return Site.read(kit)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = id = f"{len(self.sent)}-{len(self.waiting)}"
            ids.append(id)
            node = message.metadata.dst_node_id
            if node in self.away:
                continue
            asked = through_bytes(message)
            asked.metadata.__dict__["_message_id"] = id
            question = unpack(asked.content)
            site = Site.read(self.kits[node])
            self.sent.append((site.name, question))
            answers = self.tamper(site.name, question, handle(question, site))
            if isinstance(answers, str):
                self.waiting.append(Message(Error(0, answers), reply_to=asked))
                continue
            for answer in answers:
                reply = Message(pack(answer), reply_to=asked)
                self.waiting.append(through_bytes(reply))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self.lock:  # each answer is fetched by a thread of its own
            ids = set(message_ids)
            found = [m for m in self.waiting if m.metadata.reply_to_message_id in ids]
            self.waiting = [m for m in self.waiting if m not in found]
            return found


#: What lets small studies run without a person at each site.
OPEN = """
approval = "auto"
signed = false
[columns]
"*" = ["feature", "text", "label", "group", "unit", "domain", "levels"]
[least]
examples = 1
rows_per_level = 2
"""


def kits(folder: Path, sites: Mapping[str, str], data: Path, policy: str = OPEN) -> dict[int, Path]:
    """One kit for each site: name -> role."""
    found = {}
    for number, (name, role) in enumerate(sites.items(), 1):
        kit = folder / "kits" / name
        kit.mkdir(parents=True, exist_ok=True)
        (kit / "join.toml").write_text(f'name = "{name}"\nrole = "{role}"\ndata = "{data}"\n')
        (kit / "site.toml").write_text(policy)
        found[number] = kit
    membership(folder / "kits", sites)
    return found


def vouched(question: Mapping[str, Any], places: Path) -> Answer:
    """The question with receipts of its run, as sites that work together sign them.

    places: Folder of all kits.
    """
    head = json.loads(question["head"])
    if not head.get("receipts"):
        return dict(question)
    round, exchange = (head["receipts"][0][key] for key in ("round", "exchange"))
    position = Position(**{**head["position"], "round": round, "exchange": exchange})
    run, members = head["agreement"]["run"], head["agreement"]["members"]
    about = {
        "kind": RECEIPT, "job": position.key(run), "round": round, "exchange": exchange,
        "message": "0" * 64,
    }  # fmt: skip
    sources = [places / n for n, role in members.items() if role == "train"]
    receipts = [signed({**about, "site": read(kit / MEMBER)}, kit / MEMBER_KEY)
                for kit in sources if kit.is_dir()]  # fmt: skip
    return {**question, "head": json.dumps({**head, "receipts": receipts})}


def contents(out: Path) -> dict[str, bytes]:
    """The records of a run, as bytes by path; what one backend alone writes is left out."""
    names = ("source.jsonl", "target.jsonl", "rounds.jsonl", "ledger.jsonl", "final.safetensors")
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.name in names
    }
