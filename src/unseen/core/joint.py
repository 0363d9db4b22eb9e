"""Locals that can answer for many clients of one process at once."""

from abc import abstractmethod
from collections.abc import Sequence

from unseen.core.client import Client
from unseen.core.exchange import Reply
from unseen.core.parts import Part
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
