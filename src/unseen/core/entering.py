"""How an exchange's sums enter the inbox: as a whole, or in the parts that slots write."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unseen.core.exchange import Exchange
from unseen.core.types import Inbox, Table

#: An inbox entry, and the part of it that a slot writes.
Place = tuple[str, tuple[int, int] | None]


def sum_by_place(exchange: Exchange, vectors: Mapping[str, Tensor]) -> dict[Place, Tensor]:
    """Return place in the inbox -> the sum of what its slots made, for slot -> vector [P]."""
    sums: dict[Place, Tensor] = {}
    for name, vector in vectors.items():
        slot = exchange.slots[name]
        place = (slot.to or name, slot.part)
        sums[place] = sums[place] + vector if place in sums else vector
    return sums


def apply_sums(
    exchange: Exchange,
    inbox: Inbox,
    sums: Mapping[Place, Tensor],
    states: Mapping[str, Mapping[str, Any]],
    table: Table,
    owned: set[str] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Mapping[str, Any]]]:
    """Let an exchange's sums enter the inbox; behind a blind server, every site does it.

    Args:
        exchange: The exchange whose rules made the sums.
        inbox: The inbox as it was sent out.
        sums: Place in the inbox -> the sum of what its slots made [P].
        states: Slot -> what its step remembers; of slots without a state nothing.
        table: The scalars of those present.
        owned: The entries that nobody else reads any more, in which slots of parts write where they
            lie; others are copied first, and then are in here. An entry that is replaced leaves.
            None: all of the inbox stays as it is.

    Returns:
        The new inbox, and slot -> what its step remembers.
    """
    entries, after, ahead = dict(inbox), dict(states), dict(sums)
    owned = set() if owned is None else owned
    for name, slot in exchange.slots.items():
        place = to, part = slot.to or name, slot.part
        if slot.follows is not None:
            new = exchange.slots[slot.follows].entry(entries, slot.follows)
        elif place in ahead:
            new = ahead.pop(place)
        else:
            continue  # the first slot of this place has applied them all
        if slot.apply is not None:
            own = table if slot.view is None else slot.view.table(table)
            old = slot.entry(entries, name)
            new, after[name] = slot.apply(old, new, after.get(name, {}), own)
        if part is None:
            entries[to] = new
            owned -= {to, *(o for o in owned if memory_of(entries[o]) == memory_of(new))}
            continue
        if to not in owned:
            entries[to] = entries[to].clone()
            owned.add(to)
        if name in after:
            after[name] = apart(after[name], entries[to])
        entries[to][slice(*part)] = new
    return entries, after


def apart(remembered: Mapping[str, Any], *entries: Tensor) -> dict[str, Any]:
    """Return what is remembered, copied where it lies in one of some entries, which may change."""
    places = {memory_of(entry) for entry in entries}
    return {
        name: value.clone() if isinstance(value, Tensor) and memory_of(value) in places else value
        for name, value in remembered.items()
    }


def memory_of(value: Tensor) -> int:
    """Return where the memory of a tensor begins; its views have the same."""
    return value.untyped_storage().data_ptr()
