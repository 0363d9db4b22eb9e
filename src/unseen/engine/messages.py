"""What Flower's messages are made of: a parcel of tensors, numbers and texts, as its records."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from unseen.core import Inbox, Reply, Turn
from unseen.core.row_codes import FORMS, decode, encode, width
from unseen.errors import UnseenError, absent

if TYPE_CHECKING:
    from flwr.app import RecordDict

#: Tensors and bytes travel as ArrayRecords, numbers as MetricRecords, texts as ConfigRecords.
Value = Tensor | float | int | list[float] | str | bytes
Parcel = Mapping[str, Value]
Kind = TypeVar("Kind", bound=Tensor | bytes)

ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"
#: How an array is written down: as numpy does it, or as the bytes that it is.
NUMPY, BYTES = "numpy.ndarray", "bytes"
INBOX, ROW, SCALAR, ORDER = "inbox/", "row/", "scalar/", "order"

#: Flower neither asks for updates nor reports usage nor installs anything.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def needs_flower(what: str, instead: str = "") -> None:
    """Refuse to continue without Flower, in the words of `absent`, and silence it."""
    if importlib.util.find_spec("flwr") is None:
        raise absent("flwr", what, "flower", instead)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def pack(parcel: Parcel) -> RecordDict:
    """Return a parcel as Flower sends it; Flower cuts arrays into pieces of 5 MiB by itself."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    arrays, metrics, config = ArrayRecord(), MetricRecord(), ConfigRecord()
    for name, value in parcel.items():
        coded = encode(value) if isinstance(value, Tensor) else None
        if isinstance(value, Tensor) and coded is not None:
            form, data = coded
            arrays[name] = Array(dtype="float32", shape=(len(value),), stype=form, data=data)
        elif isinstance(value, Tensor):
            plain = np.ascontiguousarray(value.detach().cpu().numpy())
            arrays[name] = Array.from_numpy_ndarray(plain)
        elif isinstance(value, bytes):
            arrays[name] = Array(dtype="uint8", shape=(len(value),), stype=BYTES, data=value)
        elif isinstance(value, str):
            config[name] = value
        else:
            metrics[name] = value
    return RecordDict({ARRAYS: arrays, METRICS: metrics, CONFIG: config})


def unpack(content: RecordDict) -> dict[str, Value]:
    """Return the parcel that `pack` made; its tensors own their memory, aligned as torch does."""
    parcel: dict[str, Value] = {}
    for name, array in content.array_records[ARRAYS].items():
        if array.stype == BYTES:
            parcel[name] = bytes(array.data)
            continue
        if array.stype in FORMS:
            parcel[name] = decode(array.stype, array.data, *array.shape)
            continue
        if array.stype != NUMPY:
            forms = ", ".join((NUMPY, *FORMS))
            raise UnseenError(f"the array {name!r} comes as {array.stype}; expected {forms}.")
        plain = np.load(io.BytesIO(array.data), allow_pickle=False)
        parcel[name] = torch.from_numpy(plain).clone()
    parcel |= cast("dict[str, Value]", dict(content.metric_records[METRICS]))
    parcel |= cast("dict[str, Value]", dict(content.config_records[CONFIG]))
    return parcel


def weight(content: RecordDict) -> int:
    """Return the bytes that a message's arrays and texts take once they are read, before they are.

    A sparse row says how long it is: it counts as such.
    """
    arrays = sum(
        max(len(a.data), 4 * math.prod(a.shape) if a.stype in FORMS else 0)
        for record in content.array_records.values()
        for a in record.values()
    )
    texts = [v for record in content.config_records.values() for v in record.values()]
    return arrays + sum(len(v) if isinstance(v, str | bytes | list) else 8 for v in texts)


def size(parcel: Parcel) -> int:
    """Return the bytes of a parcel's values, without names and envelope."""
    total = 0
    for value in parcel.values():
        if isinstance(value, Tensor):
            total += width(value)
        elif isinstance(value, str | bytes):
            total += len(value.encode() if isinstance(value, str) else value)
        else:
            total += 8 * (len(value) if isinstance(value, list) else 1)
    return total


def from_turn(turn: Turn) -> dict[str, Any]:
    """Return a turn as JSON can hold it; it is the same for all clients."""
    return {n: v for n, v in vars(turn).items() if n != "question"} | {"client": ""}


def to_turn(fields: Mapping[str, Any]) -> Turn:
    """Return the turn that `from_turn` was given, of no client."""
    return Turn(**{**fields, "roster": tuple(fields["roster"])})


def from_inbox(inbox: Inbox) -> dict[str, Value]:
    """Return what the clients receive, as a parcel."""
    return {INBOX + name: value for name, value in inbox.items()}


def to_inbox(parcel: Parcel, device: torch.device) -> dict[str, Tensor]:
    """Return the inbox that a parcel holds, without the entries that are texts."""
    return {name: value.to(device) for name, value in named(parcel, INBOX, Tensor).items()}


def named(parcel: Parcel, prefix: str, kind: type[Kind]) -> dict[str, Kind]:
    """Return the values of one kind whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in parcel.items()
        if name.startswith(prefix) and isinstance(value, kind)
    }


def from_reply(reply: Reply) -> dict[str, Value]:
    """Return all that leaves a client, as a parcel with scalars in order, which records show."""
    parcel: dict[str, Value] = {ROW + name: row for name, row in reply.rows.items()}
    for name, scalar in reply.scalars.items():
        value = torch.as_tensor(scalar, dtype=torch.float64)
        parcel[SCALAR + name] = float(value) if value.ndim == 0 else value.tolist()
    parcel[ORDER] = json.dumps(list(reply.scalars))
    return parcel


def to_reply(parcel: Parcel) -> Reply:
    """Return the reply that a parcel holds; other things in it are passed over."""
    scalars: dict[str, float | Tensor] = {}
    for name in json.loads(str(parcel.get(ORDER, "[]"))):
        value = parcel.get(SCALAR + name)
        if isinstance(value, list):
            scalars[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, float | int):
            scalars[name] = float(value)
    return Reply(named(parcel, ROW, Tensor), scalars)
