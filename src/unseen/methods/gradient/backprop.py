"""What one local step descends: a wrapper holds another and changes the gradient it leaves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import CrossEntropy, Loss
from unseen.core.parts import Part, Wrapper

#: (x, y) -> the batch's loss; leaves the gradient in `model.gradient`.
Step = Callable[[Tensor, Tensor], Tensor]


class Parts(Protocol):
    """A split in parts that come one after the other, as often as they are asked for.

    Attributes:
        count: How many examples it has.
    """

    count: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class Gradient(Protocol):
    """Opened once per exchange at one client; what it set up is undone when the context ends."""

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> AbstractContextManager[Step]: ...


class Around(Wrapper, ABC):
    """A gradient around another, its field `inner`, of which each step is changed."""

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        with self.inner.open(model, inbox, client, memory, turn) as inner:
            yield self.changed(inner, model, inbox, client, memory, turn)

    @abstractmethod
    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        """Return the changed step."""


class Batched(Around):
    """A gradient around another that can also change the steps of many models at once.

    Attributes:
        pull: μ of a term μ (w − x) in the gradient, x being what was received.
    """

    @property
    def pull(self) -> float:
        return 0.0

    def constant(self, inbox: Inbox, memory: Memory) -> Tensor | None:
        """Return what is added to the gradient of every step [P], or None."""
        return None

    def draws(
        self, inbox: Inbox, client: Client, turn: Turn, sizes: Sequence[int], form: tuple[int, int]
    ) -> tuple[Tensor, ...]:
        """Return what `batched` needs of one model's steps [T, ...]; nothing if it changes nothing.

        Args:
            inbox: What the client received.
            client: Whose data the steps meet.
            turn: Where the draws come from, the same as of training alone.
            sizes: The examples of each step, of up to T.
            form: T and B, the steps and the examples that the batch has room for.
        """
        return ()

    def batched(self, x: Tensor, target: Tensor, *draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return a step's inputs [M, B, ...] and targets [M, B, C] as changed.

        Args:
            x: The inputs.
            target: The targets; classes as shares.
            draws: What was drawn for this step [M, ...].
        """
        return x, target


@dataclass(frozen=True)
class Backprop(Part):
    """g = ∇ loss(w; x, y)."""

    clips_per_example = True
    stackable = True

    loss: Loss = field(default_factory=CrossEntropy)

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        loss = self.loss.open(model, inbox, client, memory, turn)

        def step(x: Tensor, y: Tensor) -> Tensor:
            model.gradient.zero_()
            value = loss(model, x, y)
            value.backward()  # type: ignore[no-untyped-call]
            return value.detach()

        yield step

    def in_parts(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn, parts: Parts
    ) -> Tensor | None:
        """Leave the gradient over all parts, which is the sum of theirs, and return the loss.

        Returns:
            None, and nothing was done, where the loss is not the mean of its parts'.
        """
        if not getattr(self.loss, "divisible", False):
            return None
        loss = self.loss.open(model, inbox, client, memory, turn)
        model.gradient.zero_()
        total = torch.zeros((), device=model.device)
        for x, y in parts:
            value = loss(model, x, y) * (len(y) / parts.count)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total
