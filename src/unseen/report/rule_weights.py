"""Aggregation weights over rounds (CSAC, Figure 5; GA)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from unseen.report.figures import Figure, Line, Lines, Section, on_one_scale
from unseen.report.series import averaged, domains, present, trained
from unseen.report.study_report import Run, StudyReport

#: Weights that move less than this are constant.
MOVES = 1e-9
#: (block of the model, client) -> round -> weight; the block is None for the whole model.
Weights = dict[tuple[int | None, str], dict[int, float]]


def section(part: StudyReport) -> Section:
    """Return the chapter on weights, without methods whose weights are constant."""
    text = (
        "The weight with which each client's update entered the model, mean over seeds; weights "
        "of rules that mix updates need not sum to 1. Methods with constant weights, or with none, "
        "are not drawn."
    )
    figures = on_one_scale([f for method in part.methods for f in of_method(part, method)])
    return Section("weights", "Aggregation weights", text, figures)


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a panel per target, and per block where a rule weighs blocks of the model apart."""
    panels: list[Lines] = []
    for task in part.tasks:
        of_runs = [model_weights(run) for run in part.of.get((method, task), ())]
        if not any(map(moves, of_runs)):
            continue
        numbers = sorted({b for one in of_runs for b, _ in one if b is not None})
        blocks: list[int | None] = [*numbers] or [None]
        for block in blocks:
            title = task if block is None else f"{task}, block {block + 1}"
            lines = _lines(part, of_runs, block)
            panels.append(Lines(title, "round", "weight", lines))
    if panels:
        yield Figure(
            f"weights-{method}",
            f"{method}: aggregation weights",
            "one line per client" + ("" if "block" not in panels[0].title else ", a panel per "
            "block of parameters, in the order of the net"),
            tuple(panels),
            fold=method,
        )  # fmt: skip


def model_weights(run: Run) -> Weights:
    """Return the weights of the model's slot in the rounds of training."""
    weights: Weights = defaultdict(dict)
    for record in trained(run):
        rows = record.get("weights", {}).get("model")
        if not rows:
            continue
        per_block = enumerate(rows) if isinstance(rows[0], list) else [(None, rows)]
        for block, row in per_block:
            for client, value in zip(record["clients"], row, strict=False):
                weights[block, client][record["round"]] = float(value)
    return dict(weights)


def moves(weights: Weights) -> bool:
    """Return whether any weight changes over the rounds."""
    return any(max(c.values()) - min(c.values()) > MOVES for c in weights.values())


def _lines(part: StudyReport, of_runs: list[Weights], block: int | None) -> tuple[Line, ...]:
    colours = domains(part)
    clients = dict.fromkeys(client for one in of_runs for b, client in one if b == block)
    return present(
        averaged([one.get((block, client), {}) for one in of_runs], client, colours.get(client, 7))
        for client in clients
    )
