"""What a directory keeps of the sources to act by: calibration, thresholds, sets, distances.

All of it is sums over sites, over rows that the model was not trained on: the sources' validation
splits, or whole sites that models trained without them answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

from unseen.core.outputs import probabilities
from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.serving.conformal import BINS, Scores, class_score, pool
from unseen.serving.novelty import Novelty
from unseen.serving.scaling import Calibration, fit_calibration
from unseen.serving.thresholds import EDGES, Counts, class_counts

Calibrate = Literal["temperature", "platt", "none"]
#: The key in `model.json`.
KEY = "decisions"
#: What rows are evidence of.
OF = {
    "validation": "the training sites' validation splits",
    "left-out": "sites that the model answering them was not trained on",
}


@dataclass(frozen=True)
class Evidence:
    """Answers at the sources' rows by a model that was not trained on them.

    Attributes:
        kind: `validation`: rows of sites that it was trained on; `left-out`: other sites.
        outputs: Site -> uncalibrated outputs [N, C].
        y: Site -> labels [N]; numbers in their own unit.
        unlearned: Site -> the classes of its rows of which the model had none.
    """

    kind: Literal["validation", "left-out"]
    outputs: Mapping[str, Tensor]
    y: Mapping[str, Tensor]
    unlearned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(map(len, self.y.values()))


@dataclass(frozen=True)
class Decisions:
    """What `predict` and `evaluate` act by.

    Attributes:
        calibration: Of the outputs; None where they are the model's own.
        counts: The sources' rows by class and probability, for two classes.
        scores: The sources' scores, for sets and intervals.
        novelty: What distances from training are measured by.
        layer: The layer whose input φ is; "" for the model's own input.
        about: `rows`, `sites` and `of`: what all of it was summed over.
    """

    calibration: Calibration | None = None
    counts: Counts | None = None
    scores: Scores | None = None
    novelty: Novelty | None = None
    layer: str = ""
    about: Record | None = None

    @classmethod
    def read(cls, spec: Record, tensors: Mapping[str, Tensor]) -> Self:
        """Return what `model.json` and the tensors hold."""
        content = spec.get(KEY) or {}
        novelty = content.get("novelty")
        return cls(
            Calibration.of_json(content["calibration"]) if "calibration" in content else None,
            Counts.of_json(content["thresholds"]) if "thresholds" in content else None,
            Scores.of_json(content["sets"]) if "sets" in content else None,
            Novelty.of_tensors(tensors, novelty["sites"]) if novelty else None,
            novelty["layer"] if novelty else "",
            content.get("evidence"),
        )


def decide_by(
    evidence: Evidence, classes: int | None, kind: Calibrate, uniform: bool, deviation: float
) -> Record:
    """Return what `model.json` keeps, from what every source would send."""
    about = {"kind": evidence.kind, "rows": evidence.rows, "sites": len(evidence.y)}
    content: Record = {"evidence": {**about, "of": OF[evidence.kind]}}
    if classes is None:
        pairs = {n: (evidence.outputs[n].double().squeeze(-1), y) for n, y in evidence.y.items()}
        scores = {n: (f - y.double()).abs() for n, (f, y) in pairs.items()}
        return content | {"sets": pool(scores, deviation).to_json()}
    outputs = {n: z.double() for n, z in evidence.outputs.items()}
    if kind != "none":
        fit, asked = fit_calibration(kind, outputs, evidence.y, uniform)
        content["calibration"] = fit.to_json() | {"exchanges": asked}
        outputs = {n: fit(z) for n, z in outputs.items()}
    if classes == 2:
        counts = torch.stack([class_counts(outputs[n], y) for n, y in evidence.y.items()])
        content["thresholds"] = Counts(counts.sum(0)).to_json()
    scores = {n: class_score(probabilities(z), evidence.y[n]) for n, z in outputs.items()}
    return content | {"sets": pool(scores).to_json()}


def size_of(content: Record, classes: int | None) -> int:
    """Return the bytes that each source sends for all of this, as float64 and int64."""
    numbers, C = 0, classes or 1
    if "calibration" in content:
        q = C if content["calibration"]["kind"] == "platt" else 1
        numbers += content["calibration"]["exchanges"] * (1 + q + q * q)
    numbers += 2 * (len(EDGES) + 1) if "thresholds" in content else 0
    numbers += BINS + 1 if "sets" in content else 0
    if "novelty" in content:
        F = content["novelty"]["features"]
        numbers += C + C * F + F * F + BINS + 1
    return 8 * numbers


def disclosures(content: Record, classes: int | None) -> list[str]:
    """Return what left each source for all of this, in words."""
    return render(
        "unseen.serving", "decisions.jinja", content=content, classes=classes
    ).splitlines()
