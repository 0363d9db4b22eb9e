"""What a check of a kit finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    text: str
    remedy: str = ""

    def line(self) -> str:
        """For the person at the keyboard."""
        return f"{self.state:8}{self.what}: {self.text}" + (
            f"  -> {self.remedy}" if self.remedy else ""
        )
