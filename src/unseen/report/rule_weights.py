"""Aggregation weights over rounds (CSAC, Figure 5; GA)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from unseen.report.curves import averaged, domains, present, trained
from unseen.report.figures import Figure, Lines, Section, on_one_scale
from unseen.report.study_report import Run, StudyReport

#: Weights that move less than this are constant.
MOVES = 1e-9
#: (block of the model, client) -> round -> weight; the block is 0 for the whole model.
Weights = dict[tuple[int, str], dict[int, float]]


def section(part: StudyReport) -> Section:
    """Return the chapter on weights, without methods whose weights are constant."""
    figures = [figure for method in part.methods for figure in of_method(part, method)]
    return Section("weights", on_one_scale(figures))


def of_method(part: StudyReport, method: str) -> Iterator[Figure]:
    """Yield a panel per target, and per block where a rule weighs blocks of the model apart."""
    colours, panels = domains(part), []
    for task in part.tasks:
        of_runs = [model_weights(run) for run in part.of(method, task)]
        if not any(map(moves, of_runs)):
            continue
        clients = dict.fromkeys(key for weights in of_runs for key in weights)
        for block in sorted({block for block, _ in clients}):
            lines = present(
                averaged([one.get(key, {}) for one in of_runs], key[1], colours.get(key[1], 7))
                for key in clients
                if key[0] == block
            )
            title = f"{task}, block {block}" if block else task
            panels.append(Lines(title, "round", "weight", lines))
    if panels:
        caption = "one line per client"
        if "block" in panels[0].title:
            caption += ", a panel per block of parameters, in the order of the net"
        title = f"{method}: aggregation weights"
        yield Figure(f"weights-{method}", title, caption, tuple(panels), fold=method)


def model_weights(run: Run) -> Weights:
    """Return the weights of the model's slot in the rounds of training."""
    weights: Weights = defaultdict(dict)
    for record in trained(run):
        rows = record.get("weights", {}).get("model") or []
        blocks = enumerate(rows, 1) if rows and isinstance(rows[0], list) else [(0, rows)]
        for block, row in blocks:
            for client, value in zip(record["clients"], row, strict=False):
                weights[block, client][record["round"]] = float(value)
    return weights


def moves(weights: Weights) -> bool:
    """Return whether any weight changes over the rounds."""
    return any(max(c.values()) - min(c.values()) > MOVES for c in weights.values())
