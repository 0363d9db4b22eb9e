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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.backend.flower import memory, needs_flower
from unseen.backend.flower.wire import Value, from_reply, pack, to_reply, unpack
from unseen.backend.inprocess import InProcess, stacked
from unseen.client import Client, Memories
from unseen.combine.base import DenseRows
from unseen.errors import UnseenError
from unseen.exchange import Exchange, Inbox, Method, Reply, Turn
from unseen.study.holdout import Task
from unseen.study.job import (
    Setting,
    composed,
    dataset,
    evaluated,
    model_of,
    reproducible,
    run_job,
)
from unseen.study.prepare import Prepared, prepare
from unseen.study.records import Job, is_done
from unseen.vector import Model

INBOX, MEMORIES = "inbox/", "memories"
#: Seconds between two looks for answers.
POLL = 0.005
Call = tuple[Callable[..., Job], tuple[Any, ...]]


def in_simulation(calls: Iterable[Call], jobs: int) -> Iterator[Job]:
    """The jobs of a study one after the other, each one's clients over `jobs` workers of Ray.

    calls: `run_job` with a setting, a job and a task.
    """
    needs_flower()
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    listed = [arguments for _, arguments in calls]
    if not listed:
        return
    server = ServerApp()
    done: list[Job] = []

    @server.main()
    def main(grid: Any, context: Any) -> None:
        for setting, job, task in listed:
            folder = job.folder(setting.out) / MEMORIES
            often = replace(setting, checkpoint_seconds=0.0)  # with the clients' memories in step
            place = partial(Nodes.place, grid, pickle.dumps((often, job, task)), folder)
            done.append(run_job(often, job, task, place))
            shutil.rmtree(folder, ignore_errors=True)

    count = max(len(task.sources) + len(task.targets) + len(task.validation) for *_, task in listed)
    run_simulation(
        server_app=server,
        client_app=client_app(),
        num_supernodes=count,
        backend_config={
            "init_args": {"num_cpus": jobs, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    unfinished = [job for setting, job, _ in listed if not is_done(job.folder(setting.out))]
    if unfinished:
        raise UnseenError(
            f"the simulation ended before {unfinished[0]} was done; its log says why."
        )
    yield from done


@dataclass
class Nodes:
    """A backend over the nodes of a simulation: any node can be any client.

    job: setting, job and task as bytes, for our own processes on machines of ours.
    """

    grid: Any
    job: bytes
    folder: Path
    model: Model
    memories: Memories = field(default_factory=Memories)

    @classmethod
    def place(
        cls, grid: Any, job: bytes, folder: Path, model: Model, clients: Mapping[str, Client],
        memories: Memories | None,
    ) -> Nodes:  # fmt: skip
        """The backend as `unseen.study.job` makes it, the first three bound beforehand."""
        setting, _, _ = pickle.loads(job)
        if setting.study.cross_evaluation:
            raise UnseenError("cross_evaluation looks at clients in this process: leave it out.")
        if memories is None:  # from the beginning
            shutil.rmtree(folder, ignore_errors=True)
        return cls(grid, job, folder, model)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """One message to a node for each client."""
        from flwr.app import Message

        nodes = self._nodes()
        told = {**vars(turn), "client": ""}
        common: dict[str, Value] = {INBOX + name: value for name, value in inbox.items()}
        common |= {"job": self.job, "turn": json.dumps(told), "folder": str(self.folder)}
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
    told = json.loads(str(parcel["turn"]))
    turn, name = Turn(**{**told, "roster": tuple(told["roster"])}), str(parcel["client"])
    setting, prepared, method, model = _made(job)
    with reproducible(setting.study.threads, setting.study.device):
        exchange = next(e for e in method.exchanges if e.name == turn.exchange)
        roster = method.gather(prepared.sources) if method.gather else prepared.sources
        client = {**prepared.everyone, **roster}[name]
        inbox = {
            key.removeprefix(INBOX): value.to(model.device)
            for key, value in parcel.items()
            if key.startswith(INBOX) and isinstance(value, Tensor)
        }
        folder = Path(str(parcel["folder"])) / memory.slug(name)
        backend = InProcess(model, {name: client}, memory.load(folder))
        (reply,) = backend.map(exchange, inbox, [name], turn)
        if exchange.slots:
            memory.save(folder, backend.memories)
    return Message(pack(from_reply(reply)), reply_to=message)


@lru_cache(maxsize=1)
def _made(job: bytes) -> tuple[Setting, Prepared, Method, Model]:
    """What a worker needs for a job, made once."""
    found: tuple[Setting, Job, Task] = pickle.loads(job)
    setting, own, task = found
    study = setting.study
    with reproducible(study.threads, study.device):
        data = dataset(study.dataset, setting.data_dir, setting.data)
        prepared = prepare(data, task, study, own.seed)
        method = evaluated(composed(own.method, study, data), prepared, setting, data)
        return setting, prepared, method, model_of(setting, prepared, own.seed, method)
