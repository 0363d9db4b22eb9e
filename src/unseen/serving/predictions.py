"""Predictions: what a model answers to each image and row, also to what it cannot predict."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, pairwise
from pathlib import Path
from typing import Protocol, Self, overload

import numpy as np
import torch
from torch import Tensor

from unseen.serving.answer_options import PredictOptions
from unseen.serving.directory import Trained
from unseen.serving.policy import Answer, Policy, policy_of, scored
from unseen.serving.reading.batch import Batch, Item
from unseen.serving.reading.bounds import check_strict
from unseen.serving.reading.new_rows import ROWS, read


@dataclass(frozen=True)
class Line:
    """One answer of a model, for an image or a row."""

    item: Item
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, eq=False)
class Lines(Sequence[Line]):
    """The answers for a batch; a `Line` is made of one when it is asked for.

    Attributes:
        batch: The images or rows.
        own: The answers of those that have an input, in their order [M].
    """

    batch: Batch
    own: Sequence[Answer] = ()

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Self:
        """Return lines that came one by one."""
        batch = Batch.of([line.item for line in lines])
        return cls(batch, [lines[i].answer for i in batch.usable])

    @cached_property
    def answers(self) -> Sequence[Answer]:
        """The answer of each image or row [N]; an empty one where there is no input."""
        if not self.batch.errors:
            return self.own
        every = [Answer()] * len(self.batch)
        for place, answer in zip(self.batch.usable.tolist(), self.own, strict=True):
            every[place] = answer
        return every

    def __len__(self) -> int:
        return len(self.batch)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> list[Line]: ...
    def __getitem__(self, place: int | slice) -> Line | list[Line]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        return Line(self.batch[place], self.answers[place])


class Runtime(Protocol):
    """What computes outputs: the model itself, or an export of it."""

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs [N, C] for inputs [N, ...]."""
        ...


def predict(
    trained: Trained,
    paths: Sequence[Path],
    options: PredictOptions = PredictOptions(),
    *,
    policy: Policy | None = None,
    runtime: Runtime | None = None,
    batch: int | None = None,
) -> Iterator[Line]:
    """Yield one line for every image and row, in their order; see `new_rows.read`.

    Args:
        trained: The model.
        paths: The files.
        options: How outputs become answers, and which inputs get one.
        policy: How outputs become answers; by default that of the options.
        runtime: Computes the outputs instead of the model.
        batch: Inputs per pass.
    """
    for lines in predictions(trained, paths, options, policy=policy, runtime=runtime, batch=batch):
        yield from lines


def predictions(
    trained: Trained,
    paths: Sequence[Path],
    options: PredictOptions = PredictOptions(),
    *,
    policy: Policy | None = None,
    runtime: Runtime | None = None,
    batch: int | None = None,
) -> Iterator[Lines]:
    """Yield the lines of `predict`, those that were read together at once."""
    batches = marked(trained, paths, options, batch)
    yield from in_batches(trained, batches, policy or policy_of(trained, options), runtime, batch)


def answered(
    trained: Trained,
    batches: Iterable[Sequence[Item]],
    policy: Policy,
    runtime: Runtime | None = None,
) -> Iterator[Line]:
    """Yield one line for every item of the batches; see `predict`."""
    for lines in in_batches(trained, batches, policy, runtime):
        yield from lines


def in_batches(
    trained: Trained,
    batches: Iterable[Sequence[Item]],
    policy: Policy,
    runtime: Runtime | None = None,
    size: int | None = None,
) -> Iterator[Lines]:
    """Yield the lines of each batch, of which the model gets `size` rows at once; see `predict`."""
    exported, runtime = runtime is not None, runtime or trained
    for items in batches:
        batch = items if isinstance(items, Batch) else Batch.of(items)
        x = batch.inputs
        if x is None:
            yield Lines(batch)
            continue
        # Places and not inputs are counted: what cannot be used moves no row into another pass.
        ends = np.searchsorted(batch.usable, range(0, len(batch) + ROWS, size or ROWS))
        parts = [x[a:b] for a, b in pairwise(ends.tolist()) if b > a]
        outputs = torch.cat([runtime.outputs(part) for part in parts])
        scores = [scored(trained, part, exported) for part in parts]
        some = [own for own in scores if own is not None]
        yield with_answers(policy, batch, outputs, torch.cat(some) if some else None)


def marked(
    trained: Trained, paths: Sequence[Path], options: PredictOptions, batch: int | None = None
) -> Iterator[Batch]:
    """Yield the batches of `new_rows.read`, with what is far from training."""
    if options.strict:
        check_strict(trained.bounds)
    for items in read(trained.inputs, paths, batch, options.accept_unseen):
        yield trained.bounds.mark(items, options.strict)


def with_answers(policy: Policy, batch: Batch, outputs: Tensor, ood: Tensor | None) -> Lines:
    """Return the lines of a batch.

    Args:
        policy: How outputs become answers.
        batch: What was predicted, or could not be.
        outputs: One row [C] for each that has an input.
        ood: The out-of-distribution score of each of these rows [M].
    """
    finite = outputs.isfinite().all(dim=-1)
    answers = [*compress(policy.answers(outputs, ood), finite.tolist())]
    places = batch.usable[~finite.numpy()].tolist()
    errors = dict.fromkeys(places, "the model's outputs are not finite")
    return Lines(batch.refused(errors), answers)
