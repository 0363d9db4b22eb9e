"""Labels that are numbers, standardised for training and back in their own unit."""

from dataclasses import dataclass

from torch import Tensor

from unseen.core.labels import CUT


@dataclass(frozen=True)
class Scale:
    """The standardisation of labels: z = (y - mean) / deviation.

    Example:
        >>> import torch
        >>> scale = Scale(1000.0, 50.0)
        >>> scale.standardised(torch.tensor([950.0, 1100.0])).tolist()
        [-1.0, 2.0]
        >>> scale.restored(torch.tensor([-1.0, 2.0])).tolist()
        [950.0, 1100.0]
    """

    mean: float
    deviation: float

    @property
    def far(self) -> bool:
        """Whether numbers are so far from 0 that float32 would cut their spread."""
        return abs(self.mean) * 2.0**-24 > CUT * self.deviation

    def standardised(self, y: Tensor) -> Tensor:
        """Return labels [N] as a model is trained on them, in float32, rounded once."""
        return ((y.double() - self.mean) / self.deviation).float()

    def restored(self, z: Tensor) -> Tensor:
        """Return outputs or standardised labels in the labels' own unit, in float64."""
        return z.double() * self.deviation + self.mean
