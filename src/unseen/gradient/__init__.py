"""What one local step descends, each a wrapper around another; `Backprop` is the innermost."""

from unseen.gradient.amplitude import AmplitudeMix, Normalised
from unseen.gradient.backprop import Around, Backprop, Gradient, Step
from unseen.gradient.calibration import Calibration
from unseen.gradient.challenge import SelfChallenging
from unseen.gradient.contrast import CrossClient
from unseen.gradient.environments import Environments
from unseen.gradient.episodic import Episodic
from unseen.gradient.fedcurv import Curvature
from unseen.gradient.fedgala import LocalAlignment
from unseen.gradient.fishr import Fishr
from unseen.gradient.perturbation import Perturbed
from unseen.gradient.proximal import Proximal

__all__ = [
    "AmplitudeMix", "Around", "Backprop", "Calibration", "CrossClient", "Curvature",
    "Environments", "Episodic", "Fishr", "Gradient", "LocalAlignment", "Normalised",
    "Perturbed", "Proximal", "SelfChallenging", "Step",
]  # fmt: skip
