"""Where time goes: wall time by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds spent in named phases, none inside another."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def lines(self) -> list[str]:
        """Return each phase with its seconds and its share of all phases.

        >>> Clock({"decoding": 3.0, "model": 1.0}).lines()
        ['decoding      3.00 s   75%', 'model         1.00 s   25%', 'total         4.00 s']
        """
        total = sum(self.seconds.values())
        shares = [(n, s, f"  {s / (total or 1):4.0%}") for n, s in self.seconds.items()]
        return [f"{n:<12}{s:6.2f} s{share}" for n, s, share in (*shares, ("total", total, ""))]
