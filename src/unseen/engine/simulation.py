"""Flower's own engine as the place where clients run: messages over Ray, in its worker processes.

It is for hundreds of clients, over a machine or a cluster with one file system. The bits are those
of one process. What clients remember lies next to the job's checkpoint.
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

from unseen.core import Backend, Client, DenseRows, Exchange, Inbox, Memories, Model, Reply, Turn
from unseen.core.exchange import Method
from unseen.engine import client_memories, messages
from unseen.engine.determinism import reproducible
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError

MEMORIES = "memories"
#: Seconds between two looks for answers.
POLL = 0.005


@dataclass(frozen=True)
class Workplace:
    """What a worker needs to answer for any client of a job.

    Attributes:
        method: What the clients play.
        model: The model that they share.
        clients: All of them by name.
        threads: See `unseen.engine.determinism.reproducible`.
        device: Likewise.
    """

    method: Method
    model: Model
    clients: Mapping[str, Client]
    threads: int
    device: str


def simulate(main: Callable[[Any], None], nodes: int, jobs: int) -> None:
    """Run `main` with a Grid of `nodes` nodes, over `jobs` workers of Ray."""
    messages.needs_flower("a simulation needs")
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def _main(grid: Any, context: Any) -> None:
        main(grid)

    workers: Any = {
        "init_args": {"num_cpus": jobs, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client_app(), nodes, backend_config=workers)


@dataclass
class Nodes(Backend):
    """A backend over the nodes of a simulation: any node can be any client.

    Attributes:
        grid: Flower's grid.
        job: A call that makes the job's `Workplace`, pickled for our own processes on our machines.
        folder: Where the clients' memories lie.
        model: The job's model.
        memories: None: they lie in the folder.
        clients: None: they are at the nodes.
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
        """Return the backend of a job, whose clients forget all if there is no checkpoint."""
        if memories is None:
            shutil.rmtree(folder, ignore_errors=True)
        return cls(grid, job, folder, model)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        from flwr.app import Message

        nodes = self._nodes()
        label = json.dumps(messages.from_turn(turn))
        job: messages.Parcel = {"job": self.job, "turn": label, "folder": str(self.folder)}
        common = {**messages.from_inbox(exchange.outgoing(inbox)), **job}
        parcels = [messages.pack({**common, "client": name}) for name in clients]
        questions = [Message(p, nodes[i % len(nodes)], "query") for i, p in enumerate(parcels)]
        ids = list(self.grid.push_messages(questions))
        replies: dict[str, Reply] = {}
        while len(replies) < len(ids):
            for message in self.grid.pull_messages([id for id in ids if id not in replies]):
                if message.has_error():
                    raise UnseenError(f"a client of the simulation failed: {message.error.reason}")
                id = message.metadata.reply_to_message_id
                replies[id] = messages.to_reply(messages.unpack(message.content))
            time.sleep(POLL)
        return [replies[id] for id in ids]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        return DenseRows([reply.rows[slot] for reply in replies], reference)

    def _nodes(self) -> list[int]:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if nodes := sorted(self.grid.get_node_ids()):
                return nodes
            time.sleep(0.1)
        raise UnseenError("no node of the simulation has come up in 120 s.")


def client_app() -> Any:
    """Return what runs in Ray's workers."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(answer)
    return app


def answer(message: Any, context: Any) -> Any:
    """Play one exchange of one client, as `InProcess` does it."""
    from flwr.app import Message

    parcel = messages.unpack(message.content)
    job = parcel["job"]
    assert isinstance(job, bytes)
    turn, name = messages.to_turn(json.loads(str(parcel["turn"]))), str(parcel["client"])
    work = _workplace(job)
    with reproducible(work.threads, work.device):
        exchange = next(e for e in work.method.exchanges if e.name == turn.exchange)
        inbox = messages.to_inbox(parcel, work.model.device)
        inbox = exchange.incoming(inbox, len(work.model.vector))
        folder = Path(str(parcel["folder"])) / client_memories.slug(name)
        backend = InProcess(work.model, {name: work.clients[name]}, client_memories.load(folder))
        (reply,) = backend.map(exchange, inbox, [name], turn)
        if exchange.slots:
            client_memories.save(folder, backend.memories)
    return Message(messages.pack(messages.from_reply(reply)), reply_to=message)


@lru_cache(maxsize=1)
def _workplace(job: bytes) -> Workplace:
    workplace: Workplace = pickle.loads(job)()
    return workplace
