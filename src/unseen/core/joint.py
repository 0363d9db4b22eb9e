"""Locals that can answer for many clients of one process at once, or are several in one."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from unseen.core.client import Client
from unseen.core.exchange import Exchange, Local, Method, Reply
from unseen.core.parts import Part, Wrapper
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory
from unseen.core.vector import Model


class JointLocal(Part):
    """A local whose answer for many clients at once costs less, and is the same bits.

    Its rows are values of its own, never the model's vector.
    """

    @abstractmethod
    def answers(
        self,
        model: Model,
        inbox: Inbox,
        clients: Sequence[Client],
        memories: Sequence[Memory],
        turn: Turn,
    ) -> list[tuple[Reply, Memory]]:
        """Return what `__call__` returns for each client; the turn is of no client."""

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        return self.answers(model, inbox, [client], [memory], turn)[0]


class Ask(NamedTuple):
    """What one of several federations asks of a client, as if it were alone.

    Attributes:
        exchange: Its exchange, whose local answers.
        model: Its part of the model.
        inbox: What it sent, under the names that it knows.
        memory: What the client remembers of it.
        turn: Which of its exchanges it is, and for whom.
    """

    exchange: Exchange
    model: Model
    inbox: Inbox
    memory: Memory
    turn: Turn


class OneOf(Part):
    """A local that is one of several, which the inbox says."""

    @property
    @abstractmethod
    def locals(self) -> Sequence[Local]:
        """Those that it may be."""

    @abstractmethod
    def choice(self, inbox: Inbox) -> Local:
        """Return the one that answers."""

    @abstractmethod
    def changed(self, change: Callable[[Local], Local]) -> Self:
        """Return it with each of them changed."""

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        return self.choice(inbox)(model, inbox, client, memory, turn)


class Several(Part):
    """A local that is the locals of several federations, so that who runs it may batch them."""

    @property
    @abstractmethod
    def methods(self) -> Sequence[Method]:
        """What the federations play."""

    @abstractmethod
    def changed(self, change: Callable[[Local], Local]) -> Self:
        """Return it with the local of each federation changed."""

    @abstractmethod
    def asked(self, model: Model, inbox: Inbox, memory: Memory, turn: Turn) -> list[Ask]:
        """Return what each federation that the client takes part in asks of it."""

    @abstractmethod
    def answered(
        self, model: Model, inbox: Inbox, memory: Memory, turn: Turn,
        answers: Sequence[tuple[Reply, Memory]],
    ) -> tuple[Reply, Memory]:  # fmt: skip
        """Return one reply of those to all asks, whose differences have been taken."""


def changed(local: Local, change: Callable[[Local], Local]) -> Local:
    """Return a local whose innermost parts are changed, those of all that it stands for."""
    if isinstance(local, Wrapper):
        around: Local = local.around(changed(local.inner, change))
        return around
    if isinstance(local, OneOf | Several):
        return local.changed(lambda own: changed(own, change))
    return change(local)
