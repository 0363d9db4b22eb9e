"""Fishr without pooled data: the covariance of the head's gradients, and its distance to a mean."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import Loss, LossFunction
from unseen.errors import UnseenError
from unseen.methods.gradient.backprop import Parts, Step
from unseen.methods.gradient.heads import Head, head_layer
from unseen.methods.gradient.per_example import outer_squares, recorded, signals, with_ones
from unseen.ranges import Checked, NotNegative

#: Weights and biases of the largest head whose full covariance is formed.
FULL = 1024
#: The inbox entry, and the exchange and slot, of the covariance.
VARIANCE = "variance"


@dataclass(frozen=True)
class HeadCovariance(Checked):
    """C = (1/N) Σ_n (g_n − ḡ)(g_n − ḡ)ᵀ over examples, g_n the gradient at the last linear layer.

    With g_n = δ_n a_nᵀ (a_n: the head's inputs and a one for the bias) the diagonal, on the shape
    of the head, is

        Var = (δ²)ᵀ(a²)/N − (δᵀa/N)²

    which is plain differentiable arithmetic, done in float64 since it is a difference.

    Attributes:
        loss: the loss of a batch.
        covariance: `"diagonal"` [H], as the paper's experiments and the released code have it, or
            `"full"` [H²], as its formula has it, for heads of up to 1,024 numbers.
        head: the layer's name; by default the last linear layer in the order of the modules.

    Note:
        The derivative reaches the backbone through a and δ.
    """

    loss: Loss
    covariance: Literal["diagonal", "full"] = "diagonal"
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Callable[[Tensor, Tensor], Tensor]:
        loss = self.loss.open(model, inbox, client, memory, turn)
        name, head = self.layer(model)

        def measure(x: Tensor, y: Tensor) -> Tensor:
            with recorded({name: head}, len(y)) as records:
                value = loss(model, x, y)
            inputs, outputs = records[name]
            (delta,) = signals(value, [outputs], graph=True)
            return self.of(delta.double(), with_ones(head, inputs).double())

        return measure

    def in_parts(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn, parts: Parts
    ) -> Tensor | None:
        """Return the covariance over all parts, from sums over each; None as `Backprop` does."""
        if not getattr(self.loss, "divisible", False):
            return None
        loss = self.loss.open(model, inbox, client, memory, turn)
        return self.of_sums(self.total(model, loss, parts), parts.count)

    def total(self, model: Model, loss: LossFunction, parts: Parts) -> Tensor:
        """Return the sums over all parts, without a graph."""
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        for x, y in parts:
            total = total + self.sums(model, loss, x, y).detach()
        return total

    def sums(self, model: Model, loss: LossFunction, x: Tensor, y: Tensor) -> Tensor:
        """Return Σ_n g_n² (or Σ_n g_n g_nᵀ), then Σ_n g_n, flat, differentiable in the model."""
        name, head = self.layer(model)
        with recorded({name: head}, len(y)) as records:
            value = loss(model, x, y)
        inputs, outputs = records[name]
        (delta,) = signals(value, [outputs], graph=True)
        delta, a = delta.double(), with_ones(head, inputs).double()
        if self.covariance == "diagonal":
            return torch.cat([outer_squares(delta, a).flatten(), (delta.T @ a).flatten()])
        gradients = (delta[:, :, None] * a[:, None, :]).flatten(1)
        return torch.cat([(gradients.T @ gradients).flatten(), gradients.sum(0)])

    def of_sums(self, sums: Tensor, count: int) -> Tensor:
        """Return the covariance, flat, from the sums over so many examples."""
        if self.covariance == "diagonal":
            squares, total = (sums / count).chunk(2)
            return squares - total.square()
        H = int((len(sums) + 0.25) ** 0.5)  # H² + H numbers
        products, total = (sums / count)[: H * H], (sums / count)[H * H :]
        return products - torch.outer(total, total).flatten()

    def of(self, delta: Tensor, a: Tensor) -> Tensor:
        """Return the covariance of the N matrices δ_n a_nᵀ, flat."""
        N = len(a)
        if self.covariance == "diagonal":
            return (outer_squares(delta, a) / N - (delta.T @ a / N).square()).flatten()
        gradients = (delta[:, :, None] * a[:, None, :]).flatten(1)
        centred = gradients - gradients.mean(0)
        return (centred.T @ centred / N).flatten()

    def zeros(self, model: Model) -> Tensor:
        """Return the mean's place before it is known; refuse heads that are too large."""
        name, head = self.layer(model)
        size = head.weight.numel() + (head.bias.numel() if head.bias is not None else 0)
        if self.covariance == "full" and size > FULL:
            raise UnseenError(
                f"the head {name!r} has {size:,} weights and biases, whose full covariance would "
                f"be {size:,} by {size:,}; it is formed up to {FULL:,}.",
                remedy="Choose covariance='diagonal'.",
            )
        length = size if self.covariance == "diagonal" else size**2
        return torch.zeros(length, dtype=torch.float64, device=model.device)

    def layer(self, model: Model) -> tuple[str, nn.Linear]:
        """Return the head and its name."""
        return head_layer(model, self.head)


@dataclass(frozen=True)
class FeatureMoments(Checked):
    """(m/√d, C/d): the mean m [d] and the covariance C [d, d] of the features that enter the head.

    Their squared distance from others' is then a mean over entries, of means and of covariances.

    Attributes:
        head: the layer's name; by default the last linear layer in the order of the modules.
    """

    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Callable[[Tensor, Tensor], Tensor]:
        head = Head.of(model, self.head)

        def measure(x: Tensor, y: Tensor) -> Tensor:
            features = head.run(model, x)[0].flatten(1).double()
            mean, d = features.mean(0), features.shape[1]
            centred = features - mean
            covariance = centred.T @ centred / max(len(y) - 1, 1)
            return torch.cat([mean / d**0.5, covariance.flatten() / d])

        return measure

    def zeros(self, model: Model) -> Tensor:
        """Return the mean's place before it is known; refuse features that are too many."""
        name, head = head_layer(model, self.head)
        d = head.in_features
        if d > FULL:
            raise UnseenError(
                f"{d:,} features enter the head {name!r}, whose covariance would be {d:,} by "
                f"{d:,}; it is formed up to {FULL:,}.",
                remedy="Take a network with a narrower last layer.",
            )
        return torch.zeros(d + d**2, dtype=torch.float64, device=model.device)


@dataclass(frozen=True)
class Fishr(Checked, named="fishr"):
    """g = λ ∇_w ‖C_e(w) − C̄‖², with C̄ = (1/E) Σ_e C_e held fixed.

    Note:
        Summed over the clients it is exactly λ ∇_w Σ_e ‖C_e(w) − C̄(w)‖²: what is missing is the
        derivative of C̄ times Σ_e (C_e − C̄), which is 0.

    Source:
        Rame, Dancette, Cord 2022, "Fishr", Eq. 4; FedILC §3.2, Algorithm 1.
    """

    statistic: HeadCovariance | FeatureMoments
    lam: NotNegative = 1.0

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        measure, mean = self.statistic.open(model, inbox, client, memory, turn), inbox[VARIANCE]

        def step(x: Tensor, y: Tensor) -> Tensor:
            model.gradient.zero_()
            penalty = self.lam * (measure(x, y) - mean).square().sum()
            penalty.backward()  # type: ignore[no-untyped-call]
            return penalty.detach()

        yield step

    def in_parts(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn, parts: Parts
    ) -> Tensor | None:
        """Leave the penalty's gradient over all parts, by the chain rule through their sums.

        The first pass adds up the sums s; with γ = ∂/∂s λ ‖C(s) − C̄‖² the gradient is that of
        Σ_parts ⟨γ, s_part(w)⟩, taken in a second pass, in which Dropout draws the same.
        """
        statistic = self.statistic
        if not isinstance(statistic, HeadCovariance):
            return None
        if not getattr(statistic.loss, "divisible", False):
            return None
        loss = statistic.loss.open(model, inbox, client, memory, turn)
        draws = torch.get_rng_state()
        sums = statistic.total(model, loss, parts).requires_grad_()
        apart = statistic.of_sums(sums, parts.count) - inbox[VARIANCE]
        penalty = self.lam * apart.square().sum()
        (slope,) = torch.autograd.grad(penalty, sums)
        torch.set_rng_state(draws)
        model.gradient.zero_()
        for x, y in parts:
            (slope @ statistic.sums(model, loss, x, y)).backward()  # type: ignore[no-untyped-call]
        return penalty.detach()
