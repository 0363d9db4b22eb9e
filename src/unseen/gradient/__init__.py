"""What one local step descends, each a wrapper around another; `Backprop` is the innermost."""

from unseen.gradient.base import Backprop, Gradient, Step
from unseen.gradient.proximal import Proximal

__all__ = ["Backprop", "Gradient", "Proximal", "Step"]
