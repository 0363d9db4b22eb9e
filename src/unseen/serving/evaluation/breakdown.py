"""A model's answers taken apart: over sites, by class, by subgroup, and the confusion matrix.

Counts are sums over sites. What is not a sum, such as an area under a curve, is computed at each
site and averaged, so that no site's rows are compared with another's.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unseen.core.labels import IGNORED
from unseen.core.metrics.bootstrap import bootstrap, interval
from unseen.core.metrics.class_metrics import confusion, rankable
from unseen.core.metrics.evaluation import LOWER, METRICS, UNORDERED
from unseen.core.outputs import predicted, probabilities
from unseen.core.record_lines import Record
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.serving.evaluation.measures import RESAMPLES, Measured, codes, measured
from unseen.serving.policy import Policy

#: Sites below which a bootstrap over sites says nothing; levels of a subgroup's column at most.
FEWEST, MOST_LEVELS = 3, 30
#: Metrics that set rows against one another, or against their mean.
OF_PAIRS = frozenset(
    {"auroc", "auroc-ovr", "auprc", "concordance", "concordance-ipcw", "pearson", "r2"}
)


@dataclass(frozen=True)
class Answers:
    """A domain's answers.

    Attributes:
        outputs: Calibrated outputs [N, C].
        y: Labels [N].
        groups: Column -> each row's cell.
        units: Whose row each is; empty where each stands for itself.
    """

    outputs: Tensor
    y: Tensor
    groups: Mapping[str, tuple[str, ...]]
    units: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Breakdown:
    """A small table of texts, with a title and what to know of it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def over_sites(sites: Mapping[str, Mapping[str, Measured]]) -> dict[str, tuple[Measured, str]]:
    """Return metric -> its mean over sites, with an interval over sites, and the worst."""
    result = {}
    for metric in next(iter(sites.values())):
        values = {
            n: float(m[metric].value or 0) for n, m in sites.items() if m[metric].value is not None
        }
        if not values:
            continue
        figures = torch.tensor(list(values.values()), dtype=torch.float64)
        mean = ratio(figures, torch.ones_like(figures))
        sign = 1 if metric in LOWER else -1
        worst = "" if metric in UNORDERED else max(values, key=lambda n: sign * values[n])
        result[metric] = (mean, worst)
    return result


def ratio(parts: Tensor, wholes: Tensor) -> Measured:
    """Return Σ parts / Σ wholes over sites [K], with a bootstrap interval over those with any."""
    value = float(parts.sum() / wholes.sum()) if float(wholes.sum()) else None
    if value is None or int((wholes > 0).sum()) < FEWEST:
        return Measured(value)

    def statistic(weights: Tensor) -> Tensor:
        return (weights @ parts) / (weights @ wholes)

    draws = keyed("bootstrap/sites")
    samples = bootstrap({"ratio": statistic}, len(parts), RESAMPLES, draws)["ratio"]
    return Measured(value, *(interval(samples) or ()))


def matrices(answers: Mapping[str, Answers], classes: int, policy: Policy) -> dict[str, Tensor]:
    """Return each site's confusion matrix [true, predicted]."""
    return {n: confusion(policy.decided(a.outputs), a.y, classes) for n, a in answers.items()}


def by_class(answers: Mapping[str, Answers], names: Sequence[str], policy: Policy) -> Breakdown:
    """Return recall, precision, F1 and the area under the ROC curve of each class."""
    counts = torch.stack(list(matrices(answers, len(names), policy).values())).double()
    rows = []
    for c, name in enumerate(names):
        right, true, guess = counts[:, c, c], counts[:, c].sum(1), counts[:, :, c].sum(1)
        areas = [_area(a, c) for a in answers.values()]
        defined = torch.tensor([x for x in areas if x is not None], dtype=torch.float64)
        area = ratio(defined, torch.ones_like(defined)) if len(defined) else Measured(None)
        figures = (ratio(right, true), ratio(right, guess), ratio(2 * right, true + guess), area)
        rows.append((name, str(int(true.sum())), *(figure.text() for figure in figures)))
    note = (
        "recall, precision and F1 of all sites' rows together; AUROC one-vs-rest, mean over sites"
    )
    header = ("class", "rows", "recall", "precision", "F1", "AUROC")
    return Breakdown("Classes", header, tuple(rows), note + interval_note(len(answers)))


def by_area(answers: Mapping[str, Answers], names: Sequence[str]) -> Breakdown:
    """Return the overlap of predicted and true pixels of each class of masks."""
    rows = []
    for c, name in enumerate(names):
        pairs = [(predicted(a.outputs) == c, a.y == c, a.y != IGNORED) for a in answers.values()]
        areas = [
            [int(part.sum()) for part in (guess & true, guess & counted, true)]
            for guess, true, counted in pairs
        ]
        both, guess, true = torch.tensor(areas, dtype=torch.float64).unbind(1)
        figures = (ratio(2 * both, guess + true), ratio(both, true), ratio(both, guess))
        rows.append((name, str(int(true.sum())), *(figure.text() for figure in figures)))
    note = "pixels of all images of all sites together" + interval_note(len(answers))
    return Breakdown(
        "Classes", ("class", "pixels", "Dice", "recall", "precision"), tuple(rows), note
    )


def interval_note(sites: int) -> str:
    """Return what intervals over this number of sites are."""
    return "; [...]: 95% bootstrap interval over sites" if sites >= FEWEST else ""


def _area(answers: Answers, c: int) -> float | None:
    scores = rankable(answers.outputs)
    return METRICS["auroc"](scores[:, c, None], (answers.y == c).long())


def by_group(
    answers: Mapping[str, Answers], column: str, metrics: Sequence[str], policy: Policy
) -> tuple[Breakdown, dict[str, str]]:
    """Return each subgroup's metrics with intervals, and the worst one by metric.

    Metrics of pairs of rows are means over sites, with intervals over these; all others are of the
    subgroup's rows at all sites, with intervals over rows.
    """
    cells = [cell for a in answers.values() for cell in a.groups[column]]
    levels = sorted(set(cells))
    if len(levels) > MOST_LEVELS:
        raise UnseenError(
            f"the column {column!r} has {len(levels)} values; subgroups are at most {MOST_LEVELS}.",
            remedy="Put the number in bands, in a column of its own.",
        )
    outputs = torch.cat([a.outputs for a in answers.values()])
    y = torch.cat([a.y for a in answers.values()])
    units = codes([(site, unit) for site, a in answers.items() for unit in a.units])
    # Cox's loss sets each event against all who are still at risk.
    risks = policy.times is not None and policy.times.intervals is None
    of_pairs = OF_PAIRS | {"loss"} if risks else OF_PAIRS
    pairs = [m for m in metrics if m in of_pairs] if len(answers) > 1 else []
    rows, values = [], dict[str, dict[str, Measured]]()
    for level in levels:
        mask = torch.tensor([cell == level for cell in cells])
        own = None if units is None else units[mask]
        of_rows = [m for m in metrics if m not in pairs]
        together = measured(outputs[mask], y[mask], of_rows, policy, own)
        parts = [_rows(a, [cell == level for cell in a.groups[column]]) for a in answers.values()]
        values[level] = {
            m: _mean_at_sites(parts, m, policy) if m in pairs else together[m] for m in metrics
        }
        texts = (m.text("accuracy" in n) for n, m in values[level].items())
        rows.append((level or "(empty)", str(int(mask.sum())), *texts))
    ordered = over_sites(values).items()
    worst = {metric: level for metric, (_, level) in ordered if metric not in UNORDERED}
    note = "worst: " + "; ".join(
        f"{metric} {level or '(empty)'}" for metric, level in worst.items()
    )
    if pairs:
        note += f"; {', '.join(pairs)}: mean over sites"
    header = (column, "rows", *metrics)
    return Breakdown(f"By {column}", header, tuple(rows), note), worst


def _rows(answers: Answers, mask: Sequence[bool]) -> Answers:
    rows = torch.tensor(mask, dtype=torch.bool)
    return Answers(answers.outputs[rows], answers.y[rows], {})


def _mean_at_sites(parts: Sequence[Answers], metric: str, policy: Policy) -> Measured:
    """Return the mean of a metric over the sites where it is defined."""
    there = [a for a in parts if len(a.y)]
    values = [METRICS[metric](policy.for_metric(metric, a.outputs), a.y) for a in there]
    defined = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
    return ratio(defined, torch.ones_like(defined)) if len(defined) else Measured(None)


def confusion_table(
    answers: Mapping[str, Answers], names: Sequence[str], policy: Policy
) -> Breakdown:
    """Return the confusion matrix, summed over sites."""
    total = torch.stack(list(matrices(answers, len(names), policy).values())).sum(0)
    rows = tuple((name, *map(str, row)) for name, row in zip(names, total.tolist(), strict=True))
    header = ("true \\ predicted", *names)
    return Breakdown("Confusion matrix", header, rows, "rows of all sites, summed")


def sites_table(values: Mapping[str, Mapping[str, Measured]]) -> Breakdown:
    """Return the mean over sites and the worst site, a row for each metric."""
    rows = []
    for metric, (mean, worst) in over_sites(values).items():
        percent = "accuracy" in metric
        low = values[worst][metric].text(percent) if worst else ""
        rows.append((metric, mean.text(percent), worst, low))
    header = ("metric", "mean over sites", "worst site", "there")
    return Breakdown(
        "Over sites", header, tuple(rows), interval_note(len(values)).removeprefix("; ")
    )


def answered_table(answers: Mapping[str, Answers], policy: Policy) -> Breakdown:
    """Return which share of each site's rows is answered, and which share of answers is right."""
    rows = []
    for name, a in answers.items():
        sure, guess = policy.answered(a.outputs), predicted(policy.decided(a.outputs))
        right = f"{100 * float((guess == a.y)[sure].double().mean()):.1f}" if sure.any() else ""
        rows.append((name, f"{100 * float(sure.double().mean()):.1f}", right))
    header = ("domain", "answered", "right of these")
    note = f"in percent; no answer below the probability {policy.least:g}"
    return Breakdown("Abstention", header, tuple(rows), note)


def _coverage(answers: Answers, policy: Policy) -> tuple[Tensor, float]:
    """Return which rows' sets or intervals hold the truth [N], and the mean size."""
    scores, asked = policy.decisions.scores, policy.coverage
    assert scores is not None and asked is not None
    outputs, y = answers.outputs.double(), answers.y
    if policy.classes is None:
        reach = scores.quantile(asked)
        return (outputs.squeeze(-1) - y.double()).abs() <= reach, 2 * reach
    sets = scores.sets(probabilities(outputs), asked)
    inside = (sets & one_hot(y, sets.shape[1]).bool()).any(1)
    return inside, float(sets.sum(1).double().mean())


def held_by(answers: Mapping[str, Answers], policy: Policy) -> Breakdown:
    """Return the coverage of prediction sets or intervals at each site, and their size."""
    rows = []
    shares, sizes = [], []
    for name, a in answers.items():
        inside, size = _coverage(a, policy)
        shares.append(float(inside.double().mean()))
        sizes.append(size)
        rows.append((name, f"{shares[-1]:.3f}", f"{size:.4g}"))
    mean = ratio(torch.tensor(shares).double(), torch.ones(len(shares)).double())
    rows.append(("mean over sites", mean.text(), f"{sum(sizes) / len(sizes):.4g}"))
    what = "width" if policy.classes is None else "classes in a set"
    note = f"asked for: {policy.coverage:g}{interval_note(len(answers))}"
    return Breakdown("Coverage", ("domain", "coverage", what), tuple(rows), note)


def coverage_by_class(
    answers: Mapping[str, Answers], names: Sequence[str], policy: Policy
) -> Breakdown:
    """Return which share of each class's rows has a prediction set that holds the class."""
    rows = []
    pairs = [(_coverage(a, policy)[0], a.y) for a in answers.values()]
    for c, name in enumerate(names):
        counts = [(int((inside & (y == c)).sum()), int((y == c).sum())) for inside, y in pairs]
        covered, true = torch.tensor(counts, dtype=torch.float64).unbind(1)
        rows.append((name, str(int(true.sum())), ratio(covered, true).text()))
    note = "sets promise their coverage over all rows of a site, not for every class; rows of all "
    note += "sites together" + interval_note(len(answers))
    return Breakdown("Coverage of classes", ("class", "rows", "coverage"), tuple(rows), note)


def to_json(table: Breakdown) -> Record:
    """Return a table's rows by the names of its columns."""
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, "note": table.note}
