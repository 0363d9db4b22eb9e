"""Compressed updates: the largest numbers of a row, in two bytes each, with error feedback."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from unseen.core import Client, Elementwise, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.parts import Wrapper, innermost, layers
from unseen.core.row_codes import Code
from unseen.methods.base import alone, citing, incompatible, with_exchange
from unseen.methods.gradient.gperxan import OwnNorms
from unseen.methods.local.intercepts import OwnIntercepts
from unseen.methods.options import options_from

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


@options_from(Code)
def add_compress(method: Method, **options: Any) -> Method:
    """Send the largest numbers of every update alone, and keep the rest for the next round.

        v_k = C(Δ_k + e_k),   e_k ← Δ_k + e_k − v_k

    Δ_k: what client k would send; e_k: what it has not sent yet, 0 at first. Over sites, a row goes
    as places and numbers of what is not 0. Masks and encryption hide which numbers are 0, so under
    them a row is as long as any other. Other rows of a method, such as SCAFFOLD's controls, and
    BatchNorm's statistics go whole.

    Note:
        With share=1 and digits='bfloat16' all numbers go, in half of the bytes. Rules that compare
        clients at each coordinate (signs, medians, geometric means) are for share=1 alone.

    Departs from:
        the paper, which sends the step of every single stochastic gradient, in all its digits: here
        C acts on the update of a whole round and rounds to two bytes (not with `digits="float32"`).
    """
    exchange = alone(method)
    slot = exchange.slots["model"]
    if method.rounds is not None:
        why = "sends no update of a network of its own."
        raise incompatible(method, "compress", why, "Put the modifier on its members.")
    if slot.sends != "difference":
        raise incompatible(method, "compress", "sends models, not updates of them.")
    if slot.code is not None:
        raise incompatible(method, "compress", "is compressed already.")
    code = Code(**options)
    if code.share < 1 and isinstance(innermost(slot.combine), Elementwise):
        why = "compares clients at each coordinate, where most of them would send 0."
        raise incompatible(method, "compress", why, "Take +compress(share=1).")
    own = (OwnNorms, OwnIntercepts)
    if code.share < 1 and any(isinstance(part, own) for part in layers(exchange.local)):
        why = "sends what each client has for itself as a value, and what is not sent of a value "
        why += "would be added to the next one, where it is already."
        raise incompatible(method, "compress", why, "Take +compress(share=1).")
    slots = {**exchange.slots, "model": replace(slot, code=code)}
    changed = replace(exchange, local=Compressed(exchange.local, code), slots=slots)
    return citing(with_exchange(method, changed), "stich2018sparsified")
