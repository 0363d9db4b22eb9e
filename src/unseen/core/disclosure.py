"""What left a client, and what the server could not tell of it."""

from __future__ import annotations

from typing import NamedTuple


class Disclosure(NamedTuple):
    """Something that left a client.

    form: `plain`, `masked`, `encrypted`, or `noised` before it was one of these
    (`noised+masked`). bytes: as sent, without the envelope of the message.
    """

    client: str
    slot: str
    form: str
    bytes: int


class Undecided(NamedTuple):
    """Two clients whose encrypted inner product is too near 0 for its sign to be known."""

    round: int
    exchange: str
    slot: str
    first: str
    second: str
