"""Predictions that use all rows of a new site without labels, and what training keeps for them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.core.outputs import probabilities
from unseen.core.templates import render
from unseen.errors import UnseenError, choice
from unseen.results.formats import counted
from unseen.results.records import Job
from unseen.serving import adapt
from unseen.serving.adapt import TINY, Shift
from unseen.serving.class_shares import class_shares
from unseen.serving.directory import Trained
from unseen.serving.policy import Policy, policy_of
from unseen.serving.predict import Line, answers, marked
from unseen.serving.predict import Runtime as Served
from unseen.serving.reading.inputs import TableInputs
from unseen.serving.reading.new_rows import Clock, stacked
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, split_rows
from unseen.study.runtime import Runtime, composed

#: Fewer sites than this say nothing of how their means go together.
FEWEST = 4
#: The chance of as close a relation between means that have none, below which there is a warning.
LEVEL = 0.05
#: Means that differ by less than this share of the largest are equal but for rounding.
FLAT = 1e-12
#: What `model.json` calls it all.
KEY = "adaptation"


@dataclass(frozen=True)
class Link:
    """How a column's mean and the label's mean go together over sites.

    Attributes:
        r: Their correlation; over classes the one that is furthest from 0.
        p: The chance of one as far from 0 without any relation.
        sites: Over how many sites.
    """

    r: float
    p: float
    sites: int


def link(means: Tensor, labels: Tensor) -> Link | None:
    """Return how one column's means at the sites and those of the label go together.

        r = Σ_k (m_k − m̄)(y_k − ȳ) / √(Σ_k (m_k − m̄)² Σ_k (y_k − ȳ)²)

    m_k: the column's mean at site k; y_k: the share of a class there, or the mean label; m̄ and ȳ:
    the plain means over sites. All sites weigh the same, however many rows they have: the question
    is what another site's mean would say, so that a site is one draw. p is two-sided by Student's
    t = r √((K − 2) / (1 − r²)) with K − 2 degrees of freedom; with more than two classes it is that
    of the largest |r|, times their number. There is no correction for the number of columns: to
    miss a relation costs more than a needless warning.

    Args:
        means: The column's means [K], NaN where a site knows no cell.
        labels: Shares of classes [K, C], or mean labels [K, 1].

    Returns:
        None where fewer than `FEWEST` sites know the column, or where either side is the same at
        all sites.
    """
    from scipy import stats

    present = ~means.isnan()
    sites = int(present.sum())
    if sites < FEWEST:
        return None
    if labels.shape[1] == 2:
        labels = labels[:, 1:]  # the shares of the other class are one less these
    (x, varies), (y, differ) = _standardised(means[present, None]), _standardised(labels[present])
    if not bool(varies.any() and differ.any()):
        return None
    each = (x * y).sum(0)
    r = max(-1.0, min(1.0, float(each[each.abs().argmax()])))
    t = abs(r) * math.sqrt((sites - 2) / max(1 - r * r, TINY))
    p = min(1.0, 2 * float(stats.t.sf(t, sites - 2)) * y.shape[1])
    return Link(r, p, sites)


def _standardised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return columns [K, M] less their means and of length 1, 0 where equal; and which are not."""
    values = values.double()
    apart = values - values.mean(0)
    length = apart.square().sum(0).sqrt()
    varies = length > FLAT * values.abs().amax(0)
    return torch.where(varies, apart / length.clamp(min=TINY), 0), varies


def site_facts(planned: Plan, prepared: Prepared, job: Job) -> dict[str, Any]:
    """Return what `model.json` keeps of the training sites for `predict --adapt`.

    The shares of classes are those of `class_shares`.

    Args:
        planned: The study.
        prepared: Its clients.
        job: Its job.
    """
    setting, data = planned.setting, planned.data
    study, facts = setting.study, dict[str, Any]()
    if prepared.masks:
        return facts
    if prepared.classes is not None:
        method = composed(job.method, study, data)
        if method.sized is not None:  # what counts alike may depend on data and network
            own = Runtime.of(
                setting, data, prepared, job.method, job.seed, evaluates=False, device="cpu"
            )
            method = own.method
        balanced = study.training.balanced
        shares = class_shares(method, prepared.sources, prepared.classes, balanced)
        facts["class shares"] = shares.tolist()
    if data.schema is not None and not prepared.times:
        means, shares_at = [], []
        for name in prepared.sources:
            rows = split_rows(data[name], study, job.seed)[0]
            y = data[name].y[rows]
            if prepared.classes is None:
                shares_at.append(y.double().mean().view(1))
            else:
                shares_at.append(torch.bincount(y, minlength=prepared.classes).double() / len(y))
            means.append(data[name].x[rows][:, data.schema.numeric].double().nanmean(0))
        table, at = torch.stack(means), torch.stack(shares_at)
        links = {data.schema.columns[j]: link(table[:, k], at)
                 for k, j in enumerate(data.schema.numeric)}  # fmt: skip
        columns = {name: asdict(x) for name, x in links.items() if x}
        facts["site means"] = {"sites": len(means), "columns": columns}
    return facts


def notes(
    spec: Mapping[str, Any], methods: Sequence[str], used: int, far: int, shift: Shift | None
) -> tuple[str, ...]:
    """Return what must be said with adapted predictions.

    Args:
        spec: The content of `model.json`.
        methods: The methods of adaptation that were asked for.
        used: How many inputs were adapted to.
        far: How many of these are far from training.
        shift: The re-estimated shares of classes.
    """
    return tuple(render(
        "unseen.serving", "adapted.jinja",
        facts=spec.get(KEY) or {}, classes=spec.get("classes"), methods=methods, used=used, far=far,
        shift=shift, fewest=FEWEST, level=LEVEL, counted=counted,
    ).splitlines())  # fmt: skip


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


def adaptations(names: Sequence[str]) -> tuple[str, ...]:
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
        methods: As `adaptations` returns them.
        site: The training site whose BatchNorm statistics were asked for.
        exported: Whether an export answers.
    """
    table, numbers = isinstance(trained.inputs, TableInputs), trained.classes is None
    if methods and trained.masks:
        raise UnseenError("--adapt is not for masks.", remedy="Leave it out.")
    if "prior" in methods and numbers:
        what = "a number" if trained.times is None else "times"
        other = "inputs adapts" if table else "batchnorm adapts"
        raise UnseenError(
            f"--adapt prior re-estimates the shares of classes; this model predicts {what}.",
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
        where = " that is not frozen" if trained.trunk is not None else ""
        why = f"replaces statistics of BatchNorm layers; {trained.spec['model']} has none{where}."
        remedy = f"Leave out batchnorm{'; inputs does the like for columns' if table else ''}."
    elif exported:
        why = "changes the network; an export cannot be changed."
        remedy = "Leave out --runtime onnx."
    elif site is not None:
        why, remedy = "replaces the statistics that --as-site takes.", "Leave out one of the two."
    if why:
        raise UnseenError(f"--adapt batchnorm {why}", remedy=remedy)


def predict_adapted(
    trained: Trained,
    paths: Sequence[Path],
    methods: Sequence[str],
    runtime: Served | None = None,
    batch: int | None = None,
    clock: Clock | None = None,
    lenient: bool = False,
    strict: bool = False,
    policy: Policy | None = None,
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
        policy: How outputs become answers; None for the likeliest class.

    Raises:
        UnseenError: The model cannot be adapted so, or there are fewer than `LEAST` rows.
    """
    clock, methods = clock or Clock(), adaptations(methods)
    check(trained, methods, exported=runtime is not None)
    parts = list(marked(trained, paths, batch, clock, lenient, strict))
    used = sum(item.x is not None for items in parts for item in items)
    if used < LEAST:
        raise UnseenError(
            f"--adapt estimates from {LEAST} rows or more; {used} can be predicted.",
            remedy="Leave out --adapt, or gather more rows of the site.",
        )
    with clock.phase("adapting"):
        if "inputs" in methods and isinstance(trained.inputs, TableInputs):
            rows = [i.numbers for items in parts for i in items if i.x is not None]
            own = adapt.normalised(trained.inputs, torch.tensor(rows, dtype=torch.float64))
            x = iter(own.encode(rows))
            parts = [[replace(i, x=next(x)) if i.x is not None else i for i in p] for p in parts]
        batches = [x for x in map(stacked, parts) if x is not None]

    def passed(x: Tensor) -> Tensor:
        features = x.to(trained.model.device)
        if trained.trunk is not None:
            features = trained.trunk(features)
        return trained.method.predict(trained.model, trained.inbox, features)

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
    shift = None
    if "prior" in methods:
        with clock.phase("adapting"):
            outputs, shift = _reweighed(trained, outputs)
    far = sum(bool(i.unusual) and i.x is not None for items in parts for i in items)
    with clock.phase("answers"):
        lines = tuple(answers(policy or policy_of(trained), chain(*parts), outputs))
    return Adapted(methods, lines, notes(trained.spec, methods, used, far, shift), shift)


def _reweighed(trained: Trained, outputs: Tensor) -> tuple[Tensor, Shift]:
    assert trained.classes is not None
    shares = (trained.spec.get(KEY) or {}).get("class shares")
    before = torch.tensor(shares or [1] * len(trained.classes), dtype=torch.float64)
    before = before if shares else before / len(before)
    finite = outputs.isfinite().all(dim=-1)
    if not bool(finite.any()):
        raise UnseenError("no output of the model is finite.", remedy="Train the model again.")
    p = probabilities(outputs[finite].double())
    shift = adapt.reestimated(p, before)
    adapted = torch.full((len(outputs), len(before)), float("nan"), dtype=torch.float64)
    adapted[finite] = adapt.posterior(p, before, shift.after).clamp(min=TINY).log()
    return adapted, shift
