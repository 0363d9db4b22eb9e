"""What a client's reply must be before a rule may use it, and the table of its scalars."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from unseen.core.exchange import Exchange, Reply
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Table
from unseen.errors import BadReply, Diverged

OnBadReply = Literal["stop", "drop"]
NOT_FINITE = "NaN or infinite values"
#: Of a row whose squared length its own type cannot hold: the next sum or product of it would not
#: be finite, and honest clients would be named for it a round later.
TOO_LONG = "numbers too large to be squared"
#: The name and shape of each scalar of a reply.
ScalarShapes = tuple[tuple[str, tuple[int, ...]], ...]


def sound(
    names: Sequence[str],
    replies: Sequence[Reply],
    exchange: Exchange,
    inbox: Inbox,
    on_bad_reply: OnBadReply,
) -> tuple[list[str], list[Reply], dict[str, str]]:
    """Return the replies that a rule may use, and why others were left out.

    Args:
        names: Who was asked.
        replies: What each answered.
        exchange: The exchange.
        inbox: What the clients received.
        on_bad_reply: Whether a bad reply stops the round or is left out of it.

    Returns:
        The names and replies that are left, and name -> fault of the others.

    Raises:
        BadReply: If one is bad and `on_bad_reply` is "stop", or if all are.
    """
    dropped: dict[str, str] = {}
    expected, shapes = row_shapes(exchange, inbox), list(map(_scalar_shapes, replies))
    answered = [own for own, reply in zip(shapes, replies, strict=True) if not reply.fault]
    usual = Counter(answered).most_common(1)[0][0] if answered else ()
    for name, reply, own in zip(names, replies, shapes, strict=True):
        fault = find_fault(reply, expected) or unusual(own, usual)
        if fault and on_bad_reply == "stop":
            raise kind(fault)(
                f"client {name!r} replied to exchange {exchange.name!r} with {fault}; the round "
                "was stopped.",
                remedy="Look at this client's data and learning rate, or let the round go on "
                "without it with on_bad_reply = 'drop'.",
            )
        if fault:
            dropped[name] = fault
    if len(dropped) == len(names) and (exchange.slots or on_bad_reply == "stop"):
        worst = max(dropped.values(), key=lambda fault: kind(fault) is BadReply)
        raise kind(worst)(f"every client's reply to {exchange.name!r} was bad: {dropped}.")
    usable = {n: r for n, r in zip(names, replies, strict=True) if n not in dropped}
    return list(usable), list(usable.values()), dropped


def row_shapes(exchange: Exchange, inbox: Inbox) -> dict[str, torch.Size]:
    """Return slot -> the shape of a reply's row, for the slots that clients send a row for."""
    return {n: slot.row_shape(slot.entry(inbox, n)) for n, slot in exchange.row_slots.items()}


def find_fault(reply: Reply, shapes: Mapping[str, torch.Size]) -> str | None:
    """Return what is wrong with a reply, or None.

    Args:
        reply: What a client answered.
        shapes: Those of the rows that it was to send, by slot.
    """
    if reply.fault:
        return reply.fault
    for name, expected in shapes.items():
        row = reply.rows.get(name)
        if row is None:
            return f"no row {name!r}"
        if fault := getattr(row, "fault", ""):  # a sealed row: only its client could look
            return f"{fault} in {name!r}"
        if row.shape != expected:
            return f"{name!r} of shape {list(row.shape)} where {list(expected)} was expected"
        if not isinstance(row, Tensor):
            continue
        if not row.is_floating_point():
            return f"{name!r} of type {row.dtype} where real numbers were expected"
        if row.numel() and not math.isfinite(length(row)):
            return f"{TOO_LONG if finite(row) else NOT_FINITE} in {name!r}"
    for name, value in reply.scalars.items():
        if not (math.isfinite(value) if isinstance(value, float | int) else finite(value)):
            return f"{NOT_FINITE} as {name!r}"
    return None


def diverged(reply: Reply) -> bool:
    """Return whether a row of a reply is not finite, so that no round can use it."""
    rows = (row for row in reply.rows.values() if isinstance(row, Tensor))
    return any(row.is_floating_point() and not finite(row) for row in rows)


def length(row: Tensor) -> float:
    """Return the Euclidean length of a row, infinite where its type cannot hold the square."""
    wide = torch.promote_types(row.dtype, torch.float32)
    return float(torch.linalg.vector_norm(row, dtype=wide))


def finite(values: Tensor) -> bool:
    """Return whether all numbers are finite.

    They are if their sum is; where that overflows, the smallest and the largest of them decide.
    """
    if not values.numel() or math.isfinite(float(values.sum())):
        return True
    return all(math.isfinite(end) for end in torch.aminmax(values))


def finished(reply: Reply, exchange: Exchange, inbox: Inbox, own: Mapping[str, Tensor]) -> Reply:
    """Return the rows of the exchange's slots, after taking differences in place.

    Args:
        reply: What the outermost local returned: what wraps a local still sees the model.
        exchange: The exchange.
        inbox: What the client received.
        own: Slot -> the tensor that the model is bound to.
    """
    rows = {}
    for name, slot in exchange.slots.items():
        if (row := reply.rows.get(name)) is None:
            continue  # a bad reply, which the round refuses or leaves out
        if row is own.get(name) and slot.sends == "difference":
            row.sub_(slot.entry(inbox, name))
        rows[name] = row
    return Reply(rows, reply.scalars)


def kind(fault: str) -> type[BadReply]:
    """Return the error for a fault: diverged where numbers stopped being finite."""
    return Diverged if fault.startswith((NOT_FINITE, TOO_LONG)) else BadReply


def _scalar_shapes(reply: Reply) -> ScalarShapes:
    shapes = ((n, v.shape if isinstance(v, Tensor) else ()) for n, v in reply.scalars.items())
    return tuple(sorted(shapes))


def unusual(shapes: ScalarShapes, usual: ScalarShapes) -> str | None:
    """Return how a reply's scalars differ from those of most others, or None."""
    if shapes == usual:
        return None
    own, others = dict(shapes), dict(usual)
    for name in sorted({*own, *others}):
        if own.get(name) != others.get(name):
            kind, usual_kind = (
                f"shape {list(each[name])}" if name in each else "nothing" for each in (own, others)
            )
            return f"{kind} as {name!r} where most sent {usual_kind}"
    return None


def tabulate(
    names: Sequence[str], replies: Sequence[Reply], roster: Sequence[str], turn: Turn
) -> Table:
    """Return the table of an exchange, with `client`, `progress` r/R and `rounds` R.

    Args:
        names: Who takes part [k].
        replies: Theirs.
        roster: All clients, sorted; somebody else is client −1.
        turn: Which exchange it is.

    Returns:
        Name -> [k] or [k, m] float64.
    """
    index = {name: i for i, name in enumerate(roster)}
    columns = {
        "client": [index.get(name, -1) for name in names],
        "progress": [turn.round / turn.rounds] * len(names),
        "rounds": [turn.rounds] * len(names),
    }
    table = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    for scalar in replies[0].scalars if replies else ():
        values = [r.scalars[scalar] for r in replies]
        if all(isinstance(value, float | int) for value in values):
            table[scalar] = torch.tensor(values, dtype=torch.float64)
        else:
            rows = [torch.as_tensor(value, dtype=torch.float64) for value in values]
            table[scalar] = torch.stack(rows)
    return table
