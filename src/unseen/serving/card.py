"""The model card: what the model is made from, how good it is at which site, and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unseen.core.templates import render
from unseen.datasets.cache import readable
from unseen.datasets.standin import NO_RESULT
from unseen.results.study_results import counted
from unseen.serving.bounds import BOUND
from unseen.serving.inputs import from_json
from unseen.serving.intervals import Measured

#: What a site's examples were to the training.
ROLES = {"source": "validation split", "validation": "selection only", "target": "held out"}


def text(spec: Mapping[str, Any], references: Sequence[str]) -> str:
    """Return the card, as Markdown.

    Args:
        spec: The content of `model.json`.
        references: The papers of the method, as text.
    """
    metrics, results = spec["metrics"], spec["results"]
    return render(
        "unseen.serving",
        "card.md.jinja",
        spec=spec,
        references=references,
        sources=spec["sites"]["sources"],
        targets=spec["sites"]["targets"],
        label=spec.get("label"),
        kind=spec["input"]["kind"],
        steps=from_json(spec["input"]).steps(),
        roles=ROLES,
        cells=lambda site: [Measured(*site["metrics"][m]).text("accuracy" in m) for m in metrics],
        percent=any("accuracy" in name for name in metrics),
        recipe=spec["study"]["training"],
        left=spec["left the sites"],
        below=spec.get("worse than a constant"),
        few=[site["site"] for site in results if site["examples"] < 30],
        public=_public(spec),
        flags=_flags(spec),
        no_result=NO_RESULT,
        counted=counted,
        readable=readable,
        line=_line,
        lines=lambda values: ", ".join(map(_line, values)),
    )


def _public(spec: Mapping[str, Any]) -> bool:
    return spec["study"]["privacy"].get("columns") is not None


def _flags(spec: Mapping[str, Any]) -> str:
    """Which inputs `predict` flags, and that others may be as far from training."""
    ranges, kind = spec.get("usual inputs"), spec["input"]["kind"]
    far = f"more than {BOUND:g} deviations from training's mean"
    rest = (
        "in the column `unusual`, and `--strict` refuses it; values that are far from training "
        "together, but none by itself, pass"
    )
    if kind == "table":
        where = "outside the public range" if _public(spec) else far
        where += ", or outside the rounded range of training," if ranges else ""
        return f"`predict` names a number {where} {rest}"
    if kind == "images" and ranges:
        return (
            f"`predict` names an image whose brightness, contrast, detail, colour or size is "
            f"{far}, or outside their rounded range, {rest}; what it shows is not looked at"
        )
    no_images = "`predict` flags no image: what training's were like did not leave the sites"
    return no_images if kind == "images" else ""


def _line(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
