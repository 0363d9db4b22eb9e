"""What a site may say in a reply: counts of its own examples, and scalars that were asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.core import Exchange, Reply
from unseen.core.metrics.evaluation import Evaluate
from unseen.core.parts import innermost

#: Columns of a table that no site sends.
GIVEN = {"client", "progress", "rounds"}


def beyond(reply: Reply, stated: int | None) -> str | None:
    """Return how a reply claims another number of examples than its site can have, or None.

    `stated` is the most that it may claim, None where the site did not say.
    """
    for name, count in reply.scalars.items():
        if name.partition("@")[0] != "examples":
            continue
        if (name == "examples") == isinstance(count, Tensor):
            return f"{'a list' if name == 'examples' else 'one number'} as {name!r}"
        counts = torch.as_tensor(count, dtype=torch.float64)
        if bool((counts < 0).any() | (counts % 1 != 0).any()):
            return f"{_listed(counts)} as {name!r}, where whole numbers from 0 on belong"
        if stated is not None and float(counts.sum()) > stated:
            return f"{_listed(counts)} as {name!r}, and it said that it has {stated}"
    return None


def _listed(counts: Tensor) -> str:
    return ", ".join(f"{count:.12g}" for count in counts.flatten().tolist()[:8])


def unlike(reply: Reply, exchange: Exchange) -> str | None:
    """Return how scalars are others than those that an exchange asks for, or None.

    Note:
        Where few sites answer, what most of them sent says nothing of what was asked for.
    """
    own = [slot.combine for slot in exchange.row_slots.values() if slot.view is None]
    for rule in filter(None, own):
        for name in set(rule.all_needs()) - GIVEN - reply.scalars.keys():
            return f"no {name!r} among its scalars, which {type(rule).__name__} reads"
    local = innermost(exchange.local)
    if not isinstance(local, Evaluate):
        return None
    expected = scalars_of(local)
    sizes = {n: tuple(s.shape) if isinstance(s, Tensor) else () for n, s in reply.scalars.items()}
    for name in sorted({*expected, *sizes}):
        if name not in sizes:
            return f"no {name!r} among its metrics"
        if sizes[name] != expected.get(name):
            return f"{name!r} among its metrics, which nobody asked for so"
    return None


def scalars_of(local: Evaluate) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every scalar of an evaluation's reply."""
    metrics = (f"{metric}{end}" for metric in local.metrics for end in ("", ".undefined"))
    names = ("examples", *metrics)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    for column, count in local.groups.items():
        shapes |= {f"{name}@{column}": (count,) for name in names}
    return shapes
