"""A job's checkpoint: what it goes on from, in the state that its records were in."""

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.atomic import write_atomically
from unseen.core.client import Memories
from unseen.core.exchange import State
from unseen.studies.results import records


def save(folder: Path, state: State, memories: Memories) -> None:
    """Write the server's state and every client's memory in one file and one step.

    Note:
        Everything goes to the CPU. What a rule remembers says beside it whether it lay where the
        model lies, as the moments of a server's Adam do, or not, as weights of clients do.
    """

    def own(tensor: Tensor) -> Tensor:  # views would carry their whole storage along
        return tensor.detach().cpu().clone()

    home = state.inbox["model"].device
    beside: list[bool] = []
    each_tensor(state.rules, lambda tensor: beside.append(tensor.device == home))
    content = {"lengths": records.lengths_of(folder), "digests": records.digests(folder)}
    content |= {"round": state.round, "seed": state.seed, "beside": beside}
    content |= {"inbox": each_tensor(state.inbox, own)}
    content |= {"rules": each_tensor(state.rules, own)}
    content |= {"memories": each_tensor(memories.by_client, own)}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    write_atomically(folder / "checkpoint.pt", hashlib.sha256(payload).digest() + payload)


def load(folder: Path, device: str) -> tuple[State, Memories, Mapping[str, int]] | None:
    """Read what `save` wrote, with the records' lengths at that time.

    Args:
        folder: The job's.
        device: Where the model goes, and what lay beside it.

    Returns:
        None where nothing can be resumed: no checkpoint, a damaged one, or other records than those
        of its time.
    """
    path = folder / "checkpoint.pt"
    stored = path.read_bytes() if path.exists() else b""
    digest, payload = stored[:32], stored[32:]
    if not payload or hashlib.sha256(payload).digest() != digest:
        return None
    try:
        content = torch.load(io.BytesIO(payload), weights_only=True)
        lengths: dict[str, int] = content["lengths"]
        same = bool(content["digests"] == records.digests(folder, lengths))
    except (pickle.UnpicklingError, RuntimeError, LookupError, TypeError, ValueError, OSError):
        return None  # somebody else wrote it; nothing of it ran
    if not same:
        return None

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    memories = {
        client: [(tuple(label), memory) for label, memory in entries]
        for client, entries in each_tensor(content["memories"], there).items()
    }
    beside = iter(content.get("beside", ()))  # older files say nothing of it
    rules = each_tensor(content["rules"], lambda t: there(t) if next(beside, False) else t)
    inbox = each_tensor(content["inbox"], there)
    state = State(content["round"], inbox, rules, content["seed"])
    return state, Memories(memories), lengths


def each_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return the same mappings, lists and tuples with `change` of each tensor in its place."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: each_tensor(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each_tensor(inner, change) for inner in value)
    return value
