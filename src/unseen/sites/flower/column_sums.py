"""The sums over columns by which tables are standardised: asked for, and as a site is sent them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from unseen.core import play, start
from unseen.core.atomic import write_atomically
from unseen.data.dataset import DataSet, Totals
from unseen.engine.messages import Value
from unseen.sites.flower.site_backend import Sites
from unseen.sites.flower.terms import Refused
from unseen.studies.execution.column_statistics import statistics
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec


def column_sums(
    sites: Sites, totals: Totals, task: Task, robust: bool
) -> tuple[Tensor, Mapping[str, str]]:
    """Return the sources' sums over their training rows, and whose are left out, with the reason.

    They come from the sites or from an earlier start.
    """
    path, reasons = sites.folder / "statistics.json", sites.folder / "statistics.without.json"
    if path.exists():
        without = json.loads(reasons.read_text()) if reasons.exists() else {}
        return torch.tensor(json.loads(path.read_text()), dtype=torch.float64), without
    method, roster = statistics(totals, robust), sorted(task.sources)
    first = start(method, sites.model, roster, seed=0)
    backend = replace(sites, kind="statistics")
    state, (outcome,) = play(method, first, backend, roster, 1, on_bad_reply="drop")
    sums, without = state.inbox["statistics"], dict(outcome.dropped)
    if without:
        write_atomically(reasons, json.dumps(without).encode())
    write_atomically(path, json.dumps(sums.tolist()).encode())
    return sums, without


def sums_received(study: StudySpec, data: DataSet, sums: Value | None) -> Tensor | None:
    """Return the sums that came with a message, by which this site standardises its columns."""
    totals = totals_of(data, study)
    if totals is None or not isinstance(sums, Tensor):
        return sums if isinstance(sums, Tensor) else None
    if why := totals.impossible(sums) if study.privacy.columns is None else None:
        raise Refused(f"was sent {why}.")
    if study.privacy.columns is not None:
        expected = totals.of_ranges(study.privacy.columns)
        if sums.shape != expected.shape or not torch.equal(sums.double(), expected):
            raise Refused("was sent other sums than the public ranges of the study give.")
    return sums
