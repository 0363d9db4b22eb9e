"""The images that an attack found, row under row, beside the true ones: PNG, and SVG with it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

#: Pixels of one image's side, between images, and for the rows' names.
SIDE, GAP, NAMES = 56, 4, 190
#: How many images of a row are shown.
SHOWN = 8


def sheet(images: Mapping[str, Tensor], shown: int = SHOWN) -> bytes:
    """A PNG with one row per attack; each image [C, H, W] is scaled to the true images' range."""
    from PIL import Image, ImageDraw

    first = next(iter(images.values()))
    low, high = float(first.min()), float(first.max())
    columns = min(shown, len(first))
    size = (NAMES + columns * (SIDE + GAP), len(images) * (SIDE + GAP) + GAP)
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    for r, (name, row) in enumerate(images.items()):
        top = GAP + r * (SIDE + GAP)
        draw.text((GAP, top + SIDE // 2 - 6), name, fill="black")
        for c, image in enumerate(row[:columns]):
            page.paste(_picture(image, low, high), (NAMES + c * (SIDE + GAP), top))
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _picture(image: Tensor, low: float, high: float) -> Image.Image:
    from PIL import Image

    scaled = ((image - low) / (high - low or 1.0)).clamp(0, 1).mul(255).round().to(torch.uint8)
    scaled = scaled.expand(3, -1, -1) if len(scaled) == 1 else scaled[:3]
    pixels = scaled.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels, "RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)


def to_svg(images: Mapping[str, Tensor], notes: Mapping[str, str], shown: int = SHOWN) -> str:
    """The same rows as SVG: every image embedded, names and notes as text."""
    first = next(iter(images.values()))
    low, high = float(first.min()), float(first.max())
    columns = min(shown, len(first))
    width = NAMES + columns * (SIDE + GAP)
    height = len(images) * (SIDE + GAP) + GAP
    marks = []
    for r, (name, row) in enumerate(images.items()):
        top = GAP + r * (SIDE + GAP)
        marks.append(f'<text x="{GAP}" y="{top + SIDE // 2}">{escape(name)}</text>')
        if note := notes.get(name):
            marks.append(
                f'<text class="n" x="{GAP}" y="{top + SIDE // 2 + 15}">{escape(note)}</text>'
            )
        for c, image in enumerate(row[:columns]):
            marks.append(
                f'<image x="{NAMES + c * (SIDE + GAP)}" y="{top}" width="{SIDE}" height="{SIDE}" '
                f'href="data:image/png;base64,{_embedded(image, low, high)}"/>'
            )
    style = "text{font:12px sans-serif}.n{font-size:10px;fill:#555}image{image-rendering:pixelated}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Images that attacks recovered">'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" fill="white"/>{"".join(marks)}</svg>\n'
    )


def _embedded(image: Tensor, low: float, high: float) -> str:
    from PIL import Image

    scaled = ((image - low) / (high - low or 1.0)).clamp(0, 1).mul(255).round().to(torch.uint8)
    grey = len(scaled) == 1
    pixels = scaled[0] if grey else scaled[:3].permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy(), "L" if grey else "RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
