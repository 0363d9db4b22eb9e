"""Several networks in one: the weighted mean of their predictions, and averages over rounds."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    """The mean of several networks' predictions, weighted.

    For classes p = Σ_m w_m softmax(f_m(x)), and the outputs are log p, or log odds where the
    networks have one output; for numbers Σ_m w_m f_m(x).

    Args:
        members: The networks whose predictions are mixed.
        numbers: Whether outputs are numbers to predict, and not scores of classes.
        others: Networks that train with them and have no part in predictions.

    Attributes:
        weights: w [M], which sum to 1.
    """

    def __init__(
        self, members: Iterable[nn.Module], numbers: bool, others: Iterable[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.members, self.others = nn.ModuleList(members), nn.ModuleList(others)
        self.numbers = numbers
        count = len(self.members)
        self.weights = nn.Parameter(torch.full((count,), 1 / count))

    def forget(self) -> None:
        """Drop the networks that have no part in predictions."""
        self.others = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([member(x) for member in self.members])
        weights = self.weights.view(-1, *(1 for _ in outputs.shape[1:]))
        if self.numbers:
            return (weights * outputs).sum(0)
        mixed = (weights * probabilities(outputs)).sum(0).clamp(min=1e-12)
        return mixed.log() if outputs.shape[2] > 1 else mixed.logit(1e-7)


def lean(network: nn.Module) -> nn.Module:
    """Return the network without the parts that train with it and have no part in predictions."""
    for part in list(network.modules()):
        if isinstance(part, Mixture | Averaged):
            part.forget()
    return network


def probabilities(outputs: Tensor) -> Tensor:
    """Return the probabilities of logits [M, N, C, ...], or of class 1 of one logit [M, N, 1]."""
    return outputs.softmax(2) if outputs.shape[2] > 1 else outputs.sigmoid()


class Averaged(nn.Module):
    """A network that trains, and its average over rounds, which predicts.

    Args:
        trained: The network.
        average: Another of the same form, with the same weights.
    """

    def __init__(self, trained: nn.Module, average: nn.Module) -> None:
        super().__init__()
        self.trained, self.average = trained, average

    def forget(self) -> None:
        """Drop the network of which the average is."""
        self.trained = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.average(x)
        return outputs
