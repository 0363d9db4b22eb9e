"""RSC: training that takes away the features the prediction leans on most."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Method, Model, Turn
from unseen.core.losses import SquaredError
from unseen.core.parts import Wrapper
from unseen.core.schedule import ceil_share, round_share
from unseen.errors import Incompatible, UnseenError, nearest
from unseen.methods.base import asking, cited, citing, incompatible, with_gradient
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.backprop import Gradient, Step
from unseen.methods.gradient.contrast import CrossClient
from unseen.methods.gradient.heads import head_layer
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.images.features import Tap, last_maps, tapped
from unseen.methods.options import options_from
from unseen.ranges import Share, uniform

#: By how much an example's probability must fall before it may be challenged, as released.
FALL = 1e-4


@dataclass(frozen=True)
class SelfChallenging(Wrapper, named="rsc"):
    """The inner gradient with z ∘ m instead of z, z being the features that enter the head.

        G = ∂(Σ_n logit of y_n) / ∂z      m_n: 0 on the `drop` share of pixels, or of channels,
                                              with the largest G, averaged over the other axis
        m_n = 1 for all but the `batch` share of examples whose p(y_n) falls most under m_n

    Pixels or channels: one draw of 1/2 per batch; where z has no pixels, channels.

    Attributes:
        inner: the gradient under the mask.
        drop: 1/3 as in the paper; its released code takes 1/3.2 of the channels, which GA's copy
            keeps.
        batch: 1/3 as in the paper; its released code raises the share from 0.3 over the epochs.
        layer: whose output z is; none for the last that gives maps of more than one pixel (a
            ResNet's last block, or the last pooling of the nets for digits), or, in nets without
            maps, for the head's input, of which only channels can be muted.
        score: a pixel's, the mean of G over channels, as the paper has it, or the `"activation"`
            Σ_c z_c mean(G_c), as in its released code.

    Note:
        G and p are taken in evaluation mode, in two passes that leave the statistics of BatchNorm
        alone. Then every pass of the inner step in training mode over as many examples is masked.
        Ties are not dropped. drop = 0 or batch = 0 is the inner gradient bit for bit.

    Source:
        Huang, Wang, Xing, Huang 2020, "Self-Challenging Improves Cross-Domain Generalization",
        Algorithm 1.
    """

    inner: Gradient
    drop: Annotated[Share, uniform(0.1, 0.5)] = 1 / 3
    batch: Annotated[Share, uniform(0.1, 1)] = 1 / 3
    layer: str | None = None
    score: Literal["gradient", "activation"] = "gradient"

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        with self.inner.open(model, inbox, client, memory, turn) as inner:
            if not self.drop or not self.batch:
                yield inner
                return
            layer, side = self.place(model, client.split("train").batch(slice(0, 2))[0])
            generator = turn.generator("rsc")
            with tapped(model.module, layer, side) as tap:

                def step(x: Tensor, y: Tensor) -> Tensor:
                    pixels = float(torch.rand((), generator=generator)) < 0.5
                    mask = self.mask(model, tap, x, y, pixels)
                    tap.change = lambda z: masked(z, mask) if model.module.training else z
                    try:
                        return inner(x, y)
                    finally:
                        tap.change = None

                yield step

    def place(self, model: Model, x: Tensor) -> tuple[str, Literal["input", "output"]]:
        """Return the layer, and whether it is its input or its output that is masked."""
        if self.layer is None:
            maps = last_maps(model, x)
            return (maps, "output") if maps is not None else (head_layer(model)[0], "input")
        parts = [name for name, _ in model.module.named_modules() if name]
        if self.layer not in parts:
            raise nearest("layer", self.layer, parts)
        return self.layer, "output"

    def mask(self, model: Model, tap: Tap, x: Tensor, y: Tensor, pixels: bool) -> Tensor:
        """Return m [N, 1, H, W], [N, C, 1, 1] or [N, C], of zeros and ones, for a batch."""
        leaf: list[Tensor] = []

        def cut(z: Tensor) -> Tensor:
            leaf[:] = [z.detach().requires_grad_()]
            return leaf[0].clone()  # an activation in place behind the layer may write into it

        mode = model.module.training
        model.module.eval()
        try:
            tap.change = cut
            outputs = model(x)
            (slope,) = torch.autograd.grad(true_logit(outputs, y).sum(), leaf)
            mask = self.dropped(leaf[0].detach(), slope, pixels).logical_not().to(slope)
            tap.change = lambda z: z * mask
            with torch.no_grad():
                fall = true_probability(outputs, y) - true_probability(model(x), y)
        finally:
            tap.change = None
            model.module.train(mode)
        hardest = largest((fall - FALL).clamp(min=0), round_share(self.batch, len(y)))
        mask[hardest.logical_not()] = 1
        return mask

    def dropped(self, z: Tensor, slope: Tensor, pixels: bool) -> Tensor:
        """Return which pixels or channels every example loses if it is challenged."""
        if slope.ndim == 4 and pixels and slope[0, 0].numel() > 1:
            if self.score == "gradient":
                score = slope.mean(1).flatten(1)
            else:
                score = (z * slope.mean((2, 3), keepdim=True)).sum(1).flatten(1)
            top = largest(score, ceil_share(self.drop, score.shape[1]))
            return top.view(len(z), 1, *z.shape[2:])
        score = slope.mean((2, 3)) if slope.ndim == 4 else slope
        top = largest(score, ceil_share(self.drop, score.shape[1]))
        return top.view(*score.shape, *[1] * (slope.ndim - 2))


def largest(values: Tensor, count: int) -> Tensor:
    """Return which of the last axis lie above the (count + 1)-th largest: `count` but for ties.

    Example:
        >>> [largest(torch.tensor(x), 1).tolist() for x in ([3.0, 1.0, 2.0], [3.0, 1.0, 3.0])]
        [[True, False, False], [False, False, False]]
    """
    if count >= values.shape[-1]:
        return torch.ones_like(values, dtype=torch.bool)
    return values > values.sort(dim=-1, descending=True).values[..., count : count + 1]


def masked(z: Tensor, mask: Tensor) -> Tensor:
    """Return z ∘ m, if the mask was made for this many examples."""
    if len(z) != len(mask):
        raise UnseenError(
            f"RSC found masks for {len(mask)} examples, and its method passes {len(z)} at a time; "
            "put rsc where a step takes its batch as a whole."
        )
    return z * mask


def true_logit(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the logit [N] of each example's class, for logits [N, C], or [N, 1] of class 1."""
    if outputs.shape[-1] == 1:
        return outputs.squeeze(-1) * (2 * y - 1)
    return outputs.gather(1, y[:, None]).squeeze(1)


def true_probability(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the probability [N] of each example's class."""
    if outputs.shape[-1] == 1:
        return true_logit(outputs.detach(), y).sigmoid()
    return true_logit(outputs.detach().softmax(-1), y)


@options_from(SelfChallenging)
def add_rsc(method: Method, **options: Any) -> Method:
    """Mute the features with the largest gradients while clients learn.

        z ← z ∘ m,   m = 0 on the top `drop` of  G = ∂(logit of y) / ∂z  by pixels or by channels

    for the top `batch` of the examples, those whose probability of y falls most. drop=0 or batch=0
    is FedAvg.

    Note:
        GA's released code never sets the flag that switches its masks on, so that its row RSC is
        FedAvg: this one masks. Which of pixels and channels is drawn once per batch, in equal
        shares.

        Whatever else the method does to its gradient (a proximal term, mixed images, a mean over
        environments) stays around it; both gradients of a sharpness-aware step are under one mask.
        Of CSAC it is the calibration that is under masks, and not its first round.

    Departs from:
        the released code in that the doubled, flipped batch is left out.
    """
    if cited("huang2020rsc") in method.references:
        raise incompatible(method, "rsc", "mutes features already.", "Set its own drop.")
    try:
        return citing(challenged(method, options), "huang2020rsc")
    except Incompatible:
        raise
    except UnseenError as error:
        raise Incompatible(f"{method.name}+rsc", f"{error}") from error


def challenged(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with its innermost loss under RSC's masks."""

    def inside(gradient: Any) -> Gradient:
        if isinstance(gradient, CrossClient):
            step = f"a step of {method.name} takes each image in three views"
            raise UnseenError(f"{step}, and a mask belongs to one.")
        if isinstance(gradient, Backprop) and isinstance(gradient.loss, SquaredError):
            raise UnseenError("rsc is for classes: it mutes what speaks for an example's own.")
        if not isinstance(gradient, Wrapper) or isinstance(gradient, Perturbed):
            return SelfChallenging(gradient, **options)
        around: Gradient = gradient.around(inside(gradient.inner))
        return around

    return asking(with_gradient(method, inside), "classes")
