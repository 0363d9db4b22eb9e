"""How good a model is on data with labels: metrics per domain, with intervals."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen.core.metrics import METRICS, accuracy, check_metric
from unseen.core.templates import render
from unseen.core.turn import keyed
from unseen.core.weighted_metrics import WEIGHTED, bootstrap, interval
from unseen.results.formats import comma_separated, decimals, markdown, plain
from unseen.serving.directory import Trained
from unseen.serving.labelled import LabelledData, Request, check_domains
from unseen.serving.new_rows import Item
from unseen.serving.predict import Runtime

#: Bootstrap samples.
RESAMPLES = 1000


class Measured(NamedTuple):
    """A metric of one site.

    Attributes:
        value: The value; None where it is undefined.
        low: The lower end of its interval; None where there is none.
        high: The upper end.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, percent: bool = False) -> str:
        """Return the value with its interval, as tables print them.

        Example:
            >>> Measured(0.8125, 0.75, 0.875).text(percent=True)
            '81.2 [75.0, 87.5]'
        """
        if self.value is None:
            return "undefined"
        scale, digits = (100, 1) if percent else (1, decimals("loss", abs(self.value)))
        text = f"{self.value * scale:.{digits}f}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{self.low * scale:.{digits}f}, {self.high * scale:.{digits}f}]"


def cells(metrics: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return each metric of a site as text, from its value and the ends of its interval."""
    return [Measured(*parts).text("accuracy" in name) for name, parts in metrics.items()]


def measured(outputs: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, Measured]:
    """Return each metric with its 95% percentile interval over 1000 resamples of the examples.

    Args:
        outputs: The model's outputs [N, C].
        y: The labels [N].
        metrics: Names in `METRICS`.

    Note:
        The draws are keyed, so the same outputs give the same interval. It is about further
        examples of the same site, and says nothing about another one. Samples in which a metric is
        undefined are left out; with fewer than two examples there is no interval.
    """
    weighted = {name: WEIGHTED[name](outputs, y) for name in metrics if name in WEIGHTED}
    draws = RESAMPLES if len(y) > 1 else 0
    samples = bootstrap(weighted, len(y), draws, keyed("bootstrap/examples"))
    values = {name: METRICS[name](outputs, y) for name in metrics}
    ends = {name: interval(x) for name, x in samples.items() if values[name] is not None}
    return {name: Measured(value, *(ends.get(name) or ())) for name, value in values.items()}


@dataclass(frozen=True)
class Site:
    """A domain's result.

    Attributes:
        name: The domain.
        role: What it was in training.
        examples: How many examples were measured.
        metrics: Metric -> its value with an interval.
    """

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

    def text(self, form: str) -> str:
        if form == "json":
            return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        names = list(self.sites[0].metrics) if self.sites else []
        head = ["domain", "in training", "examples"]
        if form == "csv":
            ends = (f"{name}{end}" for name in names for end in ("", " low", " high"))
            rows = ([s.name, s.role, s.examples, *chain(*s.metrics.values())] for s in self.sites)
            return comma_separated([[*head, *ends], *rows])
        body = ([s.name, s.role, str(s.examples), *cells(s.metrics)] for s in self.sites)
        grid = [[(text, "") for text in row] for row in ([*head, *names], *body)]
        if form == "markdown":
            return markdown("", [grid], self.notes)
        return plain("", [grid], self.notes) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "domains": [
                {"domain": s.name, "in training": s.role, "examples": s.examples, **s.metrics}
                for s in self.sites
            ],
            "faults": [str(fault) for fault in self.faults],
            "notes": list(self.notes),
        }


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
    parts: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    difference = 0.0
    data = LabelledData(trained, request)
    for batch in data.batches():
        outputs = (runtime or trained).outputs(batch.x)
        if runtime is not None:
            difference = max(difference, float((outputs - trained.outputs(batch.x)).abs().max()))
        parts[batch.domain].append((outputs, batch.y))
    check_domains(request.domains, {**parts, **data.domains})
    # A domain of which no example could be used has no part.
    used = {n: list(zip(*parts[n], strict=True)) for n in request.domains or parts if n in parts}
    answers = {name: (torch.cat(outputs), torch.cat(y)) for name, (outputs, y) in used.items()}
    sites = tuple(
        Site(name, role(trained, name), len(y), measured(outputs, y, names))
        for name, (outputs, y) in answers.items()
    )
    notes = render(
        "unseen.serving", "evaluation.jinja",
        spec=trained.spec, metrics=" ".join(names), roles=[site.role for site in sites],
        lines=data.lines(), below=beaten(trained, names, answers), runtime=runtime,
        difference=difference,
    )  # fmt: skip
    return Evaluation(sites, tuple(data.faults), tuple(notes.splitlines()))


def beaten(
    trained: Trained, metrics: Sequence[str], answers: Mapping[str, tuple[Tensor, Tensor]]
) -> str:
    """Return the domains at which a constant answer is better, as a line; "" for none.

    Args:
        trained: The model.
        metrics: Names of the metrics that are shown.
        answers: Domain -> outputs [N, C] and labels [N].

    Note:
        The constant is the mean of the training labels, judged by rmse. A model of classes does not
        say how frequent they were in training: the constant is then the most frequent class of the
        domain's own examples, judged by accuracy, where it is not the only one.
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
