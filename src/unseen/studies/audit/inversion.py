"""Gradient inversion: images out of what the server holds of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from unseen.core.client import Client, Split
from unseen.core.exchange import Method
from unseen.core.round import start
from unseen.core.turn import Turn
from unseen.core.vector import Model
from unseen.engine.inprocess import InProcess
from unseen.methods.base import trained
from unseen.privacy.dp.examples import OutputLoss

#: PSNR of images that are equal to the last bit: beyond what a figure can show.
LARGEST = 100.0
#: From here on a picture is recognised without doubt.
RECOVERED = 20.0


def psnr(images: Tensor, truth: Tensor, span: float) -> Tensor:
    """Return 10 log₁₀(span² / MSE) of images [N, ...], in decibels [N], at most 100.

    Example:
        >>> psnr(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.4, 0.6]]), 1.0)
        tensor([20.0000], dtype=torch.float64)
    """
    error = (images.double() - truth.double()).square().flatten(1).mean(1)
    return (10 * torch.log10(span**2 / error)).clamp(max=LARGEST).nan_to_num(posinf=LARGEST)


@dataclass(frozen=True)
class Prior:
    """What the attacker knows of such images without any update, from a site not the victim's.

    Attributes:
        mean, deviation: Of each pixel.
        low, high: The range of pixels.
    """

    mean: Tensor
    deviation: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, images: Tensor) -> Prior:
        return cls(images.mean(0), images.std(0), float(images.min()), float(images.max()))

    @property
    def span(self) -> float:
        return self.high - self.low

    def random(self, count: int, generator: torch.Generator) -> Tensor:
        """Return images of these statistics that no data entered."""
        noise = torch.randn(count, *self.mean.shape, generator=generator)
        return self.clipped(self.mean + noise * self.deviation)

    def matched(self, images: Tensor) -> Tensor:
        """Return each image with its values brought to these statistics, as a picture."""
        flat = images.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True).clamp_min(1e-12)
        return self.clipped(self.mean + flat.view_as(images) * self.deviation)

    def clipped(self, images: Tensor) -> Tensor:
        """Clip images to the range of pixels; what is not a number becomes the mean."""
        return torch.where(images.isfinite(), images, self.mean).clamp(self.low, self.high)


def single(client: Client, rows: Sequence[int]) -> dict[str, Client]:
    """Return one client for each row of another's training split, with that one example."""
    split, by_name = client.split("train"), {f"victim-{i:02d}": row for i, row in enumerate(rows)}
    splits = {name: Split(*split.batch(slice(row, row + 1))) for name, row in by_name.items()}
    return {name: Client(name, one, None, client.classes) for name, one in splits.items()}


def replies(method: Method, model: Model, clients: dict[str, Client]) -> Tensor:
    """Return the rows [K, P] that clients send in round 0, by the method's own exchange."""
    names = sorted(clients)
    state = start(method, model, names, seed=0)
    exchange = trained(method)
    turn = Turn(0, 0, 1, exchange.name, roster=tuple(names))
    answers = InProcess(model, clients).map(exchange, state.inbox, names, turn)
    return torch.stack([reply.rows["model"] for reply in answers]).clone()


def entry(model: Model) -> str | None:
    """Return the linear layer with a bias that sees the whole input, if there is one."""
    kinds = nn.Conv2d | nn.Conv1d | nn.Linear
    layers = ((n, layer) for n, layer in model.module.named_modules() if isinstance(layer, kinds))
    name, first = next(layers, ("", None))
    if not isinstance(first, nn.Linear) or first.bias is None:
        return None
    return name if first.in_features == math.prod(model.shape or (0,)) else None


def analytic(
    model: Model, rows: Tensor, prior: Prior | None = None, deviation: float = 0.0
) -> Tensor:
    """Return the input [K, ...] of a first linear layer, from updates [K, P] of one example each.

    There ∂W_o = δ_o x and ∂b_o = δ_o, so that x = Σ_o ∂b_o ∂W_o / Σ_o ∂b_o², exactly and at any
    scale.

    Args:
        model: The network.
        rows: The updates.
        prior: Needed where there is noise.
        deviation: Of the noise in each coordinate of an update, which the attacker knows.

    Note:
        With noise the result is drawn to the prior's mean by as much as is best for images of its
        statistics, with Σ ∂b² corrected for the noise in it.

    Source:
        Phong et al. 2018.
    """
    W, b = _first(model, rows)
    power = b.square().sum(1)
    clean = (power - b.shape[1] * deviation**2).clamp_min(1e-30) if deviation else power
    estimate = torch.einsum("ko,koi->ki", b, W) / clean[:, None]
    estimate = estimate.view(len(rows), *(model.shape or ()))
    if prior is None or not deviation:
        return estimate
    # The estimate's own noise: that in ∂W, x times that in ∂b, and their product.
    size = 1 + float((prior.mean.square() + prior.deviation.square()).mean())
    noise = deviation**2 * size / clean + deviation**4 * b.shape[1] / clean**2
    variance = prior.deviation.double().square()
    share = variance / (variance + noise.view(-1, *[1] * prior.mean.ndim))
    mean = prior.mean.double()
    return mean + share * (estimate - mean)


def units(model: Model, row: Tensor) -> Tensor:
    """Return ∂W_o / ∂b_o of every unit o of the first layer [o, ...].

    Note:
        Where a unit answers to one example of a batch or of a sum alone, that is the example.

    Source:
        Boenisch et al. 2021.
    """
    W, b = _first(model, row[None])
    alive = b[0].abs() > b[0].abs().max() * 1e-6
    inputs = W[0][alive] / b[0][alive, None]
    return inputs.view(-1, *(model.shape or ()))


def nearest(candidates: Tensor, truth: Tensor, span: float) -> Tensor:
    """Return, for each image of `truth`, the PSNR of the candidate nearest to it."""
    error = torch.cdist(truth.flatten(1).double(), candidates.flatten(1).double()).square()
    best = error.min(1).indices
    return psnr(candidates[best], truth, span)


def matching(
    model: Model,
    row: Tensor,
    loss: OutputLoss,
    prior: Prior,
    generator: torch.Generator,
    steps: int = 400,
    smooth: float = 1e-3,
) -> Tensor:
    """Return an image [1, ...] whose gradient points where the update does, for any network.

        x = argmin 1 − cos(∇ loss(x, y), g) + smooth · TV(x)

    by signed steps of Adam whose size falls; y is the class whose output's gradient is negative.

    Args:
        model: The network.
        row: The update [P].
        loss: Of outputs and labels.
        prior: Where the search begins, and its range.
        generator: Draws the first image.
        steps: Number of steps.
        smooth: Weight of the total variation.

    Source:
        Zhu et al. 2019 (DLG), Zhao et al. 2020 (the label), Geiping et al. 2020 (cosine, sign and
        total variation).
    """
    target = -row
    label = read_label(model, target)
    x = prior.random(1, generator).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.1 * prior.span)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, 1e-3 * prior.span)
    vector = model.vector.detach().clone().requires_grad_()
    model.module.eval()
    for _ in range(steps):
        value = loss(model.at(vector, x), label)
        (g,) = torch.autograd.grad(value, vector, create_graph=True)
        cost = 1 - torch.cosine_similarity(g, target, dim=0)
        if x.ndim == 4:
            across, down = x.diff(dim=-1).abs().mean(), x.diff(dim=-2).abs().mean()
            cost = cost + smooth * (across + down)
        (pull,) = torch.autograd.grad(cost, x)
        x.grad = pull.sign()
        optimiser.step()
        falling.step()
        with torch.no_grad():
            x.clamp_(prior.low, prior.high)
    return x.detach()


def read_label(model: Model, gradient: Tensor) -> Tensor:
    """Return the label of a single example's gradient [P]: the class whose bias is pushed up."""
    last = last_bias(model, gradient).flatten()
    return (last < 0).long() if len(last) == 1 else last.argmin()[None]


def last_bias(model: Model, rows: Tensor) -> Tensor:
    """Return what rows [..., P] hold of the last bias, that of the outputs."""
    names = [name for name in model.layout.names if name.endswith("bias")]
    return model.layout.views(rows)[names[-1]]


def from_bytes(content: bytes, model: Model, prior: Prior) -> Tensor:
    """Attack bytes that are not an update: taken as numbers, then as a picture [1, ...]."""
    P = model.layout.size
    whole = np.frombuffer(content[: len(content) // 4 * 4], dtype="<u4").astype(np.float64)
    whole = np.resize((whole - whole.mean()) / (whole.std() or 1.0), P)
    row = torch.from_numpy(whole)[None]
    shape = model.shape or ()
    candidate = analytic(model, row) if entry(model) is not None else row[:, : math.prod(shape)]
    return prior.matched(candidate.view(1, *shape).float())


def _first(model: Model, rows: Tensor) -> tuple[Tensor, Tensor]:
    name = entry(model)
    assert name is not None
    views = model.layout.views(rows.double())
    prefix = f"{name}." if name else ""
    return views[f"{prefix}weight"], views[f"{prefix}bias"]
