"""Whether a model does at its own sites what is expected of it at sites that it has not seen."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from unseen.metrics.evaluation import LOWER, METRICS, UNORDERED
from unseen.serving.decisions import Evidence
from unseen.serving.description import ROLES
from unseen.serving.evaluation.measures import Measured


def broken_promise(spec: Mapping[str, Any], evidence: Evidence | None) -> str:
    """Return a warning where a model does worse at its own sites than is expected of it elsewhere.

    What is expected comes of models that were trained without some sites. The model of all sites
    that is handed out may still have failed, and nothing else would show it.

    Args:
        spec: The content of `model.json`, with its results.
        evidence: Answers at sites that were left out, if there are any.
    """
    metric = spec["metric"]
    if metric not in METRICS.keys() - UNORDERED:
        return ""
    figures = [
        site["metrics"][metric][0] for site in spec["results"] if site["role"] == ROLES["source"]
    ]
    own = [figure for figure in figures if figure is not None]
    sign, least = -1 if metric in LOWER else 1, []
    if evidence is not None and evidence.kind == "left-out":
        values = (METRICS[metric](evidence.outputs[n], evidence.y[n]) for n in evidence.y)
        least += [sign * value for value in values if value is not None]
    expected = spec.get("expected at a new site", {})
    if expected.get("metric") == metric:
        least.append(sign * expected["high" if sign < 0 else "low"])
    if not own or not least or sign * fmean(own) >= min(least):
        return ""
    here, there = (Measured(x).text("accuracy" in metric) for x in (fmean(own), sign * min(least)))
    return (
        f"the model has {metric} {here} at its own sites' validation rows, worse than {there}, the "
        "least that was expected at a site it has not seen: its training failed. Do not use it; "
        "train with a smaller learning rate, or for more rounds"
    )


def unlearned_classes(spec: Mapping[str, Any], evidence: Evidence | None) -> str:
    """Return a warning where calibration rests on answers about classes that a model never met.

    Args:
        spec: The content of `model.json`.
        evidence: Answers at sites that were left out, if there are any.
    """
    if evidence is None or not evidence.unlearned:
        return ""
    names = spec["classes"]
    parts = [
        f"{', '.join(names[c] for c in classes)} without {site}"
        for site, classes in evidence.unlearned.items()
    ]
    return (
        f"the models that were trained without some sites had no row of {'; '.join(parts)}. "
        "Calibration, thresholds and sets follow their answers there, and make the probabilities "
        "of all sites less sure than they need be; take calibrate 'none', or do without leave_out"
    )
