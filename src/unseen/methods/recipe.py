"""How clients train and the server applies: what a study sets for all its methods alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from unseen.core.apply import Add, Apply
from unseen.core.losses import CrossEntropy, Loss
from unseen.core.optimiser import SGD, Optimiser
from unseen.core.schedule import Constant, Schedule
from unseen.core.turn import Turn
from unseen.core.types import Memory
from unseen.errors import UnseenError
from unseen.methods.images.augment import Augment
from unseen.ranges import Checked, Count


class Sampling(Protocol):
    """Yields the row indices of each step's batch, out of `count` examples."""

    def __call__(
        self, count: int, recipe: Training, memory: Memory, turn: Turn
    ) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Training(Checked, named="training"):
    """The recipe around a method.

    Attributes:
        optimiser: Of the clients.
        epochs: Passes over the training split per round; None where `steps` is set.
        steps: Batches per round.
        batch_size: Examples per step.
        drop_last: Whether a short last batch is left out.
        schedule: The learning rate over rounds.
        keep_optimiser: Whether the client optimiser's moments live on from round to round; by
            default they begin again with each received model, since they belong to another one.
        loss: What a step descends.
        server: How the combined update is applied.
        buffers: BatchNorm statistics are averaged (`average`), kept by each client and averaged for
            the others (`local`), not kept at all, every batch being normalised by itself (`batch`),
            or stay those of the first weights (`frozen`).
        augment: What happens to the images of every training step, and to no others.
        weights: Of the clients in the server's mean, or in the mean that a rule starts from:
            `uniform` (1/K) or `examples` (n_i/n) for all methods alike that do not name their own,
            or `method`, each method's default.
        sampling: How batches are drawn; None shuffles.
        average: What every method that trains by rounds predicts by, such as `tail(start=0.5)`; ""
            is the last model.
        ensemble: How many federations of other seeds predict together, for the same methods.
    """

    optimiser: Optimiser = field(default_factory=SGD)
    epochs: Count | None = 1
    steps: Count | None = None
    batch_size: Count = 32
    drop_last: bool = False
    schedule: Schedule = field(default_factory=Constant)
    keep_optimiser: bool = False
    loss: Loss = field(default_factory=CrossEntropy)
    server: Apply = field(default_factory=Add)
    buffers: Literal["average", "local", "batch", "frozen"] = "average"
    augment: Augment | None = None
    weights: Literal["uniform", "examples", "method"] = "method"
    sampling: Sampling | None = None
    average: str = ""
    ensemble: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in ("optimiser", "schedule", "loss", "server", "augment"):
            if isinstance(text := getattr(self, part), str):
                raise UnseenError(
                    f"{part} of a Training is an object; found the text {text!r}.",
                    remedy="Write SGD(0.1), say, of unseen.core.optimiser; a study takes texts.",
                )
        if (self.epochs is None) == (self.steps is None):
            what = "training takes either epochs or steps per round; found "
            what += f"epochs={self.epochs} and steps={self.steps}."
            raise UnseenError(what, remedy="Set the other one to none.")
