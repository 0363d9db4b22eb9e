"""FINCH: clusters of points that share a nearest neighbour, without a number of clusters to set."""

import torch
import torch.nn.functional as F
from torch import Tensor


def finch(points: Tensor) -> Tensor:
    """Return the cluster [n] of each of the points [n, d], numbered in the order of their firsts.

    Two are linked if one is the other's nearest by cosine, or both have the same nearest; clusters
    are what is connected. The same again joins clusters by their means. The last partition of more
    than one cluster is returned, or the first one if that is a single cluster.

    Source:
        Sarfraz, Sharma, Stiefelhagen 2019, "Efficient Parameter-free Clustering Using First
        Neighbor Relations", Eq. 1; which partition is the choice of FPL's released code.

    Example:
        >>> finch(torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])).tolist()
        [0, 0, 1, 1]
    """
    labels = linked(points)
    while int(labels.max()) > 0:
        onward = linked(means(points, labels))[labels]
        if int(onward.max()) == 0:
            break
        labels = onward
    return labels


def linked(points: Tensor) -> Tensor:
    """Return the connected component [n] of each point, by nearest neighbours."""
    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.long, device=points.device)
    unit = F.normalize(points.double(), dim=1)
    near = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    labels = torch.arange(n, device=points.device)
    while True:  # points that share a nearest one are linked through it
        least = labels.scatter_reduce(0, near, labels, "amin")
        least = torch.minimum(least, least[near])
        if torch.equal(least, labels):
            numbered: Tensor = labels.unique(return_inverse=True)[1]
            return numbered
        labels = least


def means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the points of each cluster [J, d]."""
    own = F.one_hot(labels).to(points.dtype)
    sums: Tensor = own.T @ points
    return sums / own.sum(0)[:, None]
