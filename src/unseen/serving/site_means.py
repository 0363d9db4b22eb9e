"""What training tells of its sites for later adaptation: shares of classes, and what means say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.core.exchange import Method
from unseen.results.recipe_words import counted
from unseen.study.plan import Plan
from unseen.study.prepare import Prepared, split_rows

#: Fewer sites than this say nothing of how their means go together.
FEWEST = 4
#: The chance of as close a relation between means that have none, below which there is a warning.
LEVEL = 0.05
#: Means that differ by less than this share of the largest are equal but for rounding.
FLAT, TINY = 1e-12, 1e-300
#: What `model.json` calls it all.
KEY = "adaptation"
UNTOLD = (
    "it cannot be told whether the sites' means carry label information, which would then be "
    "removed: "
)


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


def kept(planned: Plan, prepared: Prepared, method: Method, seed: int) -> dict[str, Any]:
    """Return what `model.json` keeps of the training sites for `predict --adapt`.

    The shares of classes are those that training descended by: the mean over sites, by examples or
    uniform as `training.weights` says (by examples where it is left to the method), of each class's
    share of the site's training rows; equal where `training.balanced` weighs classes alike.

    Args:
        planned: The study.
        prepared: Its clients.
        method: The method.
        seed: The seed of the study's job.
    """
    study, data = planned.setting.study, planned.data
    facts: dict[str, Any] = {}
    if prepared.classes is not None:
        labels = [client.split("train").y.cpu() for client in prepared.sources.values()]
        counts = torch.stack([torch.bincount(y, minlength=prepared.classes) for y in labels])
        uniform = study.training.weights == "uniform" and method.gather is None
        sizes = counts.sum(1, keepdim=True)
        shares = (counts / sizes).mean(0) if uniform else counts.sum(0) / counts.sum()
        if study.training.balanced:
            shares = (shares > 0) / (shares > 0).sum()
        facts["class shares"] = shares.double().tolist()
    if data.schema is not None:
        means, shares_at = [], []
        for name in prepared.sources:
            rows = split_rows(data[name], study, seed)[0]
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


def remarks(spec: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """Return what to say before the differences between sites are taken out of the inputs.

    Args:
        spec: The content of `model.json`.
        methods: The methods of adaptation that were asked for.
    """
    if not {"inputs", "batchnorm"} & set(methods):
        return []
    means = (spec.get(KEY) or {}).get("site means")
    if means is None:
        return [f"{UNTOLD}this model's directory does not say how they went together in training"]
    if means["sites"] < FEWEST:
        trained = counted(means["sites"], "training site")
        return [f"{UNTOLD}there were {trained}, and fewer than {FEWEST} say nothing"]
    links = {name: Link(**link) for name, link in means["columns"].items()}
    close = {name: x for name, x in links.items() if x.p < LEVEL}
    ranked = sorted(close.items(), key=lambda pair: pair[1].p)
    named = ", ".join(f"{n} (r {x.r:.2f} over {x.sites} sites, p {x.p:.2g})" for n, x in ranked)
    return [
        f"warning: over the training sites the mean of {named} went with the label's mean; "
        "taking out the new site's own mean takes out what it says of the label. Of "
        f"{len(links)} columns {LEVEL * len(links):.2g} would be named by chance"
    ] * bool(close)
