"""What a study may ask for beyond metrics: inner products of updates, gaps, models on disk."""

import json
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen.core import Exchange, Inbox, Memories, Method, Model, State, Table, Turn
from unseen.core.added_rows import AddedRows
from unseen.core.atomic import write_atomically
from unseen.core.metrics.evaluation import plain
from unseen.core.parts import innermost, layers
from unseen.core.rows import GRAM_WIDTH, Rows, column_blocks
from unseen.errors import UnseenError
from unseen.methods.base import trained, with_local
from unseen.methods.local.train import FullGradient, GapProbe

RECORDS = ("weights", "gram", "gaps", "drift")
FINAL, LOCALS = "final.safetensors", "locals.safetensors"
SELECTED = "selected.safetensors"
#: The selected round's model as a blind server has it, which sites alone can open.
SEALED = "selected.sealed"
#: Before what is in that file: entries in the clear, and what is carried from site to site.
CLEAR, CARRIED = "clear/", "carried/"
#: Before names of tensors that are not the network's own, whose names have no slash: entries of the
#: inbox that prediction reads, and a site's own BatchNorm statistics.
INBOX, SITES = "inbox/", "sites/"


@dataclass
class Watcher:
    """A `unseen.core.round.Watch` for one job.

    Attributes:
        gram: Whether inner products are recorded.
        drift: Whether each client's cosine with the server's step is, and how many clients differ.
        keep: Whether each round's local models stay in `locals`.
        locals: Client -> (parameters [P], buffers [B]) before the server's rule.
    """

    gram: bool = False
    keep: bool = False
    drift: bool = False
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
        """Note what the study asks for; `gram` and `drift` by slot are what goes to the records."""
        slots = exchange.row_slots.items()
        own = [name for name, s in slots if (s.to or name) == "model" and s.part is None]
        own = [name for name in own if not isinstance(rows[name], AddedRows)]  # no update is left
        if self.keep and "model" in own:
            names = [turn.roster[int(i)] for i in table["client"]]
            pairs = (before_rule(exchange, e, inbox, rows) for e in ("model", "buffers"))
            self.locals = dict(zip(names, zip(*pairs, strict=True), strict=True))
        if not own or not (self.gram or self.drift):
            return {}
        by_slot = {name: products(rows[name], vectors["model"]) for name in own}
        asked = (("gram", recorded, self.gram), ("drift", drift, self.drift))
        return {k: {name: of(p) for name, p in by_slot.items()} for k, of, asks in asked if asks}

    @property
    def looks(self) -> bool:
        """Whether there is anything to note."""
        return self.gram or self.drift or self.keep


class Products(NamedTuple):
    """Inner products of the updates u_i and of the step v: <u_i, u_j>, <u_i, v> and <v, v>."""

    inner: Tensor
    update: Tensor
    norm: Tensor


def products(rows: Rows, vector: Tensor) -> Products:
    """Return inner products of the updates and of the step that the rules made of them.

    With several slots for the model, the step is their sum.
    """
    dense = rows.dense()
    update = torch.zeros(len(dense), dtype=torch.float64, device=dense.device)
    norm = torch.zeros_like(update[0])
    for part, columns in column_blocks(dense, GRAM_WIDTH):
        step = vector[part]
        update += (columns @ step).double()
        norm += (step @ step).double()
    return Products(rows.gram(), update.cpu(), norm.cpu())


def recorded(of: Products) -> dict[str, Any]:
    """Return `inner` [K, K], `update` [K] and `norm` in six digits."""
    return {
        "inner": [short(line) for line in of.inner.tolist()],
        "update": short(of.update.tolist()),
        "norm": short([float(of.norm)])[0],
    }


def drift(of: Products) -> dict[str, Any]:
    """Return how the clients' updates lie to the step that was made of them, in six digits.

    Returns:
        `cosine`: <u_i, v> / (‖u_i‖ ‖v‖) [K], 0 of an update that is 0; `length`: ‖u_i‖ [K]; `step`:
        ‖v‖; `conflict`: the share of pairs with <u_i, u_j> < 0.
    """
    K, lengths = len(of.inner), of.inner.diagonal().clamp(min=0).sqrt()
    scale = lengths * of.norm.sqrt()
    cosines = torch.where(scale > 0, of.update / scale, 0).clamp(-1, 1)
    conflicts = int((of.inner.triu(1) < 0).sum()) / max(1, K * (K - 1) // 2)
    lists = {"cosine": short(cosines.tolist()), "length": short(lengths.tolist())}
    return {**lists, "step": short([float(of.norm.sqrt())])[0], "conflict": short([conflicts])[0]}


def short(values: Sequence[float]) -> list[float]:
    """Return six significant digits of each, which is what a figure can show.

    Example:
        >>> short([0.123456789, 1234567.0])
        [0.123457, 1234570.0]
    """
    return [float(f"{value:.6g}") for value in values]


def before_rule(exchange: Exchange, entry: str, inbox: Inbox, rows: Mapping[str, Rows]) -> Tensor:
    """Return each participant's parameters [K, P], or buffers, as they were before the rule."""
    if entry not in rows:
        return inbox[entry].expand(rows["model"].shape[0], -1).clone()
    dense, slot = rows[entry].dense(), exchange.slots[entry]
    return dense + inbox[slot.to or entry] if slot.sends == "difference" else dense.clone()


def probed(method: Method) -> Method:
    """Add GA's gaps to the method's scalars, measured as GA does by default."""
    if any(isinstance(part, GapProbe) for part in layers(trained(method).local)):
        return method
    return with_local(method, GapProbe)


def check_locals(method: Method) -> None:
    """Refuse to look at the local models of a method that trains none."""
    if isinstance(innermost(trained(method).local), FullGradient):
        what = f"{method.name} sends gradients, so there are no local models."
        remedy = "Leave it out, or save = ['locals'], cross_evaluation and record = ['gaps']."
        raise UnseenError(what, remedy=remedy)


def save_models(
    folder: Path,
    names: Sequence[str],
    model: Model,
    inbox: Inbox,
    watcher: Watcher,
    notes: Mapping[str, str],
) -> None:
    """Write `final.safetensors`, the global model, and `locals.safetensors`, the local models.

    Local models are those of the last round, as `client/tensor`.
    """
    if "final" in names:
        save_tensors(folder / FINAL, tensors_of(model, inbox["model"], inbox["buffers"]), notes)
    if "locals" in names:
        tensors = dict[str, Tensor]()
        for client, own in watcher.locals.items():
            tensors |= {f"{client}/{name}": t for name, t in tensors_of(model, *own).items()}
        save_tensors(folder / LOCALS, tensors, notes)


def tensors_of(model: Model, vector: Tensor, buffers: Tensor) -> dict[str, Tensor]:
    """Return the state of the module at these vectors, by its own names."""
    model.bind(vector, buffers)
    state = model.module.state_dict()
    return {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write named tensors as safetensors, in one step, and in every process the same bytes."""
    from safetensors.torch import save

    write_atomically(path, in_order(save(dict(tensors), dict(notes))))


def in_order(content: bytes) -> bytes:
    """Return a safetensors file with its notes sorted, of which it writes each time another order.

    Note:
        Places of tensors are counted from the end of the header, whose length is a multiple of 8.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


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
    reading = Reading(inbox)
    model.module.eval()
    with torch.no_grad():
        method.predict(model, reading, x.to(model.device))
    return tuple(sorted(reading.read - {"model", "buffers"}))


def selected_tensors(
    method: Method, model: Model, state: State, memories: Memories, x: Tensor
) -> dict[str, Tensor]:
    """Return the model, what else its prediction reads, and the sites' own BatchNorm statistics.

    Args:
        method: The method.
        model: The model.
        state: The state after the round.
        memories: What clients keep.
        x: A few inputs to try the prediction on.
    """
    tensors = tensors_of(model, state.inbox["model"], state.inbox["buffers"])
    for name in read_by(method, model, state.inbox, x):
        tensors[INBOX + name] = state.inbox[name].detach().cpu().contiguous().clone()
    for client in memories.by_client:
        own = memories.before(client, (state.round, -1))
        if "buffers" in own:
            tensors[SITES + client] = own["buffers"].detach().cpu().clone()
    return tensors


def sealed_tensors(state: State, memories: Memories) -> dict[str, Tensor]:
    """Return what a blind server has of the model: entries in the clear, and sealed content.

    Args:
        state: The state after the round; entries that the server does not know are NaN.
        memories: What the server carries.
    """
    clear = {name: entry for name, entry in state.inbox.items() if not bool(entry.isnan().any())}
    tensors = {CLEAR + name: entry.detach().cpu().contiguous() for name, entry in clear.items()}
    for entries in memories.by_client.values():
        tensors |= {CARRIED + name: content for name, content in entries[-1][1].items()}
    return tensors


def selected_file(folder: Path, blind: bool) -> Path:
    """Return where a job keeps the selected round's model, in the clear or sealed."""
    return folder / (SEALED if blind else SELECTED)
