"""How a study's clients train, as settings: its `[training]` table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.studies.settings.wording import Expression, Settings

if TYPE_CHECKING:
    from unseen.core.labels import Kind
    from unseen.core.survival import Cox, Hazards
    from unseen.methods.recipe import Training

Count = Annotated[int, Field(ge=1)]


class Recipe(Settings):
    """How clients train: the `[training]` table of a study. See `unseen.methods.recipe.Training`.

    Attributes:
        optimiser: `sgd(lr=0.1, momentum=0.9, weight_decay=5e-4)` or `adam(lr=0.001)`.
        epochs, steps: The local work per round, by one of the two; 1 epoch where both are left out.
        schedule: Of the learning rate over rounds: `constant`, `step(at=0.8, factor=0.1)`,
            `exponential(factor=0.96)` or `cosine`.
        keep_optimiser: Whether the optimiser's moments live on from round to round.
        loss: Of times until an event: `cox(ties="efron")`, their default, or discrete hazards,
            `hazards(intervals=10)` or `hazards(cuts=[90, 180, 365])`; "" for what fits the labels.
            See docs/survival.md.
        balanced: Whether classes are weighted by each client's own counts.
        oversample: Whether rare classes of the training split are repeated at random until all are
            equally frequent.
        server: How the combined update is applied: `add`; `sgd(lr=1)` or `adam(lr=0.01)`, which are
            torch's; `fedadam(lr=0.01)`, `fedyogi(lr=0.01)` or `fedadagrad(lr=0.01)`, which are
            Reddi et al.'s (no bias correction, tau=1e-3).
        buffers: BatchNorm's statistics: `average` over sites; `local`, each site's own; `batch`,
            none; `frozen`, those of the first weights.
        augment: Changes of the images of training steps, such as
            `random-resized-crop(scale=[0.8, 1])+flip`; see `unseen.methods.images.augment`.
        weights: Of the clients in every method's mean: `uniform` (sites count alike, since the
            next one is another site), `examples`, or `method`, each method's own default, as the
            papers' studies have it. A method that names its own keeps them.
        average: `tail(start=0.5)` or `ema(decay=0.9)`: every method that trains by rounds predicts
            by this average of the server's models.
        ensemble: How many federations of other seeds predict together, for the same methods.
    """

    optimiser: Expression = "sgd(lr=0.1)"
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 32
    drop_last: bool = False
    schedule: Expression = "constant"
    keep_optimiser: bool = False
    loss: Expression = ""
    smoothing: float = 0.0
    balanced: bool = False
    oversample: bool = False
    server: Expression = "add"
    buffers: Literal["average", "local", "batch", "frozen"] = "average"
    augment: Expression = ""
    weights: Literal["uniform", "examples", "method"] = "uniform"
    average: Expression = ""
    ensemble: Count = 1

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("either epochs or steps per round, not both; set one of them only")
        return self

    @property
    def of_times(self) -> Cox | Hazards:
        """What is minimised where labels are times until an event."""
        from unseen.core.survival import Cox, Hazards

        part: Cox | Hazards = _part("loss", self.loss or "cox", {"cox": Cox, "hazards": Hazards})
        return part

    @property
    def intervals(self) -> int:
        """How many intervals are made of sums over times, if labels are times."""
        from unseen.core.survival import Hazards

        loss = self.of_times
        return loss.intervals if isinstance(loss, Hazards) and not loss.cuts else 0

    def build(self, kind: Kind) -> Training:
        """Return the recipe as the objects that methods are made of, for labels of a kind."""
        from unseen.core.apply import Add, Descend
        from unseen.core.losses import CrossEntropy, CrossEntropyDice, Loss, SquaredError
        from unseen.core.optimiser import SGD, Adam, fedadagrad, fedadam, fedyogi
        from unseen.core.schedule import SCHEDULES
        from unseen.methods.images.augment import build
        from unseen.methods.recipe import Training

        if kind != "classes" and (self.balanced or self.oversample or self.smoothing):
            what = f"balanced, oversample and smoothing are for classes; these labels are {kind}."
            raise UnseenError(what)
        losses: dict[Kind, Loss] = {
            "classes": CrossEntropy(self.smoothing, self.balanced),
            "numbers": SquaredError(),
            "masks": CrossEntropyDice(),
            "times": self.of_times,
        }
        optimisers: dict[str, Any] = {"sgd": SGD, "adam": Adam}
        adaptive = {"fedadam": fedadam, "fedyogi": fedyogi, "fedadagrad": fedadagrad}
        server = _part("server", self.server, {"add": Add, **optimisers, **adaptive})
        unchanged = {
            "steps",
            "batch_size",
            "drop_last",
            "keep_optimiser",
            "buffers",
            "weights",
            "average",
            "ensemble",
        }
        return Training(
            optimiser=_part("optimiser", self.optimiser, optimisers),
            epochs=None if self.steps is not None else self.epochs or 1,
            schedule=_part("schedule", self.schedule, SCHEDULES),
            loss=losses[kind],
            server=server if isinstance(server, Add) else Descend(server),
            augment=build(self.augment) if self.augment else None,
            **self.model_dump(include=unchanged),
        )


def _part(kind: str, expression: str, table: Mapping[str, Any]) -> Any:
    calls = parse(expression)
    if len(calls) != 1:
        raise UnseenError(f"{kind} takes one name; found {len(calls)} joined by +.")
    return resolve(kind, calls[0], table)
