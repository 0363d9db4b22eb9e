"""What can be learnt of a new site from its rows without labels: pure functions and equations."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.errors import UnseenError
from unseen.serving.reading.inputs import TableInputs

#: The change of every share below which the re-estimation of the prior ends, and its most steps.
TOLERANCE, STEPS = 1e-9, 20_000
#: In the place of probabilities and shares of 0, where a logarithm or a quotient is taken.
TINY = 1e-300


@dataclass(frozen=True)
class Shift:
    """The re-estimated shares of classes at a new site.

    Attributes:
        before: Their shares in training [C].
        after: Their shares at the new site [C].
        likelihood: The log-likelihood of `after` against `before` at the start and after each
            step; it never falls.
        converged: Whether the steps ended by themselves.
    """

    before: Tensor
    after: Tensor
    likelihood: tuple[float, ...]
    converged: bool


def reestimated(
    p: Tensor, before: Tensor, tolerance: float = TOLERANCE, most: int = STEPS
) -> Shift:
    """Re-estimate the shares of classes by expectation-maximisation, from probabilities alone.

        π⁰_c = π_c
        w_ic = (π^s_c / π_c) p_ic / Σ_d (π^s_d / π_d) p_id
        π^{s+1}_c = (1/N) Σ_i w_ic

    p_ic: the model's probability of class c for row i; π: the shares in training; π^s: those at the
    new site after s steps. It climbs the likelihood of the rows, Σ_i log Σ_c (π^s_c / π_c) p_ic up
    to a constant, which is concave in π^s. It supposes that the inputs of a class are distributed
    as in training, so that only the shares differ, and that the probabilities are calibrated for
    training's shares.

    Args:
        p: Probabilities [N, C].
        before: The shares in training [C]. A class that has none there keeps none: nothing was
            learnt about it.
        tolerance: The steps end where no share changes by more.
        most: At most how many steps.

    Source:
        Saerens, Latinne and Decaestecker 2002, "Adjusting the Outputs of a Classifier to New a
        Priori Probabilities: A Simple Procedure", equation 2.12.

    Example:
        >>> p = torch.tensor([[0.9, 0.1]] * 30 + [[0.1, 0.9]] * 70)
        >>> reestimated(p, torch.tensor([0.5, 0.5])).after.round(decimals=4).tolist()
        [0.25, 0.75]
    """
    before = before.double()
    p, after = _supported(p, before), before
    mixed = _mixed(p, before, after)
    likelihood, converged = [float(mixed.sum(1).log().sum())], False
    while not converged and len(likelihood) <= most:
        last, after = after, (mixed / mixed.sum(1, keepdim=True)).mean(0)
        mixed = _mixed(p, before, after)
        likelihood.append(float(mixed.sum(1).log().sum()))
        converged = float((after - last).abs().max()) <= tolerance
    return Shift(before, after, tuple(likelihood), converged)


def posterior(p: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return probabilities under other shares of classes: p_ic π'_c / π_c, normalised over c.

    Args:
        p: Probabilities [N, C] under `before`.
        before: The shares in training [C].
        after: The shares at the new site [C].
    """
    before = before.double()
    mixed = _mixed(_supported(p, before), before, after.double())
    return mixed / mixed.sum(1, keepdim=True)


def _supported(p: Tensor, before: Tensor) -> Tensor:
    """Return probabilities of the classes that training had; of the others 0."""
    possible = p.double().clamp(min=TINY) * (before > 0)
    return possible / possible.sum(1, keepdim=True)


def _mixed(p: Tensor, before: Tensor, after: Tensor) -> Tensor:
    return p * (after / before.clamp(min=TINY))


def normalised(inputs: TableInputs, rows: Tensor) -> TableInputs:
    """Return a table's inputs with a site's own means and deviations of the numeric columns.

        x_ij ← (x_ij − m_j) / s_j,   m_j = (1/n_j) Σ_i x_ij,   s_j² = (1/n_j) Σ_i (x_ij − m_j)²

    over the n_j known cells of column j among the site's rows, where training's mean and deviation
    stood. s_j = 1 where the column is constant. A missing cell is 0 as before, the mean. A column
    of which the site knows no cell is as in training, one that no training site knew stays 0.
    Indicators of categories and of missing cells are those of training.

    Args:
        inputs: What the model takes.
        rows: The site's rows [N, columns], raw numbers and codes, NaN where missing.
    """
    count = 4 * len(inputs.schema.numeric)
    numbers = rows[:, inputs.schema.numeric].double()
    present = ~numbers.isnan()
    values, squares = numbers.nan_to_num(0.0), numbers.nan_to_num(0.0).square()
    n, gaps, total, square = inputs.statistics[:count].view(4, -1)
    own = (present.sum(0) > 0) & (n > 0.5)
    parts = (
        torch.where(own, present.sum(0).double(), n),
        gaps,  # decides which indicators there are
        torch.where(own, values.sum(0), total),
        torch.where(own, squares.sum(0), square),
    )
    return replace(inputs, statistics=torch.cat([*parts, inputs.statistics[count:]]))


def batchnorms(network: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers that keep statistics."""
    layers = (m for m in network.modules() if isinstance(m, _BatchNorm))
    return [layer for layer in layers if layer.running_mean is not None]


class _Reached(Exception):
    """The layer whose inputs are measured was reached: the rest of the pass is of no use."""


def renormalise(
    network: nn.Module, predict: Callable[[Tensor], object], batches: Sequence[Tensor]
) -> int:
    """Give every BatchNorm layer the statistics of these inputs, in place, layer after layer.

        μ_c = (1/n) Σ z_c,   σ_c² = (1/n) Σ (z_c − μ_c)²

    over the n values z_c of channel c that reach the layer from all inputs, when the layers before
    it have the inputs' statistics already. The network in evaluation mode then computes what it
    would compute in training mode (dropout apart) with all inputs in one batch, whatever the size
    of the batches here. σ² is what training mode divides by, without the n / (n − 1) of the
    statistics that it keeps.

    Args:
        network: The network, in evaluation mode.
        predict: Passes inputs through the network.
        batches: All inputs. There is one pass over them for each layer, up to that layer.

    Returns:
        How many layers there are.

    Raises:
        UnseenError: A layer is used more than once in a prediction, or by statistics that are not
            its own, so that it has no one distribution of inputs.

    Source:
        Li et al. 2017, "Revisiting Batch Normalization for Practical Domain Adaptation".
    """
    order = _order(network, predict, batches[0])
    for layer in order:
        assert layer.running_mean is not None and layer.running_var is not None
        mean, var = _moments(layer, predict, batches)
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(var)
    return len(order)


def _order(network: nn.Module, predict: Callable[[Tensor], object], x: Tensor) -> list[_BatchNorm]:
    order: list[_BatchNorm] = []
    places = {layer: _place(layer) for layer in batchnorms(network)}
    strange = set()

    def note(layer: nn.Module, _: object) -> None:
        assert isinstance(layer, _BatchNorm)
        strange.add(layer in order or _place(layer) != places[layer])
        order.append(layer)

    with torch.no_grad(), ExitStack() as hooks:
        for layer in places:
            hooks.enter_context(layer.register_forward_pre_hook(note))
        predict(x)
    if True in strange or not order:
        raise UnseenError(
            "a prediction does not pass each BatchNorm layer once, with the layer's statistics.",
            remedy="Leave out batchnorm.",
        )
    return order


def _place(layer: _BatchNorm) -> int:
    assert layer.running_mean is not None
    return layer.running_mean.data_ptr()


def _moments(
    layer: _BatchNorm, predict: Callable[[Tensor], object], batches: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    counts, means, squares = [], [], []

    def measure(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        z = inputs[0].double().transpose(0, 1).flatten(1)
        counts.append(z.shape[1])
        means.append(z.mean(1))
        squares.append((z - means[-1][:, None]).square().sum(1))
        raise _Reached

    with torch.no_grad(), layer.register_forward_pre_hook(measure):
        for x in batches:
            with suppress(_Reached):
                predict(x)
    n = torch.tensor(counts, dtype=torch.float64, device=means[0].device)[:, None]
    stacked = torch.stack(means)
    mean = (n * stacked).sum(0) / n.sum()
    within, between = torch.stack(squares).sum(0), (n * (stacked - mean).square()).sum(0)
    if not bool(mean.isfinite().all()):
        raise UnseenError(
            "some rows' inputs of a BatchNorm layer are not finite.", remedy="Leave out batchnorm."
        )
    return mean, (within + between) / math.fsum(counts)
