"""FedFA: statistics of feature maps are drawn as widely as they differ."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.errors import UnseenError
from unseen.gradient.backprop import Gradient, Step
from unseen.images.features import layer_names, recorded, tapped
from unseen.ranges import Share, uniform

#: The slot, and the inbox entry: the clients' mean of s and of s² [2S], for statistics s [S].
STATISTICS = "feature statistics"
#: Added to a variance, as released.
EPSILON = 1e-6
#: How many images pass at a time when a client measures its statistics.
CHUNK = 256


@dataclass(frozen=True)
class FeatureAugmented(Wrapper, named="fedfa"):
    """The inner gradient with z' for the maps z of some layers, with probability p.

        z' = (z − μ) / σ · σ' + μ',   μ' ~ N(μ, (1 + γ) Var_batch(μ)),   σ' ~ N(σ, ...) alike
        γ_c = C w_c / Σ_c w_c,   w_c = v_c / (1 + v_c)

    μ, σ [N, C]: mean and deviation of each channel of each example over its pixels; v_c: the
    variance over clients of the statistic of channel c.

    Attributes:
        inner: the gradient.
        p: the probability that a layer's pass is changed.
        layers: names in the net whose output is changed; none for `layer1` to `layer4` where there
            are such, or else all convolutions.

    Source:
        Zhou, Konukoglu 2023, "FedFA: Federated Feature Augmentation", and its released code.
    """

    inner: Gradient
    p: Annotated[Share, uniform(0.1, 1)] = 0.5
    layers: Sequence[str] | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        draws, names = turn.generator("fedfa"), feature_layers(model.module, self.layers)
        weights = boosts(inbox[STATISTICS], channels(model, names))

        def change(z: Tensor, weight: Tensor) -> Tensor:
            if not model.module.training or len(z) < 2:
                return z
            if float(torch.rand((), generator=draws)) >= self.p:
                return z
            noise = torch.randn(2, *z.shape[:2], generator=draws).to(z)
            return augmented(z, weight.to(z), noise)

        with ExitStack() as taps, self.inner.open(model, inbox, client, memory, turn) as inner:
            hooks = [taps.enter_context(tapped(model.module, name, "output")) for name in names]

            def step(x: Tensor, y: Tensor) -> Tensor:
                for tap, weight in zip(hooks, weights, strict=True):
                    tap.change = partial(change, weight=weight)
                try:
                    return inner(x, y)
                finally:
                    for tap in hooks:
                        tap.change = None

            yield step


def augmented(z: Tensor, weight: Tensor, noise: Tensor) -> Tensor:
    """Return maps [N, C, H, W] with other statistics.

    Args:
        z: The maps.
        weight: 1 + γ of means and of deviations [2, C].
        noise: Standard normal [2, N, C].
    """
    mean, deviation = z.mean((2, 3)), spread(z)
    new = [
        own + noise[i] * (weight[i] * (variance(own, 0) + EPSILON)).sqrt()
        for i, own in enumerate((mean, deviation))
    ]
    plain = (z - mean[..., None, None]) / deviation[..., None, None]
    return plain * new[1][..., None, None] + new[0][..., None, None]


def spread(z: Tensor) -> Tensor:
    """Return the deviation of each channel of maps [N, C, H, W] over its pixels [N, C]."""
    return (variance(z, (2, 3)) + EPSILON).sqrt()


def variance(z: Tensor, over: int | tuple[int, int]) -> Tensor:
    """Return the unbiased variance over some dimensions; 0 where there is one value alone."""
    one = z.mean(over).numel() == z.numel()
    return z.var(over, correction=0 if one else 1)


def boosts(entry: Tensor, widths: list[int]) -> list[Tensor]:
    """Return 1 + γ [2, C] of every layer, from the clients' means of s and of s²."""
    mean, square = entry.double().chunk(2)
    spread = (square - mean.square()).clamp(min=0)
    weights = []
    for part in spread.split([2 * C for C in widths]):
        w = part.view(2, -1) / (1 + part.view(2, -1))
        total = w.sum(1, keepdim=True)
        weights.append(1 + torch.where(total > 0, w.shape[1] * w / total, 0))
    return weights


def feature_layers(module: nn.Module, layers: Sequence[str] | None) -> list[str]:
    """Return the layers whose outputs are changed."""
    blocks = [f"layer{k}" for k in (1, 2, 3, 4)]
    here = [name for name, _ in module.named_modules() if name in blocks]
    return layer_names(module, layers or here or None, len(list(module.modules())))


def channels(model: Model, names: list[str]) -> list[int]:
    """Return the channels of these layers' outputs."""
    if model.shape is None:
        what = "fedfa needs the shape of one image beforehand."
        raise UnseenError(what, remedy="Write Model(module, shape=(channels, height, width)).")
    x = torch.zeros(1, *model.shape, device=model.device, dtype=model.vector.dtype)
    return [maps.shape[1] for maps in measured(model, x, names)]


def measured(model: Model, x: Tensor, names: list[str]) -> list[Tensor]:
    """Return the layers' maps of images in evaluation mode."""
    mode = model.module.training
    model.module.eval()
    with torch.no_grad(), recorded(model.module, names) as take:
        model(x)
        maps = take()
    model.module.train(mode)
    return maps


def first_statistics(layers: Sequence[str] | None, model: Model) -> Tensor:
    """Return the inbox entry [2S] before round 0: a variance of 1 between clients everywhere."""
    S = 2 * sum(channels(model, feature_layers(model.module, layers)))
    entry = torch.zeros(2 * S, dtype=torch.float64, device=model.device)
    entry[S:] = 1
    return entry


@dataclass(frozen=True)
class WithStatistics(Wrapper):
    """Another local that adds (s, s²) to its reply, s the mean statistics of the received model.

    Attributes:
        inner: The other local.
        layers: As those of the gradient.
    """

    inner: Local
    layers: Sequence[str] | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        s = self.statistics(model, client)
        reply, memory = self.inner(model, inbox, client, memory, turn)
        rows = {**reply.rows, STATISTICS: torch.cat([s, s.square()])}
        return Reply(rows, reply.scalars), memory

    def statistics(self, model: Model, client: Client) -> Tensor:
        """Return the mean over the training split of every layer's μ and σ [S]."""
        split, names = client.split("train"), feature_layers(model.module, self.layers)
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        for begin in range(0, len(split), CHUNK):
            x, _ = split.batch(slice(begin, begin + CHUNK))
            parts = []
            for maps in measured(model, x.to(model.device), names):
                parts += [maps.mean((2, 3)).double().sum(0), spread(maps).double().sum(0)]
            total = total + torch.cat(parts)
        return total / len(split)
