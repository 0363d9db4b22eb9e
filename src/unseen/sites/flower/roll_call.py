"""Whom a run waits for before it begins, and whether waiting for them can help."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class RollCall:
    """The sites that a run waits for.

    Where none is `expected` by name, whoever connects is. Without the `needed` nothing begins.
    """

    expected: Collection[str]
    needed: Collection[str]
    minimum: int

    def missing(self, here: Collection[str]) -> list[str]:
        """Return who is waited for by name, and is not there."""
        return sorted({*self.expected, *self.needed} - {*here})

    def enough(self, here: Collection[str]) -> bool:
        """Return whether a run could begin with those who are there."""
        least = min(self.minimum, len(self.expected) or self.minimum)
        return len(here) >= least and {*self.needed} <= {*here}

    def hopeless(self, here: Collection[str], refusing: Collection[str], quiet: bool) -> bool:
        """Return whether too few take part although every site has answered.

        Who is connected and refuses is asked again once started again. `quiet` says that nobody new
        has come for a while.

        Note:
            One that is named and not connected may still come. Where none is named, others may
            until as many have come as are needed.
        """
        if self.enough(here):
            return False
        if missing := self.missing(here):
            return {*missing} <= {*refusing}
        return quiet and len({*here, *refusing}) >= self.minimum
