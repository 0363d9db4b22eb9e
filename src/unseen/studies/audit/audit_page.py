"""The audit's files: audit.json, audit.md and the pictures."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from unseen.core.atomic import write_atomically
from unseen.core.templates import render

#: How many images of a row are shown.
SHOWN = 8


def write(findings: Mapping[str, Any], images: Mapping[str, Tensor], out: Path) -> list[Path]:
    """Write all files and return their paths.

    Args:
        findings: What the attacks found, as plain data.
        images: Row of the picture -> images [N, ...]; only those of the shape [N, C, H, W] are
            drawn.
        out: The folder.
    """
    visual = all(t.ndim == 4 for t in images.values())
    page = render("unseen.studies.audit", "audit.md.jinja", **findings, visual=visual).removesuffix(
        "\n"
    )
    data = json.dumps(findings, indent=1, allow_nan=False) + "\n"
    files = {"audit.json": data.encode(), "audit.md": page.encode()}
    if visual:
        attacks = findings["inversion"]["attacks"]
        notes = {a["what"]: f"{a['psnr']:.1f} dB" for a in attacks if "psnr" in a}
        files["inversion.png"] = sheet(images, notes, "png")
        files["inversion.svg"] = sheet(images, notes, "svg")
    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def sheet(
    images: Mapping[str, Tensor], notes: Mapping[str, str], form: Literal["png", "svg"]
) -> bytes:
    """Draw one row of images per attack.

    Args:
        images: Name of the row -> images [N, C, H, W], the true ones first; all are scaled to the
            range of the true ones.
        notes: Name of the row -> what is written below it.
        form: Of the file.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    truth = next(iter(images.values()))
    low, high = float(truth.min()), float(truth.max())
    columns = min(SHOWN, len(truth))
    width, height = 2.0 + 0.6 * columns, 0.6 * len(images)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "unseen"}):
        figure = Figure(figsize=(width, height), dpi=100)
        grid = figure.subplots(len(images), columns, squeeze=False)
        figure.subplots_adjust(2.0 / width, 0.01, 0.995, 0.99, wspace=0.06, hspace=0.06)
        for axes, (name, row) in zip(grid, images.items(), strict=True):
            label = name + (f"\n{notes[name]}" if name in notes else "")
            axes[0].text(-3.45, 0.5, label, transform=axes[0].transAxes, va="center", fontsize=9)
            for place in axes:
                place.set_axis_off()
            for place, image in zip(axes, row, strict=False):
                pixels = ((image - low) / (high - low or 1.0)).clamp(0, 1)[:3].permute(1, 2, 0)
                place.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        buffer, title = io.BytesIO(), {"Title": "Images that attacks recovered"}
        undated: dict[str, str | None] = {"Date": None} if form == "svg" else {}
        figure.savefig(buffer, format=form, metadata=title | undated)
    return buffer.getvalue()
