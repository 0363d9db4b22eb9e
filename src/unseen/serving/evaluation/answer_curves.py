"""Curves of answers at sites with labels: ROC, precision-recall, calibration and decision curve."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from unseen.core.outputs import probabilities
from unseen.serving.evaluation.breakdown import Answers, matrices
from unseen.serving.policy import Policy
from unseen.studies.report.figures import INK, Figure, Line, Lines, Matrix

#: Points of a line at most, sites with a line each, and bins of a calibration curve.
POINTS, LINES, BINS = 200, 8, 10
Pair = tuple[np.ndarray, np.ndarray]
DIAGONAL = Line("chance", (0.0, 1.0), (0.0, 1.0), colour=INK, kind="dotted")
PERFECT = Line("as predicted", (0.0, 1.0), (0.0, 1.0), colour=INK, kind="dotted")


def figures(answers: Mapping[str, Answers], policy: Policy) -> list[Figure]:
    """Return the figures of a model's answers; none of times until an event."""
    classes = policy.classes
    if policy.times is not None:
        return []
    if classes is None:
        return [_numbers(answers)]
    p = {n: probabilities(a.outputs.double()).numpy() for n, a in answers.items()}
    y = {n: a.y.numpy() for n, a in answers.items()}
    if len(classes) == 2:
        series = {n: (p[n][:, 1], (y[n] == 1).astype(int)) for n in answers}
        title = f"is it {classes[1]}?"
    else:
        everything, labels = np.concatenate(list(p.values())), np.concatenate(list(y.values()))
        series = {c: (everything[:, k], (labels == k).astype(int)) for k, c in enumerate(classes)}
        title = "each class against the others, all sites"
    drawings = [_ranking(series, title), _calibration(p, y, len(classes))]
    if len(classes) == 2:
        drawings.append(_net_benefit(series, policy))
    return [*drawings, _confusion(answers, classes, policy)]


def _limited(series: Mapping[str, Pair]) -> dict[str, Pair]:
    """Return one series for each name, or one of all together where there would be too many."""
    both = {n: pair for n, pair in series.items() if 0 < pair[1].sum() < len(pair[1])}
    if len(both) <= LINES:
        return both
    return {"all together": _together(series)}


def _together(series: Mapping[str, Pair]) -> Pair:
    first, second = zip(*series.values(), strict=True)
    return np.concatenate(first), np.concatenate(second)


def _line(name: str, x: np.ndarray, y: np.ndarray, colour: int) -> Line:
    places = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).round().astype(int))
    return Line(name, tuple(x[places].tolist()), tuple(y[places].tolist()), colour=colour)


def _ranking(series: Mapping[str, Pair], title: str) -> Figure:
    from sklearn.metrics import precision_recall_curve, roc_curve

    roc, recall = [DIAGONAL], []
    for k, (name, (score, label)) in enumerate(_limited(series).items()):
        fpr, tpr, _ = roc_curve(label, score)
        roc.append(_line(name, fpr, tpr, k))
        precision, hits, _ = precision_recall_curve(label, score)
        recall.append(_line(name, hits[::-1], precision[::-1], k))
    one = (0.0, 1.0)
    panels = (
        Lines("ROC", "1 − specificity", "sensitivity", tuple(roc), limits=one),
        Lines("Precision and recall", "recall", "precision", tuple(recall), limits=one),
    )
    return Figure("ranking", "How classes are told apart", f"Over all thresholds; {title}", panels)


def _calibration(p: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray], classes: int) -> Figure:
    from sklearn.calibration import calibration_curve

    if classes == 2:
        pairs = {n: (p[n][:, 1], (y[n] == 1).astype(int)) for n in p}
        labels = ("predicted probability", "observed share")
    else:
        pairs = {n: (p[n].max(1), (p[n].argmax(1) == y[n]).astype(int)) for n in p}
        labels = ("confidence", "share that is right")
    lines = [PERFECT]
    for k, (name, (score, label)) in enumerate(_limited(pairs).items()):
        true, mean = calibration_curve(label, score, n_bins=BINS, strategy="quantile")
        lines.append(Line(name, tuple(mean.tolist()), tuple(true.tolist()), colour=k, dots=True))
    panel = Lines("Calibration", *labels, tuple(lines), limits=(0.0, 1.0))
    caption = f"{BINS} bins with equally many rows; above the diagonal: more often than predicted"
    return Figure("calibration", "Can the probabilities be believed?", caption, (panel,))


def net_benefit(score: np.ndarray, label: np.ndarray, thresholds: Sequence[float]) -> list[float]:
    """Return the net benefit TP/n − FP/n · t/(1 − t) of acting where the probability is t or more.

    Source:
        Vickers and Elkin 2006, "Decision curve analysis".
    """
    benefits = []
    for t in thresholds:
        act = score >= t
        true, false = (act & (label == 1)).mean(), (act & (label == 0)).mean()
        benefits.append(float(true - false * t / (1 - t)))
    return benefits


def _net_benefit(series: Mapping[str, Pair], policy: Policy) -> Figure:
    score, label = _together(series)
    steps = [t / 100 for t in range(1, 96)]
    share = float(label.mean())
    everyone = [share - (1 - share) * t / (1 - t) for t in steps]
    models = net_benefit(score, label, steps)
    low, high = -0.05, max(0.05, *models, share) * 1.05
    inside = [(t, b) for t, b in zip(steps, everyone, strict=True) if b >= low]
    lines = (
        Line("the model", tuple(steps), tuple(max(low, b) for b in models), kind="strong"),
        Line("act on everyone", tuple(t for t, _ in inside), tuple(b for _, b in inside), colour=1),
        Line("act on no one", (steps[0], steps[-1]), (0.0, 0.0), colour=INK, kind="dotted"),
    )
    marks = (policy.limit.value,) if policy.limit is not None else ()
    panel = Lines(
        "Decision curve",
        "threshold probability",
        "net benefit",
        lines,
        marks=marks,
        limits=(low, high),
    )
    caption = "Rows of all sites; at a threshold t a false alarm costs t/(1 − t) of a hit"
    return Figure("decision", "Is it worth acting on?", caption, (panel,))


def _confusion(answers: Mapping[str, Answers], classes: tuple[str, ...], policy: Policy) -> Figure:
    by_site = matrices(answers, len(classes), policy)
    if len(by_site) > LINES:
        by_site = {"all sites": torch.stack(list(by_site.values())).sum(0)}
    panels = tuple(
        Matrix(name, classes, tuple(map(tuple, counts.tolist())))
        for name, counts in by_site.items()
    )
    caption = "Percent of each true class that is predicted as which"
    return Figure("confusion", "What is taken for what", caption, panels)


def _numbers(answers: Mapping[str, Answers]) -> Figure:
    pairs = {
        n: (a.outputs.double().squeeze(-1).numpy(), a.y.double().numpy())
        for n, a in answers.items()
    }
    if len(pairs) > LINES:
        pairs = {"all sites": _together(pairs)}
    lines = []
    for k, (name, (f, y)) in enumerate(pairs.items()):
        parts = np.array_split(np.argsort(f, kind="stable"), min(BINS, len(f)))
        x, true = ([float(v[i].mean()) for i in parts] for v in (f, y))
        lines.append(Line(name, tuple(x), tuple(true), colour=k, dots=True))
    ends = [v for line in lines for v in (min(line.x), max(line.x))]
    span = (min(ends), max(ends))
    lines.insert(0, Line("as predicted", span, span, colour=INK, kind="dotted"))
    panel = Lines("Calibration", "prediction", "mean label", tuple(lines))
    caption = f"{BINS} bins with equally many rows"
    return Figure("calibration", "Can the numbers be believed?", caption, (panel,))
