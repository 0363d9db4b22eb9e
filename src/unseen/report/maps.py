"""Maps: examples by their features (CSAC, Figure 3 right), and the loss around a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.privacy.wire import optional
from unseen.report.figures import Points, Surface

#: Seed and size of the neighbourhoods of t-SNE.
SEED, PERPLEXITY = 0, 30
#: Values per axis of a surface, and its margin around the models, as a share of their extent.
CELLS, MARGIN = 25, 0.35


def features(module: nn.Module, x: Tensor) -> Tensor:
    """Return what enters the last linear layer [N, D], in evaluation mode.

    Args:
        module: The net.
        x: Inputs [N, ...].

    Raises:
        UnseenError: The net has no linear layer.
    """
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise UnseenError("features are what enters the last linear layer; the model has none.")
    seen: list[Tensor] = []
    mode = module.training
    module.eval()
    hook = linear[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad(), hook:
            module(x)
    finally:
        module.train(mode)
    return seen[-1].flatten(1)


def embedding(rows: Tensor) -> Tensor:
    """Return t-SNE of rows [N, D] to [N, 2] by openTSNE, from a fixed seed.

    Raises:
        UnseenError: openTSNE is not installed, or there are fewer than ten rows.
    """
    openTSNE = optional("openTSNE", "t-SNE needs openTSNE", "report")
    if len(rows) < 10:
        raise UnseenError(f"t-SNE needs ten examples or more; found {len(rows)}.")
    perplexity = min(PERPLEXITY, (len(rows) - 1) // 3)
    tsne = openTSNE.TSNE(perplexity=perplexity, random_state=SEED, n_jobs=1)
    return torch.as_tensor(tsne.fit(rows.double().numpy()), dtype=torch.float64)


def coloured(places: Tensor, labels: Mapping[str, Sequence[str]]) -> tuple[Points, ...]:
    """Return the same map once for each labelling.

    Args:
        places: Coordinates [N, 2].
        labels: What the points are coloured by -> the label of each.
    """
    x, y = (tuple(round(v, 3) for v in column.tolist()) for column in places.T)
    return tuple(
        Points(f"by {by}", x, y, tuple(of_points), tuple(sorted(set(of_points))))
        for by, of_points in labels.items()
    )


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
        appendix, which GA follows (Figure 4).
    """
    if len(models) != 3:
        raise UnseenError(f"a plane goes through three models; found {len(models)}.")
    first, second, third = (model.double() for model in models.values())
    u, v = second - first, third - first
    u = u / u.norm() if u.norm() > 0 else u
    v = v - (v @ u) * u
    if u.norm() == 0 or v.norm() <= 1e-9 * (third - first).norm():
        raise UnseenError(
            "the three models lie on one line, so they span no plane;", remedy="name others."
        )
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
    for values in zip(*through.points.values(), strict=True):
        room = MARGIN * (max(values) - min(values))
        ends = (min(values) - room, max(values) + room)
        axes.append(tuple(torch.linspace(*ends, cells, dtype=torch.float64).tolist()))
    x, y = axes
    grid = tuple(tuple(loss(through.at(a, b)) for a in x) for b in y)
    names = tuple((name, a, b) for name, (a, b) in through.points.items())
    return Surface(title, x, y, grid, names)
