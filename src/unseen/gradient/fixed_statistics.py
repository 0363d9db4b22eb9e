"""FixBN: from some round on, BatchNorm trains under the received statistics."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.parts import Wrapper
from unseen.core.schedule import exact
from unseen.gradient.backprop import Gradient, Step
from unseen.ranges import Share, uniform


@dataclass(frozen=True)
class FixedStatistics(Wrapper, named="fixbn"):
    """The inner gradient; in rounds r ≥ start · R every BatchNorm normalises by what was received.

    Its statistics stay as they are then; its weight and bias go on training.

    Attributes:
        inner: the gradient.
        start: the share of the rounds that train with the statistics of batches; 1 changes nothing.
            The paper leaves it to be chosen; half of them is the default here.

    Source:
        Zhong, Chen, Chao 2023, "Making Batch Normalization Great in Federated Deep Learning",
        FixBN.
    """

    inner: Gradient
    start: Annotated[Share, uniform(0.1, 0.9)] = 0.5

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        with ExitStack() as hooks:
            if turn.round >= exact(self.start, turn.rounds):
                for layer in model.module.modules():
                    if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                        # At each pass, since other parts put the whole net in training mode again.
                        hooks.enter_context(layer.register_forward_pre_hook(evaluating))
            with self.inner.open(model, inbox, client, memory, turn) as inner:
                yield inner


def evaluating(layer: nn.Module, inputs: object) -> None:
    """Put a layer in evaluation mode."""
    layer.eval()
