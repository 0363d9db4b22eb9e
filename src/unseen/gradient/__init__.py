"""What one local step descends, each a wrapper around another; `Backprop` is the innermost."""

from unseen.gradient.base import Backprop, Gradient, Step
from unseen.gradient.calibration import Calibration
from unseen.gradient.environments import Environments
from unseen.gradient.fedcurv import Curvature
from unseen.gradient.fishr import Fishr
from unseen.gradient.proximal import Proximal

__all__ = [
    "Backprop",
    "Calibration",
    "Curvature",
    "Environments",
    "Fishr",
    "Gradient",
    "Proximal",
    "Step",
]
