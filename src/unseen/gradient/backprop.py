"""What one local step descends: a wrapper holds another and changes the gradient it leaves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import CrossEntropy, Loss
from unseen.core.parts import Part, Wrapper

#: (x, y) -> the batch's loss; leaves the gradient in `model.gradient`.
Step = Callable[[Tensor, Tensor], Tensor]


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
