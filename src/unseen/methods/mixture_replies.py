"""Replies in a mixture: of clients that stay out or diverged, and the summary of all."""

import math
from collections.abc import Sequence
from itertools import starmap

import torch
from torch import Tensor

from unseen.core import Add, Exchange, Inbox, Memory, Model, Reply
from unseen.core.replies import finite

#: What no weight moves by in a round whose training goes well.
LEAP = 1e3


def nothing(exchange: Exchange, received: Inbox, model: Model) -> dict[str, Tensor]:
    """Return the rows of a client that stays out: zeros, which no rule sees."""
    zero = model.vector.new_zeros(1)
    return {
        name: zero.expand(slot.row_shape(slot.entry(received, name)))
        for name, slot in exchange.row_slots.items()
    }


def as_in(answers: Sequence[tuple[Reply, Memory]], name: str) -> float | Tensor:
    """Return a scalar of a client that stays out: zeros of the shape that it has elsewhere."""
    there = (reply.scalars[name] for reply, _ in answers if name in reply.scalars)
    value = next(there, 0.0)
    return torch.zeros_like(value) if isinstance(value, Tensor) else 0.0


def unharmed(reply: Reply, exchange: Exchange) -> Reply:
    """Return the reply; one of zeros if its numbers are not finite, or a weight leaps."""

    def sane(name: str, values: Tensor) -> bool:
        slot = exchange.slots.get(name)
        adds = slot is not None and (slot.sends == "difference" or isinstance(slot.apply, Add))
        limit = LEAP if adds else math.inf
        return not values.numel() or float(values.abs().amax()) < limit  # which NaN is not

    def countable(value: float | Tensor) -> bool:
        return math.isfinite(value) if isinstance(value, float | int) else finite(value)

    if all(starmap(sane, reply.rows.items())) and all(map(countable, reply.scalars.values())):
        return reply
    scalars = {name: torch.as_tensor(value) for name, value in reply.scalars.items()}
    return Reply(
        {name: torch.zeros_like(row) for name, row in reply.rows.items()},
        {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in scalars.items()},
    )


def summary(replies: Sequence[Reply]) -> dict[str, float | Tensor]:
    """Return what records show of all: examples, the steps of all, the mean of their losses."""

    def of(name: str) -> list[float]:
        return [float(reply.scalars.get(name, 0.0)) for reply in replies] or [0.0]

    losses = of("loss")
    return {
        "examples": max(of("examples")),
        "steps": sum(of("steps")),
        "loss": sum(losses) / len(losses),
    }
