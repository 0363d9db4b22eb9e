"""What a check of a kit finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unseen.errors import UnseenError

State = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Which check it is of.
        text: What was found.
        remedy: What to do about it.
    """

    what: str
    state: State
    text: str
    remedy: str = ""

    @classmethod
    def fault(cls, what: str, error: UnseenError) -> Finding:
        """Return a fault from the error that a start of the kit would end with."""
        return cls(what, "fault", error.what.rstrip("."), error.remedy)

    def line(self) -> str:
        """Return the finding as it is printed."""
        return f"{self.state:8}{self.what}: {self.text}" + (
            f"  -> {self.remedy}" if self.remedy else ""
        )
