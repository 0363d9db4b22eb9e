"""The model of the selected round, kept on disk while the rounds run."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.client import Memories
from unseen.core.exchange import Method, State
from unseen.core.metrics import plain
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.results import records
from unseen.results.selection import less_is_better, select
from unseen.study.watcher import save_tensors, tensors_of

SELECTED = "selected.safetensors"
#: What stands before the names of tensors that are not the network's own: entries of the inbox that
#: prediction reads, and the BatchNorm statistics that a site keeps for itself. No name of a
#: module's tensor has a slash.
INBOX, SITES = "inbox/", "sites/"


class Reading(UserDict[str, Tensor]):
    """An inbox that notes what is read from it."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(inbox)
        self.read = set[str]()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)


def read_by(method: Method, model: Model, inbox: Inbox, x: Tensor) -> tuple[str, ...]:
    """Return the entries besides the model that prediction reads, tried on inputs `x`."""
    if method.predict is plain:
        return ()
    noted = Reading(inbox)
    model.module.eval()
    with torch.no_grad():
        method.predict(model, noted, x.to(model.device))
    return tuple(sorted(noted.read - {"model", "buffers"}))


def keep_selected(
    folder: Path,
    rule: tuple[str, str],
    method: Method,
    model: Model,
    state: State,
    memories: Memories,
    x: Tensor,
    notes: Mapping[str, str],
) -> None:
    """Write `selected.safetensors` if the selection rule takes the latest round.

    The rule reads the records so far. The round that it selects in the end was selected when it was
    played.

    Args:
        folder: The job's folder.
        rule: The selection and its metric.
        method: The method.
        model: The model.
        state: The state after the round.
        memories: What clients keep, their own BatchNorm statistics among it.
        x: A few inputs to try the prediction on.
        notes: The notes of the file.
    """
    selection, metric = rule
    source, target = (records.read_lines(folder / name) for name in records.FILES[:2])
    try:
        chosen = select(selection, source, target, metric, less_is_better(metric))
    except UnseenError:  # nothing can be selected yet: a metric is still undefined
        return
    if chosen != state.round - 1:
        return
    tensors = tensors_of(model, state.inbox["model"], state.inbox["buffers"])
    for name in read_by(method, model, state.inbox, x):
        tensors[INBOX + name] = state.inbox[name].detach().cpu().contiguous().clone()
    for client in memories.kept:
        own = memories.before(client, (state.round, -1))
        if "buffers" in own:
            tensors[SITES + client] = own["buffers"].detach().cpu().clone()
    about = {"round": str(chosen), "selection": selection, "metric": metric}
    save_tensors(folder / SELECTED, tensors, {**notes, **about})
