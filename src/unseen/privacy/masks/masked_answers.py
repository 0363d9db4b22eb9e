"""What the server reads in a site's answer about a masked sum, and whom it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unseen.errors import BadReply
from unseen.privacy import wire
from unseen.privacy.masks import shares
from unseen.privacy.masks.shares import Integers


@dataclass(frozen=True)
class Published:
    """The public parts of one site's seeds.

    Attributes:
        keys: Slot -> the public key of its masks.
        commits: Slot -> what it published of its own seed.
        marks: Site -> slot -> what it published of both shares of that one.
        bundles: Site -> the shares that it sealed for that one.
    """

    keys: Mapping[str, str]
    commits: Mapping[str, str]
    marks: Mapping[str, Mapping[str, Sequence[str]]]
    bundles: Mapping[str, bytes]


@dataclass(frozen=True)
class Deal:
    """The public parts of seeds that sites shared with each other."""

    id: str
    names: list[str]
    own: Mapping[str, Published]

    @property
    def keys(self) -> dict[str, Mapping[str, str]]:
        return {name: self.own[name].keys for name in self.names}

    @property
    def commits(self) -> dict[str, Mapping[str, str]]:
        return {name: self.own[name].commits for name in self.names}

    def bundles_to(self, name: str) -> list[bytes]:
        """Return what the others sealed for a site, in the order of their names."""
        return [self.own[other].bundles[name] for other in self.names if other != name]

    def marks_to(self, name: str) -> dict[str, Any]:
        """Return what the others published of a site's shares."""
        return {other: self.own[other].marks[name] for other in self.names}


def vector_in(
    name: str, head: Mapping[str, Any], parts: wire.Parts, size: int
) -> tuple[Integers, str] | list[str]:
    """Return a masked vector and the model that its site received, or whom the site accuses."""
    if head["kind"] == "accused":
        accused = [str(other) for other in head["accused"] if other != name]
        if not accused:
            raise BadReply("it accuses nobody, and sends no row.")
        return accused
    content = counted(name, head, parts, 1)[0]
    if len(content) != 8 * size or head["size"] != size:
        raise BadReply(f"a masked row of {len(content) / 8:g} numbers, where {size} were asked for")
    if not isinstance(head["received"], str):
        raise BadReply("it does not say which model its row is of")
    return np.frombuffer(content, np.uint64), head["received"]


def published_in(
    name: str, head: Mapping[str, Any], parts: wire.Parts, names: Sequence[str],
    slots: Sequence[str],
) -> Published:  # fmt: skip
    """Return what a site published of its seeds, and what it sealed for each of the others."""
    others = [other for other in names if other != name]
    bundles = dict(zip(others, counted(name, head, parts, len(others)), strict=True))
    keys, commits = ({s: number(head[part][s]) for s in slots} for part in ("keys", "commits"))
    marks = {
        other: {slot: [number(mark) for mark in pair(head["marks"][other][slot])] for slot in slots}
        for other in names
    }
    return Published(keys, commits, marks, bundles)


def pair(values: Any) -> Any:
    """Return two values; anything else is of another form."""
    first, second = values
    return first, second


def number(text: Any) -> str:
    """Return 32 bytes as hexadecimal text; anything else is of another form."""
    if len(bytes.fromhex(text)) != 32:
        raise BadReply(f"a number of {len(text)} digits, where 64 were asked for")
    return str(text)


def counted(name: str, head: Mapping[str, Any], parts: wire.Parts, count: int) -> list[bytes]:
    """Return the parts of an answer, which must be as many as were asked for."""
    if len(parts) != count:
        raise BadReply(f"{len(parts)} parts in its answer {head['kind']!r}, where {count} belong")
    return [bytes(part) for part in parts]


def shares_in(
    name: str, head: Mapping[str, Any], parts: wire.Parts, deal: Deal, slot: str,
    came: Container[str],
) -> list[bytes]:  # fmt: skip
    """Return the shares that a site gives up, each as it was dealt to it.

    Of sites in `came`, whose vectors are here, it is the second share.
    """
    content = counted(name, head, parts, len(deal.names))
    for dealer, share in zip(deal.names, content, strict=True):
        if shares.mark(share) != deal.own[dealer].marks[name][slot][dealer in came]:
            raise BadReply(f"a share that is not the one that {dealer!r} dealt to it")
    return content


def blamed(accused: Mapping[str, Sequence[str]], others: int) -> dict[str, str]:
    """Return who is left out of a sum because of shares that cannot be used, and why.

    `accused` has, by site, whose shares it cannot use; `others` could accuse one site.

    Whom more than half of the others accuse is left out by itself. Of two of whom one accuses the
    other, nobody else can tell which one lies: both are left out.
    """
    by = Counter(name for names in accused.values() for name in set(names))
    why = "the shares that it dealt to the others do not fit what it published"
    alone = {name: why for name, count in by.items() if count >= 2 and 2 * count > others}
    pairs: dict[str, str] = {}
    for name, names in accused.items():
        for other in set(names) - alone.keys() if name not in alone else ():
            pairs |= dict.fromkeys(
                (name, other), f"{name!r} says that it cannot use the shares that {other!r} dealt"
            )
    return alone | pairs
