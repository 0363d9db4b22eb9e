"""How often a sketch takes a positive inner product for a negative one, by cosine and width."""

from __future__ import annotations

import math
from typing import Any

import torch
from harness import Goal, main

from unseen.core.turn import keyed
from unseen.privacy.ckks.arithmetic import sketched

COSINES = (0.005, 0.01, 0.02, 0.05, 0.1)
WIDTHS = (1024, 4096, 16384)
#: Nothing is asked of it: the table is for the documentation.
goals: list[Goal] = []


def pair(size: int, cosine: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two vectors of length 1 at this cosine, with a few coordinates much larger than the rest."""
    heavy = torch.rand(size, generator=generator, dtype=torch.float64).pow(-0.4)
    a, b = torch.randn(2, size, generator=generator, dtype=torch.float64) * heavy
    a /= a.norm()
    b -= (a @ b) * a
    b /= b.norm()
    return a, cosine * a + math.sqrt(1 - cosine**2) * b


def wrong(size: int, width: int, cosine: float, trials: int) -> float:
    """The share of projections in which the estimate is negative."""
    a, b = pair(size, cosine, keyed(f"pair/{cosine}"))
    count = 0
    for trial in range(trials):
        key = f"sketch/{width}/{trial}"
        count += float(sketched(a, width, keyed(key)) @ sketched(b, width, keyed(key))) <= 0
    return count / trials


def run(quick: bool) -> dict[str, Any]:
    size, trials = (5_000, 100) if quick else (44_000, 1_000)
    rows = []
    for cosine in COSINES:
        row: dict[str, Any] = {"what": f"cosine {cosine:g}", "way": f"{trials} projections"}
        for width in WIDTHS:
            z = cosine * math.sqrt(width) / math.sqrt(1 + cosine**2)
            theory = 0.5 * math.erfc(z / math.sqrt(2))
            measured = wrong(size, width, cosine, trials)
            row[f"m = {width}"] = f"{100 * measured:.1f} % ({100 * theory:.1f})"
        rows.append(row)
    notes = [
        f"Updates of {size:,} numbers. In brackets Φ(−cos √m / √(1 + cos²)), the normal "
        "approximation."
    ]
    return {"measured": rows, "goals": {}, "notes": notes}


if __name__ == "__main__":
    main(__file__)
