"""How good a model is on data with labels: metrics per domain, with intervals."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain

import torch
from torch import Tensor

from unseen.core.labels import are_masks
from unseen.core.metrics.class_metrics import looked_for
from unseen.core.metrics.evaluation import accuracy, check_metric, fitting
from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.evaluation.breakdown import (
    Answers,
    Breakdown,
    answered_table,
    by_area,
    by_class,
    by_group,
    confusion_table,
    coverage_by_class,
    held_by,
    sites_table,
    to_json,
)
from unseen.serving.evaluation.importance import importance
from unseen.serving.evaluation.measures import Measured, cells, codes, measured
from unseen.serving.policy import Policy, policy_of
from unseen.serving.predict import Runtime
from unseen.serving.reading.labelled import LabelledData, Request, check_domains
from unseen.serving.reading.new_rows import Item
from unseen.studies.results.formats import comma_separated, markdown, plain


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
    """All domains, and what could not be used.

    Attributes:
        sites: The domains.
        faults: What could not be used.
        notes: What must be said with it.
        answers: The domains' answers.
        policy: How outputs became answers.
        tables: What was asked for beside the metrics of each domain.
    """

    sites: tuple[Site, ...]
    faults: tuple[Item, ...]
    notes: tuple[str, ...]
    answers: Mapping[str, Answers]
    policy: Policy
    tables: tuple[Breakdown, ...] = ()

    @property
    def grid(self) -> list[list[str]]:
        names = list(self.sites[0].metrics) if self.sites else []
        head = ["site", "in training", "examples", *names]
        return [head, *([s.name, s.role, str(s.examples), *cells(s.metrics)] for s in self.sites)]

    def __repr__(self) -> str:
        return plain("", [_unmarked(self.grid)], self._unused)

    def _repr_html_(self) -> str:
        """Return what `unseen evaluate` prints, as a notebook shows it."""
        return f"<pre>{escape(self.text('text') + ''.join(self._unused))}</pre>"

    @property
    def _unused(self) -> list[str]:
        if not self.faults:
            return []
        return [f"not used: {len(self.faults)}, which .faults names; the first: {self.faults[0]}"]

    def text(self, form: str) -> str:
        if form == "json":
            return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        if form == "csv":
            names = list(self.sites[0].metrics) if self.sites else []
            ends = (f"{name}{end}" for name in names for end in ("", " low", " high"))
            rows = ([s.name, s.role, s.examples, *chain(*s.metrics.values())] for s in self.sites)
            return comma_separated([["domain", "in training", "examples", *ends], *rows])
        grids = [self.grid, *([list(t.header), *map(list, t.rows)] for t in self.tables)]
        notes = [*self.notes, *(f"{t.title}: {t.note}" for t in self.tables if t.note)]
        plains = [_unmarked(grid) for grid in grids]
        if form == "markdown":
            return markdown("", plains, notes)
        return plain("", plains, notes) + "\n"

    def to_json(self) -> Record:
        return {
            "domains": [
                {"domain": s.name, "in training": s.role, "examples": s.examples, **s.metrics}
                for s in self.sites
            ],
            "tables": [to_json(table) for table in self.tables],
            "faults": [str(fault) for fault in self.faults],
            "notes": list(self.notes),
        }


def _unmarked(grid: Sequence[Sequence[str]]) -> list[list[tuple[str, str]]]:
    return [[(text, "") for text in row] for row in grid]


def evaluate(
    trained: Trained,
    request: Request,
    runtime: Runtime | None = None,
    policy: Policy | None = None,
    detail: bool = False,
    importances: int = 0,
) -> Evaluation:
    """Measure every domain, with 95 % intervals over its examples.

    Args:
        trained: The model.
        request: The data and the metrics; "all" as a metric stands for all that fit.
        runtime: Computes the outputs instead of the model; a note then gives the largest difference
            between the two.
        policy: How outputs become answers; None for the likeliest class.
        detail: Whether to add the mean over sites, the worst site, classes and confusions.
        importances: How often the values of each column are exchanged, to see what the answers
            rest on; 0 for not at all.
    """
    if importances and trained.masks:
        raise UnseenError("importance is for tables; this model predicts masks.")
    classes, policy = trained.classes, policy or policy_of(trained)
    names = request.metrics or tuple(trained.spec["metrics"])
    C = len(classes) if classes is not None else None
    T = trained.times.outputs if trained.times is not None else 0
    names = fitting(C, trained.masks, T) if names == ("all",) else names
    for name in names:
        check_metric(name, C, trained.masks, T)
    parts: dict[str, list[Answers]] = defaultdict(list)
    inputs: dict[str, list[Tensor]] = defaultdict(list)
    difference = 0.0
    data = LabelledData(trained, request)
    for batch in data.batches():
        outputs = (runtime or trained).outputs(batch.x)
        if runtime is not None:
            difference = max(difference, float((outputs - trained.outputs(batch.x)).abs().max()))
        if importances:
            inputs[batch.domain].append(batch.x)
        parts[batch.domain].append(Answers(outputs, batch.y, batch.groups, batch.units))
    if parts or data.domains or not data.faults:  # else nothing says which domains there are
        check_domains(request.domains, {**parts, **data.domains})
    # A domain of which no example could be used has no part.
    answers = {n: _joined(parts[n]) for n in request.domains or parts if n in parts}
    sites = tuple(
        Site(
            name,
            role(trained, name),
            len(a.y),
            measured(a.outputs, a.y, names, policy, codes(a.units)),
        )
        for name, a in answers.items()
    )
    notes = render(
        "unseen.serving",
        "evaluation.jinja",
        spec=trained.spec,
        about=looked_for(names, classes),
        metrics=" ".join(names),
        roles=[site.role for site in sites],
        lines=[*data.lines(), *policy.notes(raw=False)],
        below=beaten(trained, names, answers, policy),
        runtime=runtime,
        difference=difference,
    )
    tables = tuple(_tables(sites, answers, names, request.groups, policy, detail)) if sites else ()
    if importances and sites:
        rows = {name: (torch.cat(inputs[name]), own.y) for name, own in answers.items()}
        main = request.metrics[0] if request.metrics else str(trained.spec["metric"])
        main = main if main in names else names[0]
        compute = (runtime or trained).outputs
        more = importance(compute, trained.inputs, rows, main, policy, importances)
        tables = (*tables, more)
    return Evaluation(sites, tuple(data.faults), tuple(notes.splitlines()), answers, policy, tables)


def _joined(parts: Sequence[Answers]) -> Answers:
    groups = {c: tuple(chain(*(p.groups[c] for p in parts))) for c in parts[0].groups}
    units = tuple(chain(*(p.units for p in parts)))
    outputs, y = torch.cat([p.outputs for p in parts]), torch.cat([p.y for p in parts])
    return Answers(outputs, y, groups, units)


def _tables(
    sites: Sequence[Site],
    answers: Mapping[str, Answers],
    metrics: Sequence[str],
    groups: Sequence[str],
    policy: Policy,
    detail: bool,
) -> Iterator[Breakdown]:
    if detail and len(sites) > 1:
        yield sites_table({site.name: site.metrics for site in sites})
    if detail and any(are_masks(a.y) for a in answers.values()):
        yield by_area(answers, policy.classes or ())
    elif detail and policy.classes is not None:
        yield by_class(answers, policy.classes, policy)
        yield confusion_table(answers, policy.classes, policy)
    for column in groups:
        yield by_group(answers, column, metrics, policy)[0]
    if policy.coverage is not None:
        yield held_by(answers, policy)
        if policy.classes is not None:
            yield coverage_by_class(answers, policy.classes, policy)
    if policy.least is not None:
        yield answered_table(answers, policy)


def beaten(
    trained: Trained, metrics: Sequence[str], answers: Mapping[str, Answers], policy: Policy
) -> str:
    """Return the domains at which a constant answer is better, as a line; "" for none.

    Note:
        The constant is the mean of the training labels, judged by rmse. A model of classes does not
        say how frequent they were in training: the constant is then the most frequent class of the
        domain's own examples, judged by accuracy, where it is not the only one.
    """
    classes, scale, below = trained.classes, trained.scale, []
    for name, own in answers.items():
        outputs, y = own.outputs, own.y
        if classes is None and scale is not None:
            errors = (outputs.double().squeeze(-1) - y.double(), scale.mean - y.double())
            ours, theirs = (float(e.square().mean().sqrt()) for e in errors)
            if ours > theirs:
                what = f"{scale.mean:.6g}, the mean of training's labels"
                below.append(f"{name} (rmse {ours:.4g}; always {what}: {theirs:.4g})")
        elif (
            classes is not None
            and not trained.masks
            and "accuracy" in metrics
            and bool((y != y[0]).any())
        ):
            counts = torch.bincount(y, minlength=len(classes))
            best = int(counts.argmax())
            ours = accuracy(policy.decided(outputs.double()), y) or 0.0
            theirs = int(counts[best]) / len(y)
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
