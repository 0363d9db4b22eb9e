"""The loss around a global model, on the plane through three local ones (GA, Figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.report.figures import Surface

#: Values per axis, and how far the grid goes beyond the models, as a share of their extent.
CELLS, MARGIN = 25, 0.35


@dataclass(frozen=True)
class Plane:
    """All θ = origin + a·u + b·v, with u and v orthogonal and of length 1 [P].

    Attributes:
        points: Name -> (a, b); models outside the plane are shown at their projection.
        off: Name -> the distance from the plane.
    """

    origin: Tensor
    u: Tensor
    v: Tensor
    points: Mapping[str, tuple[float, float]]
    off: Mapping[str, float]

    def at(self, a: float, b: float) -> Tensor:
        """Return the parameters [P] at a place of the plane."""
        return self.origin + a * self.u + b * self.v


def plane(models: Mapping[str, Tensor], anchor: tuple[str, Tensor]) -> Plane:
    """Return the plane through three models, with the anchor's projection as one more point.

    u = (θ2 − θ1) / ‖·‖; v = the part of (θ3 − θ1) orthogonal to u, of length 1.

    Args:
        models: Name -> parameters [P] of the three models.
        anchor: The name and the parameters [P] of the other model.

    Raises:
        UnseenError: There are not three models, or they lie on one line.

    Source:
        Garipov et al. 2018, "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs",
        appendix, which GA follows.
    """
    if len(models) != 3:
        raise UnseenError(f"a plane goes through three models; found {len(models)}.")
    first, second, third = (model.double() for model in models.values())
    u, v = second - first, third - first
    u = u / u.norm() if u.norm() > 0 else u
    v = v - (v @ u) * u
    if u.norm() == 0 or v.norm() <= 1e-9 * (third - first).norm():
        raise UnseenError("the three models lie on one line, so they span no plane; name others.")
    v = v / v.norm()
    points, off = {}, {}
    for name, model in (*models.items(), anchor):
        step = model.double() - first
        a, b = float(step @ u), float(step @ v)
        points[name] = (a, b)
        off[name] = float((step - a * u - b * v).norm())
    return Plane(first, u, v, points, off)


def surface(
    through: Plane, loss: Callable[[Tensor], float], title: str, cells: int = CELLS
) -> Surface:
    """Return the loss on a grid that holds all points with a margin.

    Args:
        through: The plane.
        loss: Parameters [P] -> the loss.
        title: The panel's.
        cells: Values per axis.
    """
    axes = []
    for i in (0, 1):
        values = [point[i] for point in through.points.values()]
        room = MARGIN * (max(values) - min(values))
        ends = (min(values) - room, max(values) + room)
        axes.append(tuple(torch.linspace(*ends, cells, dtype=torch.float64).tolist()))
    x, y = axes
    grid = tuple(tuple(loss(through.at(a, b)) for a in x) for b in y)
    names = tuple((name, a, b) for name, (a, b) in through.points.items())
    return Surface(title, x, y, grid, names)
