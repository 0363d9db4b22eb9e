"""What a study may ask for beyond metrics: inner products of updates, gaps, local models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.exchange import Exchange, Method
from unseen.core.parts import layers
from unseen.core.rows import GRAM_WIDTH, Rows
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Table
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.local.train import FullGradient, GapProbe
from unseen.methods.base import local_training, trained, with_local

RECORDS = ("weights", "gram", "gaps")
FINAL, LOCALS = "final.safetensors", "locals.safetensors"


@dataclass
class Watcher:
    """A `unseen.core.round.Watch` for one job.

    Attributes:
        gram: Whether inner products are recorded.
        keep: Whether each round's local models stay in `locals`.
        locals: Client -> (parameters [P], buffers [B]) before the server's rule.
    """

    gram: bool = False
    keep: bool = False
    locals: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(
        self,
        exchange: Exchange,
        inbox: Inbox,
        rows: Mapping[str, Rows],
        vectors: Mapping[str, Tensor],
        table: Table,
        turn: Turn,
    ) -> Mapping[str, Any]:
        """Note what the study asks for; `gram` by slot is what goes to the records."""
        own = [
            name
            for name, slot in exchange.sent.items()
            if (slot.to or name) == "model" and slot.part is None
        ]
        if self.keep and "model" in own:
            names = [turn.roster[int(i)] for i in table["client"]]
            self.locals = dict(zip(names, local_models(exchange, inbox, rows), strict=True))
        if not (self.gram and own):
            return {}
        return {"gram": {name: products(rows[name], vectors["model"]) for name in own}}


def products(rows: Rows, vector: Tensor) -> dict[str, Any]:
    """Return inner products of the updates u_i and of the step v that the rules made of them.

    With several slots for the model, v is their sum. Cosines, conflicts and the domain variance of
    PPDG's Eq. 4 follow from these.

    Returns:
        `inner`: <u_i, u_j> [K][K]; `update`: <u_i, v> [K]; `norm`: <v, v>.
    """
    dense = rows.dense()
    parts = (slice(i, i + GRAM_WIDTH) for i in range(0, dense.shape[1], GRAM_WIDTH))
    update = torch.zeros(len(dense), dtype=torch.float64, device=dense.device)
    norm = torch.zeros((), dtype=torch.float64, device=dense.device)
    for part in parts:
        step = vector[part]
        update += (dense[:, part] @ step).double()
        norm += (step @ step).double()
    return {
        "inner": [short(line) for line in rows.gram().tolist()],
        "update": short(update.tolist()),
        "norm": short([float(norm)])[0],
    }


def short(values: Sequence[float]) -> list[float]:
    """Return six significant digits of each, which is what a figure can show.

    >>> short([0.123456789, 1234567.0])
    [0.123457, 1234570.0]
    """
    return [float(f"{value:.6g}") for value in values]


def local_models(
    exchange: Exchange, inbox: Inbox, rows: Mapping[str, Rows]
) -> list[tuple[Tensor, Tensor]]:
    """Return each participant's (parameters [P], buffers [B]) as they were before the rule."""
    models = _values(exchange, "model", inbox, rows)
    statistics = (
        _values(exchange, "buffers", inbox, rows)
        if "buffers" in rows
        else inbox["buffers"].expand(len(models), -1).clone()
    )
    return list(zip(models, statistics, strict=True))


def _values(exchange: Exchange, slot: str, inbox: Inbox, rows: Mapping[str, Rows]) -> Tensor:
    dense = rows[slot].dense()
    sent = exchange.slots[slot].sends == "difference"
    return dense + inbox[exchange.slots[slot].to or slot] if sent else dense.clone()


def probed(method: Method) -> Method:
    """Add GA's gaps to the method's scalars, measured as GA does by default."""
    if any(isinstance(part, GapProbe) for part in layers(trained(method).local)):
        return method
    return with_local(method, GapProbe)


def check_locals(method: Method) -> None:
    """Refuse to look at the local models of a method that trains none."""
    if isinstance(local_training(method), FullGradient):
        raise UnseenError(
            f"{method.name} sends gradients, so there are no local models.",
            remedy="Leave out save = ['locals'], cross_evaluation and record = ['gaps'], or this "
            "method.",
        )


def save_models(folder: Path, names: Sequence[str], model: Model, inbox: Inbox, watcher: Watcher,
                notes: Mapping[str, str]) -> None:  # fmt: skip
    """Write `final.safetensors`, the global model, and `locals.safetensors`, the local models.

    Local models are those of the last round, as `client/tensor`. Tensors have the names of the
    module's state dict.
    """
    if "final" in names:
        save_tensors(folder / FINAL, tensors_of(model, inbox["model"], inbox["buffers"]), notes)
    if "locals" in names:
        found = {
            f"{client}/{name}": tensor
            for client, own in watcher.locals.items()
            for name, tensor in tensors_of(model, *own).items()
        }
        save_tensors(folder / LOCALS, found, notes)


def tensors_of(model: Model, vector: Tensor, buffers: Tensor) -> dict[str, Tensor]:
    """Return the state of the module at these vectors, by its own names."""
    model.bind(vector, buffers)
    state = model.module.state_dict()
    return {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write named tensors as safetensors, in one step."""
    from safetensors.torch import save

    from unseen.core.atomic import write_atomically

    write_atomically(path, save(dict(tensors), dict(notes)))
