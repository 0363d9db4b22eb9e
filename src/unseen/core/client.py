"""A participant and what it owns: its data and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from unseen.errors import UnseenError


@dataclass(frozen=True)
class Stored:
    """Inputs that stay where they are, such as memory-mapped arrays: N rows of arrays [M, ...].

    Attributes:
        arrays: Arrays of one type and one shape of a row.
        source: Which array each row is from [N].
        rows: Which row of it [N].
        device: Where indexing puts the rows that it reads.
    """

    arrays: tuple[Tensor, ...]
    source: Tensor
    rows: Tensor
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, array: Tensor) -> Stored:
        """Return all rows of one array."""
        n = len(array)
        return cls((array,), torch.zeros(n, dtype=torch.uint8), torch.arange(n))

    @classmethod
    def joined(cls, parts: Sequence[Tensor | Stored]) -> Stored:
        """Concatenate without copying."""
        stored = [part if isinstance(part, Stored) else cls.of(part) for part in parts]
        firsts = accumulate([len(part.arrays) for part in stored], initial=0)
        source = [part.source.long() + first for part, first in zip(stored, firsts, strict=False)]
        arrays = chain.from_iterable(part.arrays for part in stored)
        rows = torch.cat([part.rows for part in stored])
        return cls(tuple(arrays), torch.cat(source), rows, stored[0].device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.arrays[0].shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.arrays[0].dtype

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        part = self.take(index)
        if len(self.arrays) == 1:
            return rows_of(self.arrays[0], part.rows).to(self.device)
        parts = [rows_of(a, part.rows[part.source == k]) for k, a in enumerate(self.arrays)]
        place = part.source.argsort(stable=True).argsort()
        return rows_of(torch.cat(parts), place).to(self.device)

    def take(self, index: Tensor | slice) -> Stored:
        index = index.cpu() if isinstance(index, Tensor) else index
        return replace(self, source=self.source[index], rows=self.rows[index])

    def to(self, device: torch.device | str) -> Stored:
        return replace(self, device=torch.device(device))


def rows_of(x: Tensor, index: Tensor | slice) -> Tensor:
    """Return x[index]; index_select copies rows of bytes 3 to 7 times as fast as indexing."""
    if isinstance(index, Tensor) and index.dtype == torch.int64 and x.is_contiguous():
        return x.index_select(0, index)
    return x[index]


@dataclass(frozen=True)
class Split:
    """Examples of one client.

    Note:
        Arrays of numpy and pandas become tensors: floating point float32, labels and codes int64.

    Attributes:
        x: Inputs [N, ...], uint8 (read as x / 255), float32, or float16 (read as float32).
        y: Classes [N] as int64, or numbers to predict [N] as float32.
        meta: Column -> integer codes [N], by which metrics may be grouped; −1
            (`unseen.data.dataset.NO_GROUP`) for an example of no group. The column
            `environment` names the environments inside one client.

    Raises:
        UnseenError: If the lengths differ, or x or y are not numbers.
    """

    x: Tensor | Stored
    y: Tensor
    meta: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x = self.x if isinstance(self.x, Stored) else _tensor("x", self.x)
        y, meta = _labels("y", self.y), {k: _labels(k, codes) for k, codes in self.meta.items()}
        vars(self).update(x=x, y=y, meta=meta)
        lengths = {k: len(values) for k, values in {"x": x, "y": y, **meta}.items()}
        if len(set(lengths.values())) != 1:
            raise UnseenError(f"a split needs as many labels as inputs; found {lengths}.")

    def __len__(self) -> int:
        return self.y.shape[0]

    @classmethod
    def of(cls, dataset: Dataset[Any]) -> Split:
        """Read a map-style torch data set of (input, label) pairs into memory."""
        pairs = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
        x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return cls(x, torch.as_tensor([pair[1] for pair in pairs]))

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the inputs, as floating point, and the labels of some rows."""
        x = self.x[index] if isinstance(self.x, Stored) else rows_of(self.x, index)
        if x.dtype == torch.uint8:
            return x.float().div_(255), self.y[index]
        return (x.float() if x.dtype == torch.float16 else x), self.y[index]

    def take(self, index: Tensor) -> Split:
        meta = {name: codes[index] for name, codes in self.meta.items()}
        x = self.x.take(index) if isinstance(self.x, Stored) else self.x[index]
        return Split(x, self.y[index], meta)

    def to(self, device: torch.device | str) -> Split:
        meta = {name: codes.to(device) for name, codes in self.meta.items()}
        return Split(self.x.to(device), self.y.to(device), meta)


def _tensor(name: str, values: object) -> Tensor:
    """Return a tensor as it is, an array as a tensor of a type that models compute in."""
    if not isinstance(values, Tensor):
        array = np.asarray(values) if hasattr(values, "__array__") else None
        if array is None or array.dtype.kind not in "fiub":
            kind = type(values).__name__ if array is None else f"an array of {array.dtype}"
            raise UnseenError(
                f"a split's {name} must be a tensor or an array of numbers [N, ...]; found {kind}.",
                remedy="Write, for example, Split(torch.tensor(rows), torch.tensor(labels)).",
            )
        values = torch.tensor(array)
        values = values.float() if values.is_floating_point() else values
    if values.ndim == 0:
        raise UnseenError(
            f"a split's {name} must have an axis of examples, [N, ...]; found the single number "
            f"{values.item():g}."
        )
    return values


def _labels(name: str, values: object) -> Tensor:
    tensor = _tensor(name, values)
    return tensor if tensor.is_floating_point() else tensor.long()


@dataclass(frozen=True)
class Client:
    """A silo. Its splits never leave it; either may be absent.

    Attributes:
        name: Its name.
        train: What it trains on.
        validation: What it evaluates on.
        classes: The number of classes; None for regression.
    """

    name: str
    train: Split | None
    validation: Split | None
    classes: int | None

    def __post_init__(self) -> None:
        for name, split in (("train", self.train), ("validation", self.validation)):
            if not isinstance(split, Split | None):
                what = (
                    f"client {self.name!r}: {name} must be a Split of inputs and labels, or None; "
                )
                what += f"found {type(split).__name__}."
                raise UnseenError(what, remedy=f"Write {name}=Split(x, y).")

    def split(self, name: str) -> Split:
        """Return the split named `train` or `validation`.

        Raises:
            UnseenError: If the client lacks it.
        """
        split = self.train if name == "train" else self.validation
        if split is None:
            raise UnseenError(f"client {self.name!r} has no {name} split.")
        return split


@dataclass
class Memories:
    """What each client remembers between exchanges, labelled (round, exchange).

    Note:
        A message that comes twice, or again after a crash of the server, starts from the newest
        memory older than itself, and so leads to the same reply. That takes the memories of the
        current round and the last one of the round before.

    Attributes:
        by_client: Client -> its memories with their labels, oldest first.
    """

    by_client: dict[str, list[tuple[tuple[int, int], dict[str, Tensor]]]] = field(
        default_factory=dict
    )

    def before(self, client: str, label: tuple[int, int]) -> dict[str, Tensor]:
        """Return the client's memory before the exchange with this label."""
        older = [memory for at, memory in self.by_client.get(client, []) if at < label]
        return dict(older[-1]) if older else {}

    def write(self, client: str, label: tuple[int, int], memory: Mapping[str, Tensor]) -> None:
        """Store `memory` under `label`, and forget what no message can ask for."""
        entries = self.by_client.get(client, [])
        earlier = [entry for entry in entries if entry[0][0] < label[0]]
        current = [entry for entry in entries if (label[0], -1) < entry[0] < label]
        self.by_client[client] = [*earlier[-1:], *current, (label, dict(memory))]


def pooled(clients: Mapping[str, Client], name: str = "pooled") -> Client:
    """Pool the training examples of all clients in one, which federated learning forbids."""
    train = concatenated([client.split("train") for client in clients.values()])
    return Client(name, train, None, next(iter(clients.values())).classes)


def concatenated(splits: Sequence[Split]) -> Split:
    """Put splits after one another, with the columns that all of them have."""
    columns = set.intersection(*(set(split.meta) for split in splits))
    meta = {column: torch.cat([split.meta[column] for split in splits]) for column in columns}
    return Split(joined([split.x for split in splits]), torch.cat([s.y for s in splits]), meta)


def joined(inputs: Sequence[Tensor | Stored]) -> Tensor | Stored:
    """Concatenate inputs; what lies on disk stays there."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    return torch.cat(tensors) if len(tensors) == len(inputs) else Stored.joined(inputs)


def oversampled(split: Split, generator: torch.Generator) -> Split:
    """Repeat examples, drawn with replacement, until every class is as large as the largest."""
    classes, counts = split.y.unique(return_counts=True)
    index = [torch.arange(len(split))]
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        own = (split.y == label).nonzero().flatten()
        extra = torch.randint(count, (int(counts.max()) - count,), generator=generator)
        index.append(own[extra])
    return split.take(torch.cat(index))
