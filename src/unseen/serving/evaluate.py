"""How good a model is on data with labels: metrics per domain, with intervals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.core.metrics import accuracy, check_metric
from unseen.results.formats import markdown, plain
from unseen.serving.directory import Trained
from unseen.serving.intervals import Measured, measured
from unseen.serving.labelled import LabelledData, Request, check_domains
from unseen.serving.new_rows import Item
from unseen.serving.predict import Runtime


@dataclass(frozen=True)
class Site:
    """A domain's result. role: what it was in training."""

    name: str
    role: str
    examples: int
    metrics: Mapping[str, Measured]


@dataclass(frozen=True)
class Evaluation:
    """All domains, and what could not be used."""

    sites: tuple[Site, ...]
    faults: tuple[Item, ...]
    notes: tuple[str, ...]

    def rows(self) -> list[list[tuple[str, str]]]:
        """Return a header and a row per domain, as `unseen.results.formats` prints them."""
        metrics = list(self.sites[0].metrics) if self.sites else []
        head = ["domain", "in training", "examples", *metrics]
        body = [
            [s.name, s.role, str(s.examples)]
            + [s.metrics[m].text("accuracy" in m) for m in metrics]
            for s in self.sites
        ]
        return [[(text, "") for text in row] for row in (head, *body)]

    def text(self, form: str) -> str:
        """Return the evaluation as text, Markdown, csv or JSON."""
        if form == "json":
            return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        if form == "csv":
            return self._csv()
        if form == "markdown":
            return markdown("", [self.rows()], self.notes)
        return plain("", [self.rows()], self.notes) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as plain data, unrounded."""
        return {
            "domains": [
                {
                    "domain": s.name, "in training": s.role, "examples": s.examples,
                    **{m: [v.value, v.low, v.high] for m, v in s.metrics.items()},
                }
                for s in self.sites
            ],
            "faults": [str(fault) for fault in self.faults],
            "notes": list(self.notes),
        }  # fmt: skip

    def _csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        metrics = list(self.sites[0].metrics) if self.sites else []
        ends = [f"{m}{end}" for m in metrics for end in ("", " low", " high")]
        writer.writerow(["domain", "in training", "examples", *ends])
        for s in self.sites:
            values = [v for m in metrics for v in _ends(s.metrics[m])]
            writer.writerow([s.name, s.role, s.examples, *values])
        return file.getvalue()


def _ends(metric: Measured) -> list[float | str]:
    return ["" if v is None else v for v in (metric.value, metric.low, metric.high)]


def evaluate(trained: Trained, request: Request, runtime: Runtime | None = None) -> Evaluation:
    """Measure every domain, with 95% bootstrap intervals over its examples.

    Args:
        trained: The model.
        request: The data and the metrics.
        runtime: Computes the outputs instead of the model; a note then gives the largest difference
            between the two.
    """
    classes = trained.classes
    names = request.metrics or tuple(trained.spec["metrics"])
    for name in names:
        check_metric(name, len(classes) if classes is not None else None)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    difference = 0.0
    data = LabelledData(trained, request)
    for batch in data.batches():
        outputs = (runtime or trained).outputs(batch.x)
        if runtime is not None:
            difference = max(difference, float((outputs - trained.outputs(batch.x)).abs().max()))
        parts.setdefault(batch.domain, []).append((outputs, batch.y))
    check_domains(request.domains, {**parts, **data.domains})
    # A domain that was met and of which no example could be used has no part.
    answers = {
        name: (torch.cat([z for z, _ in parts[name]]), torch.cat([y for _, y in parts[name]]))
        for name in request.domains or parts
        if name in parts
    }
    sites = tuple(
        Site(name, role(trained, name), len(y), measured(outputs, y, names))
        for name, (outputs, y) in answers.items()
    )
    notes = [f"model {trained.name}, fingerprint {trained.spec['fingerprint']}"]
    if any("accuracy" in name for name in names):
        notes.append("accuracies in percent")
    notes.append("[...]: 95% bootstrap interval over the domain's examples, not over domains")
    if any(site.role == "trained on" for site in sites):
        notes.append("a domain that was trained on flatters the model: these are all its examples")
    notes += data.lines()
    if below := beaten(trained, names, answers):
        notes.append(below)
    if runtime is not None:
        notes.append(
            f"outputs by {runtime}; largest difference from the model's own: {difference:.1e}"
        )
    return Evaluation(sites, tuple(data.faults), tuple(notes))


def beaten(
    trained: Trained, metrics: Sequence[str], answers: Mapping[str, tuple[Tensor, Tensor]]
) -> str:
    """Return the domains at which a constant answer is better, as a line; "" for none.

    The constant is the mean of the training labels, judged by rmse. A model of classes does not say
    how frequent they were in training: the constant is then the most frequent class of the domain's
    own examples, judged by accuracy, where it is not the only one.

    Args:
        trained: The model.
        metrics: Names of the metrics that are shown.
        answers: Domain -> outputs [N, C] and labels [N].
    """
    classes, scale, below = trained.classes, trained.scale, []
    for name, (outputs, y) in answers.items():
        if classes is None and scale is not None:
            errors = (outputs.double().squeeze(-1) - y.double(), scale.mean - y.double())
            ours, theirs = (float(e.square().mean().sqrt()) for e in errors)
            if ours > theirs:
                what = f"{scale.mean:.6g}, the mean of training's labels"
                below.append(f"{name} (rmse {ours:.4g}; always {what}: {theirs:.4g})")
        elif classes is not None and "accuracy" in metrics and bool((y != y[0]).any()):
            counts = torch.bincount(y, minlength=len(classes))
            best = int(counts.argmax())
            ours, theirs = accuracy(outputs.double(), y), int(counts[best]) / len(y)
            if ours < theirs:
                what = f"{classes[best]!r}, its most frequent class"
                below.append(f"{name} ({100 * ours:.1f}; always {what}: {100 * theirs:.1f})")
    by = "" if classes is None else " in accuracy"
    return f"worse than a constant{by}: {'; '.join(below)}" if below else ""


def role(trained: Trained, name: str) -> str:
    """Return what a domain of this name was in training."""
    task = trained.spec["sites"]
    if name in task["sources"]:
        return "trained on"
    return "held out" if name in (*task["targets"], *task["validation"]) else "not there"
