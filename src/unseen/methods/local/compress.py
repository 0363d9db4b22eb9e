"""Compressed updates: what is left out of a row is remembered, and added to the next one."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.core.row_codes import Code

ERROR = "compress.error"


@dataclass(frozen=True)
class Compressed(Wrapper):
    """Another local whose update is sent as C(Δ + e), and e ← Δ + e − C(Δ + e).

    Attributes:
        inner: The other local; Δ is its model less the received one.
        code: C.
    """

    clips_per_example = True
    stackable = True
    outermost: ClassVar[bool] = True

    inner: Local
    code: Code

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        rest: Memory = {name: value for name, value in memory.items() if name != ERROR}
        reply, rest = self.inner(model, inbox, client, rest, turn)
        vector = reply.rows["model"]
        update = vector - inbox["model"] if vector is model.vector else vector
        error = memory[ERROR].to(update) if ERROR in memory else torch.zeros_like(update)
        total = update + error
        row = self.code(total)
        return Reply({**reply.rows, "model": row}, reply.scalars), {**rest, ERROR: total - row}
