"""Predictions for a new site that make use of all its rows together, without their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from unseen.errors import UnseenError, choice
from unseen.serving import adapt
from unseen.serving.adapt import TINY, Shift
from unseen.serving.directory import Trained, probabilities
from unseen.serving.inputs import Table
from unseen.serving.new_rows import Clock, Line, stacked
from unseen.serving.predict import Runtime, answers, marked
from unseen.serving.site_means import KEY, remarks

#: In the order in which they act.
METHODS = ("inputs", "batchnorm", "prior")
#: Rows below which nothing is estimated: a share of one half is then off by 0.05 (one standard
#: error) even if every label were known.
LEAST = 100


@dataclass(frozen=True)
class Adapted:
    """Predictions that depend on what else was predicted with them.

    Attributes:
        methods: By what they were adapted, in the order in which it acted.
        lines: One for every image or row.
        notes: What must be said with them.
        shift: The re-estimated shares of classes, with `prior`.
    """

    methods: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    shift: Shift | None = None


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return the methods of these names in the order in which they act; refuse others, and none."""
    for name in names or ("",):
        choice("--adapt", name, METHODS)
    return tuple(name for name in METHODS if name in names)


def check(
    trained: Trained, methods: Sequence[str], site: str | None = None, exported: bool = False
) -> None:
    """Refuse what cannot be adapted as asked.

    Args:
        trained: The model.
        methods: As `chosen` returns them.
        site: The training site whose BatchNorm statistics were asked for.
        exported: Whether an export answers.
    """
    table, numbers = isinstance(trained.inputs, Table), trained.classes is None
    if "prior" in methods and numbers:
        other = "inputs adapts" if table else "batchnorm adapts"
        raise UnseenError(
            "--adapt prior re-estimates the shares of classes; this model predicts a number.",
            remedy=f"Leave out prior; {other} the model without classes.",
        )
    if "inputs" in methods and not (table and trained.inputs.numeric):  # type: ignore[union-attr]
        raise UnseenError(
            "--adapt inputs standardises the numeric columns of a table; this model takes none.",
            remedy="Leave out inputs; batchnorm adapts a network that has such layers.",
        )
    if "batchnorm" not in methods:
        return
    why = remedy = ""
    if not adapt.batchnorms(trained.model.module):
        why = f"replaces statistics of BatchNorm layers; {trained.spec['model']} has none."
        remedy = f"Leave out batchnorm{'; inputs does the like for columns' if table else ''}."
    elif exported:
        why = "changes the network; an export cannot be changed."
        remedy = "Leave out --runtime onnx."
    elif site is not None:
        why, remedy = "replaces the statistics that --site takes.", "Leave out one of the two."
    if why:
        raise UnseenError(f"--adapt batchnorm {why}", remedy=remedy)


def predict_adapted(
    trained: Trained,
    paths: Sequence[Path],
    methods: Sequence[str],
    runtime: Runtime | None = None,
    batch: int | None = None,
    clock: Clock | None = None,
    lenient: bool = False,
    strict: bool = False,
) -> Adapted:
    """Return one line for every image and row, adapted to all of them as the rows of one new site.

    All inputs are in memory at once. The model is afterwards as it was.

    Args:
        trained: The model.
        paths: The files of the new site.
        methods: `inputs`, `batchnorm` and `prior`, any of them; see `unseen.serving.adapt`.
        runtime: Computes the outputs instead of the model.
        batch: Inputs per pass.
        clock: Counts the time of each phase.
        lenient: Use rows with a category that no training site had.
        strict: Neither predict nor use what is far from what training saw.

    Raises:
        UnseenError: The model cannot be adapted so, or there are fewer than `LEAST` rows.
    """
    clock, methods = clock or Clock(), chosen(methods)
    check(trained, methods, exported=runtime is not None)
    parts = list(marked(trained, paths, batch, clock, lenient, strict))
    used = sum(item.x is not None for items in parts for item in items)
    if used < LEAST:
        raise UnseenError(
            f"--adapt estimates from the rows themselves, and {used} can be predicted: fewer than "
            f"{LEAST} say too little of their site.",
            remedy="Leave out --adapt, or gather more rows of the site.",
        )
    with clock.phase("adapting"):
        if "inputs" in methods and isinstance(trained.inputs, Table):
            rows = [i.numbers for items in parts for i in items if i.x is not None]
            own = adapt.normalised(trained.inputs, torch.tensor(rows, dtype=torch.float64))
            x = iter(own.encode(rows))
            parts = [[replace(i, x=next(x)) if i.x is not None else i for i in p] for p in parts]
        batches = [x for x in map(stacked, parts) if x is not None]

    def passed(x: Tensor) -> Tensor:
        return trained.method.predict(trained.model, trained.inbox, x.to(trained.model.device))

    before = trained.model.buffers.clone()
    try:
        if "batchnorm" in methods:
            with clock.phase("adapting"):
                trained.model.module.eval()
                adapt.renormalise(trained.model.module, passed, batches)
        with clock.phase("model"):
            outputs = torch.cat([(runtime or trained).outputs(x) for x in batches])
    finally:
        trained.model.buffers.copy_(before)
    shift, notes = None, list(remarks(trained.spec, methods))
    if "prior" in methods:
        with clock.phase("adapting"):
            outputs, shift, said = _reweighed(trained, outputs)
            notes += said
    if far := sum(bool(i.unusual) and i.x is not None for items in parts for i in items):
        notes.append(f"{far} of the {used} that were adapted to are far from training; with "
                     "--strict they are left out")  # fmt: skip
    first = (
        f"transductive predictions, by {', '.join(methods)}: adapted to all {used} inputs together "
        "as those of one new site; not to be compared with predictions that saw none of them"
    )
    with clock.phase("answers"):
        lines = tuple(answers(trained.classes, chain(*parts), outputs))
    return Adapted(methods, lines, (first, *notes), shift)


def _reweighed(trained: Trained, outputs: Tensor) -> tuple[Tensor, Shift, list[str]]:
    """Return the logarithms of probabilities under the new site's shares of classes, and notes."""
    assert trained.classes is not None
    notes = []
    shares = (trained.spec.get(KEY) or {}).get("class shares")
    if shares is None:
        shares = [1 / len(trained.classes)] * len(trained.classes)
        notes.append(
            "prior: this model's directory does not say how frequent the classes were in "
            "training; they are taken as equally frequent"
        )
    before = torch.tensor(shares, dtype=torch.float64)
    finite = outputs.isfinite().all(dim=-1)
    if not bool(finite.any()):
        raise UnseenError("no output of the model is finite.", remedy="Train the model again.")
    p = probabilities(outputs[finite].double())
    shift = adapt.reestimated(p, before)
    adapted = torch.full((len(outputs), len(shares)), float("nan"), dtype=torch.float64)
    adapted[finite] = adapt.posterior(p, before, shift.after).clamp(min=TINY).log()
    pairs = zip(trained.classes, before.tolist(), shift.after.tolist(), strict=True)
    moves = ", ".join(f"{name} {100 * old:.1f} -> {100 * new:.1f}" for name, old, new in pairs)
    notes.append(f"prior: shares of classes in percent, training -> these inputs: {moves}")
    if not shift.converged:
        notes.append(f"prior: still moving after {len(shift.likelihood) - 1} steps")
    return adapted, shift, notes
