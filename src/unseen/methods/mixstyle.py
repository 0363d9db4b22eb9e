"""MixStyle: styles of feature maps, mixed inside a client."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from unseen.core import Client, Inbox, Memory, Method, Model, Turn
from unseen.core.parts import Wrapper
from unseen.methods.base import asking, with_gradient
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.mixup import beta
from unseen.methods.images.features import layer_names, tapped
from unseen.methods.options import options_from
from unseen.ranges import Positive, Share, log, uniform

#: Added to a variance, as released.
EPSILON = 1e-6


@dataclass(frozen=True)
class StyleMixed(Wrapper, named="mixstyle"):
    """The inner gradient with z' for the maps z of some layers, with probability p.

        z'_n = (z_n − μ_n) / σ_n · (λ_n σ_n + (1 − λ_n) σ_{π(n)}) + λ_n μ_n + (1 − λ_n) μ_{π(n)}

    μ_n, σ_n: mean and deviation of each channel of example n over its pixels, held fixed; π: a
    permutation of the batch; λ_n ~ Beta(α, α).

    Attributes:
        inner: the gradient.
        p: the probability that a layer's pass is mixed.
        alpha: α.
        layers: names in the net whose output is mixed; none for `layer1` and `layer2` where there
            are such, or else the first convolution. The released commands take these two for
            Office-Home, and `layer3` as well for PACS.

    Note:
        Every pass in training mode has its own draws, one after the other by layers.

    Source:
        Zhou, Yang, Qiao, Xiang 2021, "Domain Generalization with MixStyle"; its released code,
        whose `mix = "random"` this is. The other, `"crossdomain"`, swaps the halves of a batch that
        come from two domains, and a client has one.
    """

    inner: Gradient
    p: Annotated[Share, uniform(0.1, 1)] = 0.5
    alpha: Annotated[Positive, log(0.05, 1)] = 0.1
    layers: tuple[str, ...] | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        draws = turn.generator("mixstyle")

        def change(z: Tensor) -> Tensor:
            return self.mixed(z, draws) if model.module.training else z

        with (
            ExitStack() as taps,
            self.inner.open(model, inbox, client, memory, turn) as inner,
        ):
            hooks = [
                taps.enter_context(tapped(model.module, name, "output"))
                for name in self.names(model.module)
            ]

            def step(x: Tensor, y: Tensor) -> Tensor:
                for tap in hooks:
                    tap.change = change
                try:
                    return inner(x, y)
                finally:
                    for tap in hooks:
                        tap.change = None

            yield step

    def names(self, module: nn.Module) -> list[str]:
        """Return the layers whose outputs are mixed."""
        blocks = [name for name, _ in module.named_modules() if name in ("layer1", "layer2")]
        if self.layers is not None or blocks:
            return layer_names(module, self.layers or blocks)
        return layer_names(module, None, len(list(module.modules())))[:1]

    def mixed(self, z: Tensor, draws: torch.Generator) -> Tensor:
        """Return maps [N, C, H, W] in mixed styles, or as they are."""
        if float(torch.rand((), generator=draws)) >= self.p or len(z) < 2:
            return z
        lam = torch.tensor([beta(self.alpha, draws) for _ in range(len(z))])
        order = torch.randperm(len(z), generator=draws)
        return restyled(z, lam.to(z).view(-1, 1, 1, 1), order.to(z.device))


def restyled(z: Tensor, lam: Tensor, order: Tensor) -> Tensor:
    """Return maps [N, C, H, W] whose statistics are λ [N, 1, 1, 1] own and 1 − λ those of π [N]."""
    fixed = z.detach()
    mean = fixed.mean((2, 3), keepdim=True)
    deviation = (fixed.var((2, 3), keepdim=True) + EPSILON).sqrt()
    new = lam * deviation + (1 - lam) * deviation[order]
    return (z - mean) / deviation * new + lam * mean + (1 - lam) * mean[order]


@options_from(StyleMixed)
def add_mixstyle(method: Method, *, layers: Sequence[str] | None = None, **options: Any) -> Method:
    """Mix the channel statistics of feature maps between a client's own examples.

        z'_n = (z_n − μ_n) / σ_n · (λ σ_n + (1 − λ) σ_{π(n)}) + λ μ_n + (1 − λ) μ_{π(n)}

    μ, σ: mean and deviation of a channel over an example's pixels; λ ~ Beta(α, α).

    Note:
        Methods that exchange statistics between clients are `fedccrl` and `am(across=True)`.

    Departs from:
        the paper in that styles are those of the client's own examples, where it has several
        domains in one batch, which is what pooled data have, as in `deepall+mixstyle`.
    """
    names = (layers,) if isinstance(layers, str) else None if layers is None else tuple(layers)

    changed = with_gradient(
        method, lambda g: StyleMixed(g, layers=names, **options), "zhou2021mixstyle"
    )
    return asking(changed, "images", "convolutions")
