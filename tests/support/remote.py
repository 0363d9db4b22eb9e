"""Sites that see nothing but bytes: a backend for tests, each site with its own module."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence

import torch
from safetensors.torch import load, save
from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.exchange import Exchange, Reply
from unseen.core.turn import Turn
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import DenseRows


def to_bytes(reply: Reply) -> bytes:
    tensors = {f"row/{name}": row.contiguous().clone() for name, row in reply.rows.items()}
    scalars = {
        f"scalar/{name}": torch.as_tensor(value, dtype=torch.float64).clone()
        for name, value in reply.scalars.items()
    }
    return save(tensors | scalars, {"order": json.dumps(list(reply.scalars))})


def from_bytes(content: bytes) -> Reply:
    tensors = load(content)
    rows = {n[4:]: t for n, t in tensors.items() if n.startswith("row/")}
    return Reply(rows, {n[7:]: t for n, t in tensors.items() if n.startswith("scalar/")})


class Remote:
    """One InProcess per site, asked by message; what goes in and out is bytes."""

    def __init__(self, module: torch.nn.Module, clients: Mapping[str, Client]) -> None:
        self.sites = {
            name: InProcess(Model(copy.deepcopy(module)), {name: client}, Memories())
            for name, client in clients.items()
        }

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        message = save({name: value.clone() for name, value in inbox.items()})
        answers = {}
        for name in reversed(clients):
            (reply,) = self.sites[name].map(exchange, load(message), [name], turn)
            answers[name] = to_bytes(reply)
        return [from_bytes(answers[name]) for name in clients]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        return DenseRows(torch.stack([reply.rows[slot] for reply in replies]), reference)
