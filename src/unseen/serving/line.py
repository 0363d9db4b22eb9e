"""One answer of a model."""

from __future__ import annotations

from dataclasses import dataclass

from unseen.serving.new_rows import Item


@dataclass(frozen=True)
class Line:
    """One answer. label: the class, or the number; probabilities: by class."""

    item: Item
    label: str | float | None = None
    probabilities: tuple[float, ...] = ()
