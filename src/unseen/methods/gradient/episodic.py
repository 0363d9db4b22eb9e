"""FedDG's episodic step: what one step on a client's images does to images of foreign style."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import LossFunction
from unseen.errors import UnseenError
from unseen.methods.gradient.backprop import Around, Backprop, Gradient, Step
from unseen.methods.gradient.boundary import Contrast, watched
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window, mixed, pixel_range
from unseen.ranges import NotNegative, Positive, log


@dataclass(frozen=True)
class Episodic(Around, named="feddg"):
    """g = c [∇F(w; x) + ∇F(w'; x̃) + γ ∇B],   w' = w − η clamp(∇F(w; x), ±bound).

    x̃: x with amplitudes of another client's image inside the window, |F(x̃)| = (1 − λ) |F(x)| + λ
    A, clipped to the range of the pixels.

    Attributes:
        inner: the gradient of F.
        bank: amplitudes A of other clients' images.
        inner_lr: η, 0.001 as released, there with Adam at 0.001.
        bound: of each coordinate of the inner step.
        interpolation: λ ~ U(0, 1) for each image, the continuous frequency space of the title, or
            λ = 1, `"swap"`, since in the released code the interpolation is commented out.
        order: `"first"`, as released, takes w' as if it did not depend on w; `"second"`
            differentiates through the step, g = c [∇F(w; x) + (I − η H) ∇F(w'; x̃)] with H the
            Hessian of F(w; x) in the coordinates that are not clamped, at the price of a third
            pass.
        scale: c is ½ (`"mean"`), so that a step is as long as one on the client's images alone, or
            1 (`"sum"`) as released. The released code trains with Adam, whose step does not depend
            on c; under SGD the sum is twice FedAvg's learning rate, at which small networks with
            momentum collapse, so the mean is the default.

        boundary: γ, for masks alone, 0.1 as released; 0 leaves B out. At 0.1 a small U-Net finds
            nothing for many rounds (drawn masks, six rounds: Dice 0.08, without B 0.49), so begin
            with 0.01 (0.67). B contrasts, for each class,
            what enters the last convolution on its objects' borders with what does on the five
            pixels around them, in x at w and in x̃ at w'; see
            `unseen.methods.gradient.boundary.Regions`.
        temperature: of B, 0.05 as released.

    Note:
        Statistics of BatchNorm are updated by the first pass alone, at w.

        The returned value is c [F(w; x) + F(w'; x̃) + γ B]. B takes three more passes: one for the
        features at w, and one each for its gradient at w' and at w.

    Source:
        Liu et al. 2021, "FedDG: ... Episodic Learning in Continuous Frequency Space", its released
        code.
    """

    inner: Gradient
    bank: Bank
    inner_lr: Annotated[NotNegative, log(0.0001, 0.1)] = 1e-3
    bound: Positive = 100.0
    interpolation: Literal["continuous", "swap"] = "continuous"
    order: Literal["first", "second"] = "first"
    scale: Literal["mean", "sum"] = "mean"
    boundary: NotNegative = 0.0
    temperature: Positive = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order == "second" and not isinstance(self.inner, Backprop):
            raise UnseenError(
                "feddg(order='second') differentiates the loss twice, and "
                f"{type(self.inner).__name__} inside it is not a loss.",
                remedy="Take order='first'.",
            )

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        with self.inner.open(model, inbox, client, memory, turn) as inner:
            if not self.boundary:
                yield self.changed(inner, model, inbox, client, memory, turn)
                return
            with watched(model.module) as tap:
                contrast = Contrast(
                    model, tap, client.classes or 2, self.boundary, self.temperature
                )
                yield self.changed(inner, model, inbox, client, memory, turn, contrast)

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn,
        contrast: Contrast | None = None,
    ) -> Step:  # fmt: skip
        generator, pool = turn.generator("feddg"), self.bank.others(inbox, turn)
        loss: LossFunction | None = None
        if self.order == "second" and isinstance(self.inner, Backprop):
            loss = self.inner.loss.open(model, inbox, client, memory, turn)
        low, high = pixel_range(client.split("train"))
        window = self.bank.describe
        assert isinstance(window, Window)

        def foreign(x: Tensor) -> Tensor:
            other = self.bank.draw(pool, len(x), generator)
            swap = self.interpolation == "swap"
            lam = torch.ones(len(x)) if swap else torch.rand(len(x), generator=generator)
            return mixed(x, other, lam, window).clamp(low, high)

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            slope = model.gradient.clone()
            weights, buffers = model.vector.clone(), model.buffers.clone()
            own = contrast.means(x, y) if contrast is not None else None
            model.vector.sub_(slope.clamp(-self.bound, self.bound), alpha=self.inner_lr)
            other = foreign(x)
            value = value + inner(other, y)
            if contrast is not None and own is not None:
                more, own_slope = contrast.there(own, other, y)
                value = value + more
            model.vector.copy_(weights)
            if loss is not None:
                free = torch.where(slope.abs() < self.bound, model.gradient, 0)
                total = model.gradient - self.inner_lr * curved(model, loss, x, y, free)
                model.gradient.copy_(total)
            if contrast is not None:
                contrast.here(x, y, own_slope)
            model.buffers.copy_(buffers)
            model.gradient.add_(slope)
            if self.scale == "sum":
                return value
            model.gradient.mul_(0.5)
            return value / 2

        return step


def curved(model: Model, loss: LossFunction, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Return H v [P], H being the Hessian of the loss at the model's weights."""
    names = model.layout.names
    every = dict(model.module.named_parameters())
    weights = [every[name] for name in names]
    first = torch.autograd.grad(loss(model, x, y), weights, create_graph=True)
    along = list(model.layout.views(v).values())
    second = torch.autograd.grad(first, weights, along, materialize_grads=True)
    return model.layout.pack(dict(zip(names, second, strict=True)))
