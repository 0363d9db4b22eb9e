"""Numbers and names as labels of figures."""

from __future__ import annotations


def tick(value: float, percent: bool = False) -> str:
    """Return a tick's text.

    >>> tick(0.5), tick(0.5, percent=True), tick(12000.0), tick(0.00001)
    ('0.5', '50', '12k', '1e-05')
    """
    value = value * 100 if percent else value
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value / 1e6:.3g}M" if abs(value) >= 1e6 else f"{value / 1e3:.3g}k"


def shortened(text: str, length: int) -> str:
    """Return a text that is not longer than `length` letters.

    >>> shortened("fedprox(mu=0.1)", 10)
    'fedprox(m…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"
