"""What left the clients: the chapter on the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.report.figures import Grid, Section
from unseen.report.study_report import StudyReport
from unseen.results.records import LEDGER, read_lines


def sections(part: StudyReport) -> tuple[Section, Section]:
    """Return what left the clients by method and exchange, in which form, and what was promised."""
    from unseen.privacy.ledger import summary

    sizes: dict[tuple[str, str, str, str], list[float]] = {}
    promises: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in part.runs:
        ledger = summary(read_lines(run.raw.folder / LEDGER))
        for exchange, slot, form, size, _ in ledger.rows:
            sizes.setdefault((run.method, exchange, slot, form), []).append(size)
        for promise in ledger.guarantees:
            promises.setdefault((run.method, promise["protects"]), []).append(promise)
    moved = (_moved(sizes),) if sizes else ()
    promised = (_promised(promises),) if promises else ()
    return (
        Section("ledger", "What left the clients", "", (), moved),
        Section("guarantees", "Differential privacy", "", (), promised),
    )


def _moved(sizes: Mapping[tuple[str, str, str, str], list[float]]) -> Grid:
    rows = tuple((*key, sum(counts) / len(counts)) for key, counts in sizes.items())
    note = (
        "Bytes of one client's reply, the mean over clients, rounds, targets and seeds, without "
        "the envelope of a message. Plain: whoever receives the reply can read it. Evaluations "
        "send metrics of validation splits, from targets too."
    )
    header = ("method", "exchange", "what", "form", "bytes per reply")
    return Grid("Replies by kind", header, rows, (0, 0, 0, 0, 0), (note,))


def _promised(promises: Mapping[tuple[str, str], list[Mapping[str, Any]]]) -> Grid:
    rows = []
    for (method, protects), of_runs in promises.items():
        worst = [_worst(of_runs, kind) for kind in ("prv", "rdp")]
        rows.append((method, protects, *worst, max(float(p["delta"]) for p in of_runs)))
    note = (
        "Of one run. Several runs on the same data, such as seeds and "
        "methods that are compared, add up. Example: one training example added or removed; "
        "client: all of its data replaced. None: no noise, or noise from a known seed."
    )
    header = ("method", "protects", "ε (PRV)", "ε (RDP)", "δ")
    return Grid("The largest ε of any client", header, tuple(rows), (0, 0, 2, 2, 7), (note,))


def _worst(promises: list[Mapping[str, Any]], kind: str) -> float | str:
    values = [p[kind] for p in promises]
    return "none" if None in values else float(max(values))
