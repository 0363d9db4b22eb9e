"""The audit's files: audit.json, audit.md and the pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.audit.pictures import sheet
from unseen.core.atomic import write_atomically
from unseen.core.templates import render

Findings = Mapping[str, Any]


def write(findings: Findings, images: Mapping[str, Tensor], out: Path) -> list[Path]:
    """Write all files and return their paths.

    Args:
        findings: What the attacks found, as plain data.
        images: Row of the picture -> images [N, ...]; only those of the shape [N, C, H, W] are
            drawn.
        out: The folder.
    """
    drawn = all(t.ndim == 4 for t in images.values())
    files = {"audit.json": (json.dumps(findings, indent=1, allow_nan=False) + "\n").encode()}
    files["audit.md"] = page(findings, drawn).encode()
    if drawn:
        attacks = findings["inversion"]["attacks"]
        notes = {a["what"]: f"{a['psnr']:.1f} dB" for a in attacks if "psnr" in a}
        files["inversion.png"] = sheet(images, notes, "png")
        files["inversion.svg"] = sheet(images, notes, "svg")
    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def page(findings: Findings, drawn: bool) -> str:
    """Return the findings as Markdown; drawn: whether there is a picture."""
    text = render("unseen.audit", "audit.md.jinja", **findings, drawn=drawn)
    return text.removesuffix("\n")
