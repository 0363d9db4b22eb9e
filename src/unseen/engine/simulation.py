"""Flower's own engine as the place where clients run: messages over Ray, in its worker processes.

It is for what one process cannot hold or compute: hundreds of clients over a machine, or over a
cluster with one file system. The bits are those of one process. What clients remember lies beside
the job's checkpoint.
"""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.round import Backend
from unseen.core.rows import DenseRows
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.engine import client_memories
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess, stacked
from unseen.engine.messages import (
    Value,
    from_inbox,
    from_reply,
    from_turn,
    needs_flower,
    pack,
    to_inbox,
    to_reply,
    to_turn,
    unpack,
)
from unseen.errors import UnseenError

MEMORIES = "memories"
#: Seconds between two looks for answers.
POLL = 0.005


@dataclass(frozen=True)
class Workplace:
    """What a worker needs to answer for any client of a job.

    clients: all of them by name. threads, device: see `unseen.engine.determinism.reproducible`.
    """

    method: Method
    model: Model
    clients: Mapping[str, Client]
    threads: int
    device: str


def simulate(main: Callable[[Any], None], nodes: int, jobs: int) -> None:
    """Run `main` with a Grid of `nodes` nodes, over `jobs` workers of Ray."""
    needs_flower()
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def _main(grid: Any, context: Any) -> None:
        main(grid)

    run_simulation(
        server_app=server,
        client_app=client_app(),
        num_supernodes=nodes,
        backend_config={
            "init_args": {"num_cpus": jobs, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


@dataclass
class Nodes(Backend):
    """A backend over the nodes of a simulation: any node can be any client.

    job: a call that makes the job's `Workplace`, pickled for our own processes on machines of ours.
    """

    grid: Any
    job: bytes
    folder: Path
    model: Model
    memories: Memories = field(default_factory=Memories)
    clients: Mapping[str, Client] = field(default_factory=dict)

    @classmethod
    def place(
        cls, grid: Any, job: bytes, folder: Path, model: Model, clients: Mapping[str, Client],
        memories: Memories | None,
    ) -> Nodes:  # fmt: skip
        """The backend of a job, the first three bound beforehand."""
        if memories is None:  # from the beginning
            shutil.rmtree(folder, ignore_errors=True)
        return cls(grid, job, folder, model)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """One message to a node for each client."""
        from flwr.app import Message

        nodes = self._nodes()
        common: dict[str, Value] = from_inbox(inbox)
        common |= {"job": self.job, "turn": json.dumps(from_turn(turn)), "folder": str(self.folder)}
        messages = [
            Message(pack({**common, "client": name}), nodes[i % len(nodes)], "query")
            for i, name in enumerate(clients)
        ]
        ids = list(self.grid.push_messages(messages))
        found: dict[str, Reply] = {}
        while len(found) < len(ids):
            for message in self.grid.pull_messages([id for id in ids if id not in found]):
                if message.has_error():
                    raise UnseenError(f"a client of the simulation failed: {message.error.reason}")
                id = message.metadata.reply_to_message_id
                found[id] = to_reply(unpack(message.content))
            time.sleep(POLL)
        return [found[id] for id in ids]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        """The slot's rows as a matrix."""
        return DenseRows(stacked([reply.rows[slot] for reply in replies]), reference)

    def _nodes(self) -> list[int]:
        """The simulation's nodes, once they are there."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if nodes := sorted(self.grid.get_node_ids()):
                return nodes
            time.sleep(0.1)
        raise UnseenError("no node of the simulation has come up in 120 s.")


def client_app() -> Any:
    """What runs in Ray's workers."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(answer)
    return app


def answer(message: Any, context: Any) -> Any:
    """One exchange of one client, as `InProcess` does it."""
    from flwr.app import Message

    parcel = unpack(message.content)
    job = parcel["job"]
    assert isinstance(job, bytes)
    turn, name = to_turn(json.loads(str(parcel["turn"]))), str(parcel["client"])
    work = _made(job)
    with reproducible(work.threads, work.device):
        exchange = next(e for e in work.method.exchanges if e.name == turn.exchange)
        inbox = to_inbox(parcel, work.model.device)
        folder = Path(str(parcel["folder"])) / client_memories.slug(name)
        backend = InProcess(work.model, {name: work.clients[name]}, client_memories.load(folder))
        (reply,) = backend.map(exchange, inbox, [name], turn)
        if exchange.slots:
            client_memories.save(folder, backend.memories)
    return Message(pack(from_reply(reply)), reply_to=message)


@lru_cache(maxsize=1)
def _made(job: bytes) -> Workplace:
    """What a worker needs for a job, made once."""
    make: Callable[[], Workplace] = pickle.loads(job)
    return make()
