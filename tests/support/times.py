"""Sites with times until an event: an exponential law, each site with a baseline of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from unseen.core.turn import keyed

SITES = ("east", "north", "south", "west")


def write(path: Path, rows: int = 60, sites: tuple[str, ...] = SITES) -> Path:
    """A csv file: site, three numbers of which two matter, days, and died as yes or no."""
    lines = ["site,a,b,c,days,died"]
    for k, site in enumerate(sites):
        g = keyed(f"times/{site}")
        x = torch.randn(rows, 3, generator=g)
        rate = (x @ torch.tensor([1.0, -0.7, 0.0])).exp() / (300 * (k + 1))
        t = (-torch.rand(rows, generator=g).log() / rate).ceil()
        c = (1500 * torch.rand(rows, generator=g)).ceil()
        for row, time, end in zip(x.tolist(), t.tolist(), c.tolist(), strict=True):
            cells = [site, *(f"{v:.4f}" for v in row), f"{min(time, end):.0f}"]
            lines.append(",".join([*cells, "yes" if time <= end else "no"]))
    path.write_text("\n".join(lines) + "\n")
    return path


def dataset(path: Path, more: str = "") -> str:
    return f"table(path='{path}', domain='site', label='days', event='died'{more})"
