"""What one local step descends, each a wrapper around another; `Backprop` is the innermost."""

from unseen.methods.gradient.amplitude import AmplitudeMix, Normalised
from unseen.methods.gradient.backprop import Around, Backprop, Gradient, Step
from unseen.methods.gradient.contrast import CrossClient
from unseen.methods.gradient.environments import Environments
from unseen.methods.gradient.episodic import Episodic
from unseen.methods.gradient.fedcurv import Curvature
from unseen.methods.gradient.fishr import Fishr
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.gradient.proximal import Proximal

__all__ = [
    "AmplitudeMix",
    "Around",
    "Backprop",
    "CrossClient",
    "Curvature",
    "Environments",
    "Episodic",
    "Fishr",
    "Gradient",
    "Normalised",
    "Perturbed",
    "Proximal",
    "Step",
]
