"""What a directory keeps of the sources to act by: calibration, thresholds, sets, distances.

All of it is sums over sites (`unseen.methods.exact`), over rows that the model was not trained on:
the sources' validation splits, or whole sites that models trained without them answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from unseen.core.exchange import Method
from unseen.core.outputs import probabilities
from unseen.core.templates import render
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.data.networks.mixture import Mixture
from unseen.errors import UnseenError, choice
from unseen.methods.exact.conformal import BINS, Scores, class_score, pool
from unseen.methods.exact.novelty import WIDEST, Novelty, moments
from unseen.methods.exact.scaling import Calibration, fit_calibration
from unseen.methods.exact.thresholds import EDGES, Counts, class_counts
from unseen.studies.execution.prepare import Prepared

CALIBRATIONS = ("temperature", "platt", "site", "none")
#: What the key in `model.json`, and the prefix of its tensors, is.
KEY, NOVELTY = "decisions", "novelty/"
#: Rows of a site that distances are summed over at most, and rows of one pass.
MOST, AT_ONCE = 5000, 256
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
    about: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Return what `model.json` and the tensors hold."""
        content, novelty = spec.get(KEY) or {}, None
        stored = {n.removeprefix(NOVELTY): t for n, t in tensors.items() if n.startswith(NOVELTY)}
        if "novelty" in content:
            if lacking := {"means", "factor", "nearer"} - stored.keys():
                raise UnseenError(f"{NOVELTY}{min(lacking)} is missing from the model's tensors.")
            means, factor, nearer = (stored[n].double() for n in ("means", "factor", "nearer"))
            novelty = Novelty(means, factor, nearer, content["novelty"]["sites"])
        return cls(
            Calibration.of_json(content["calibration"]) if "calibration" in content else None,
            Counts.of_json(content["thresholds"]) if "thresholds" in content else None,
            Scores.of_json(content["sets"]) if "sets" in content else None,
            novelty,
            content.get("novelty", {}).get("layer", ""),
            content.get("evidence"),
        )


def decide_by(
    evidence: Evidence, classes: int | None, kind: str, uniform: bool, deviation: float
) -> dict[str, Any]:
    """Return what `model.json` keeps, from what every source would send.

    Args:
        evidence: The sources' answers.
        classes: The number of classes; None for numbers.
        kind: One of `CALIBRATIONS`.
        uniform: Whether sites count alike in the calibration.
        deviation: The unit of scores of numbers.
    """
    about = {"kind": evidence.kind, "rows": evidence.rows, "sites": len(evidence.y)}
    content: dict[str, Any] = {"evidence": {**about, "of": OF[evidence.kind]}}
    if classes is None:
        pairs = {n: (evidence.outputs[n].double().squeeze(-1), y) for n, y in evidence.y.items()}
        scores = {n: (f - y.double()).abs() for n, (f, y) in pairs.items()}
        return content | {"sets": pool(scores, deviation).to_json()}
    outputs = {n: z.double() for n, z in evidence.outputs.items()}
    if kind != "none":
        form: Literal["temperature", "platt"] = "temperature" if kind == "temperature" else "platt"
        fit, asked = fit_calibration(form, outputs, evidence.y, uniform, own=kind == "site")
        content["calibration"] = fit.to_json() | {"exchanges": asked}
        outputs = {n: fit(z) for n, z in outputs.items()}
    if classes == 2:
        counts = torch.stack([class_counts(outputs[n], y) for n, y in evidence.y.items()])
        content["thresholds"] = Counts(counts.sum(0)).to_json()
    scores = {n: class_score(probabilities(z), evidence.y[n]) for n, z in outputs.items()}
    return content | {"sets": pool(scores).to_json()}


def check_calibrate(
    kind: str | None, leave_out: int | None, reason: str, classes: int | None, times: bool = False
) -> str:
    """Return the calibration that is fitted, or "none".

    Without a word it is temperature where sites are left out, and none where they are not: fitted
    to the validation splits of sites that were trained on, it often helps at another site, but can
    make probabilities there much worse (docs/results/prediction-sets.md).

    Args:
        kind: What was asked for.
        leave_out: The groups of sites that are left out, if any.
        reason: The setting that keeps a site's sums from leaving it in the clear, or "".
        classes: The number of classes; None for numbers.
        times: Whether the model is of times until an event.

    Raises:
        UnseenError: Its sums may not leave the sites, or there is nothing to calibrate.
    """
    if kind is not None:
        choice("calibrate", kind, CALIBRATIONS)
    if times and (leave_out is not None or kind not in (None, "none")):
        raise UnseenError(
            "leave_out and calibrate are for classes and numbers; this model is of times.",
            remedy="Leave them out.",
        )
    if kind not in (None, "none") and classes is None:
        raise UnseenError(
            f"calibrate = {kind!r} is for probabilities of classes; this model predicts a number.",
            remedy="Leave it out; intervals need none.",
        )
    if reason and (leave_out is not None or kind not in (None, "none")):
        raise UnseenError(
            "calibrate and leave_out make sums over the sites' answers leave in the clear; "
            f"this study has {reason}.",
            remedy="Leave them out: probabilities are then the model's own.",
        )
    default = "temperature" if leave_out is not None and classes is not None else "none"
    return kind or default


class NeuralModel(Protocol):
    """What distances are read from: a network, how its method predicts, and what with."""

    @property
    def model(self) -> Model: ...
    @property
    def method(self) -> Method: ...
    @property
    def inbox(self) -> Inbox: ...


def with_novelty(
    spec: dict[str, Any], tensors: bytes, model: NeuralModel, prepared: Prepared
) -> bytes:
    """Return the tensors with those that distances are measured by, if there are any.

    Args:
        spec: The content of `model.json`, to which the layer's name is added.
        tensors: The content of the safetensors file.
        model: The model.
        prepared: The clients.
    """
    read = novelty_of(model.model, model.method, model.inbox, prepared)
    if read is None:
        return tensors
    novelty, layer = read
    spec.setdefault(KEY, {})["novelty"] = {
        "layer": layer,
        "sites": novelty.sites,
        "features": len(novelty.factor),
    }
    extra = {f"{NOVELTY}{name}": tensor for name, tensor in novelty.tensors().items()}
    return save(load(tensors) | extra)


def size_of(content: Mapping[str, Any], classes: int | None) -> int:
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


def disclosures(content: Mapping[str, Any], classes: int | None) -> list[str]:
    """Return what left each source for all of this, in words."""
    return render(
        "unseen.serving", "decisions.jinja", content=content, classes=classes
    ).splitlines()


class Features:
    """Reads φ of a network's predictions: what its last layer takes, or its input."""

    def __init__(self, network: nn.Module, layer: str) -> None:
        self.layer = dict(network.named_modules())[layer] if layer else None

    def __call__(self, predict: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [N, C] and φ [N, F]."""
        if self.layer is None:
            return predict(x), x.flatten(1)
        features: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
        try:
            outputs = predict(x)
        finally:
            hook.remove()
        return outputs, features[-1].flatten(1).float().cpu()


def last_layer(model: Model, method: Method, inbox: Inbox, x: Tensor) -> str | None:
    """Return the name of the last linear layer of a prediction, or "" for the input.

    Note:
        An ensemble passes its layers more than once or has several last ones, and trees have none:
        then it is the input.
        None where that is too wide.
    """
    order: list[tuple[str, int]] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, i, name=name: order.append((name, i[0].shape[-1]))
        )
        for name, layer in model.module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        model.module.eval()
        with torch.no_grad():
            method.predict(model, inbox, x)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, _ in order]
    several = isinstance(model.module, Mixture) and len(model.module.members) > 1
    if order and not several and names.count(names[-1]) == 1 and order[-1][1] <= WIDEST:
        return names[-1]
    return "" if x[0].numel() <= WIDEST else None


def novelty_of(
    model: Model, method: Method, inbox: Inbox, prepared: Prepared
) -> tuple[Novelty, str] | None:
    """Return what distances are measured by, from what every source would send; and φ's layer."""
    sources = {n: c for n, c in prepared.sources.items() if c.train is not None}
    first = next(iter(sources.values())).split("train").batch(slice(0, 2))[0]
    layer = last_layer(model, method, inbox, first.to(model.device))
    if layer is None:
        return None
    read, classes = Features(model.module, layer), prepared.classes or 1

    def features(site: str, split: str) -> tuple[Tensor, Tensor]:
        data = sources[site].split(split)
        rows = torch.arange(0, len(data), max(1, -(-len(data) // MOST)))
        parts, labels = [], []
        with torch.no_grad():
            for some in rows.split(AT_ONCE):
                x, y = data.batch(some)
                parts.append(read(lambda x: method.predict(model, inbox, x), x.to(model.device))[1])
                labels.append(y.cpu())
        y = torch.cat(labels)
        return torch.cat(parts).cpu(), y.new_zeros(len(y)).long() if prepared.classes is None else y

    sums = [moments(*features(site, "train"), classes) for site in sources]
    novelty = Novelty.of(*(torch.stack(part).sum(0) for part in zip(*sums, strict=True)))
    for site in sources:
        novelty = novelty.with_site(features(site, "validation")[0])
    return novelty, layer
