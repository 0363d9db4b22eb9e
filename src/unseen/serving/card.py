"""The model card: what the model is made from, how good it is where, and what it must not be
taken for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unseen.datasets.cache import readable
from unseen.datasets.standin import NO_RESULT
from unseen.results.study_results import counted
from unseen.serving.intervals import Measured

#: What a site's examples were to the training.
ROLES = {"source": "validation split", "validation": "selection only", "target": "held out"}


def text(spec: Mapping[str, Any], references: Sequence[str]) -> str:
    """The card, as Markdown."""
    parts = [_head(spec), _use(spec), _results(spec), _data(spec), _method(spec, references)]
    parts += [_privacy(spec), _limits(spec), _files(spec)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(spec: Mapping[str, Any]) -> Iterator[str]:
    sites = spec["sites"]
    yield f"# {_line(spec['name'])}"
    yield ""
    count, held = counted(len(sites["sources"]), "site"), ", ".join(sites["targets"])
    yield f"`{spec['model']}`, trained by `{spec['method']}` at {count}; " + (
        f"held out: {held}." if held else "no site was held out."
    )
    classes = spec["classes"]
    if classes is not None:
        yield f"It tells {len(classes)} classes apart: {', '.join(map(_line, classes))}."
    elif (label := spec.get("label")) is not None:
        yield (
            f"It predicts the number {_line(label['name'])}, in its own units: it was trained on "
            f"(y - {label['mean']:.9g}) / {label['deviation']:.9g}, which its answers undo."
        )
    else:
        yield "It predicts a number."
    yield f"Fingerprint `{spec['fingerprint']}`."


def _use(spec: Mapping[str, Any]) -> Iterator[str]:
    yield "## Use"
    yield ""
    if spec["input"]["kind"] != "arrays":
        what = "photos/" if spec["input"]["kind"] == "images" else "rows.csv"
        yield f"    unseen predict DIR {what} --out predictions.csv"
    yield "    unseen evaluate DIR --data DATA"
    yield "    unseen export DIR --format onnx"
    yield ""
    yield "An input is made so:"
    yield ""
    from unseen.serving.inputs import from_json

    for i, step in enumerate(from_json(spec["input"]).steps(), 1):
        yield f"{i}. {step}"


def _results(spec: Mapping[str, Any]) -> Iterator[str]:
    metrics = spec["metrics"]
    yield "## Metrics"
    yield ""
    yield f"| site | what | examples | {' | '.join(metrics)} |"
    yield f"|:--|:--|--:|{'--:|' * len(metrics)}"
    for found in spec["results"]:
        cells = [Measured(*found["metrics"][m]).text("accuracy" in m) for m in metrics]
        site, what = _line(found["site"]), ROLES[found["role"]]
        yield f"| {site} | {what} | {found['examples']} | {' | '.join(cells)} |"
    yield ""
    yield (
        "[...]: 95% bootstrap interval over the examples of that site (1000 samples). It is about "
        "further examples from there, not about another site."
        + (" Accuracies in percent." if any("accuracy" in m for m in metrics) else "")
        + ("" if spec["classes"] is not None else " The loss is the mean squared error.")
    )
    yield (
        "A validation split was not trained on, but its site was, and the round may have been "
        "chosen by it: it flatters the model. "
        + (
            "A held-out site had no part in either."
            if spec["sites"]["targets"]
            else "Nothing here says how the model does at a site that it has not seen."
        )
    )
    if spec["sites with statistics"]:
        yield (
            "Training sites were measured with BatchNorm statistics of their own, which `--site` "
            "takes; everyone else gets the averaged ones."
        )


def _data(spec: Mapping[str, Any]) -> Iterator[str]:
    data = spec["data"]
    yield "## Data"
    yield ""
    yield f"- {data['name']}: {data['source']}; licence: {data['licence']}"
    yield f"- digest {data['digest']}"
    if data.get("stand-in"):
        yield f"- {NO_RESULT}"
    for found in spec["results"]:
        if found["role"] == "source":
            rest = f"{found['trained on']} examples trained on, {found['examples']} for validation"
        else:
            rest = f"{found['examples']} examples: {ROLES[found['role']]}"
        yield f"- {_line(found['site'])}: {rest}"


def _method(spec: Mapping[str, Any], references: Sequence[str]) -> Iterator[str]:
    study = spec["study"]
    recipe = study["training"]
    steps, epochs = recipe["steps"], recipe["epochs"] or 1
    work = counted(steps, "step") if steps else counted(epochs, "epoch")
    chosen = f"{spec['selection']} on {spec['metric']}"
    yield "## Method"
    yield ""
    yield f"- `{spec['method']}`: {counted(study['rounds'], 'round')} of {work}, batch"
    yield f"  {recipe['batch_size']}, `{recipe['optimiser']}`; `model.json` has all settings"
    yield f"- the model is that of round {spec['round']}, chosen by {chosen}"
    if spec.get("precision") == "bf16":
        yield "- trained and asked with products of layers in bfloat16; an export takes float32"
    yield f"- seed {spec['seed']}; initial weights: {spec['weights'] or 'drawn at random'}"
    made = ", ".join(f"{name} {version}" for name, version in spec["versions"].items())
    yield f"- made with {made}"
    for reference in references:
        yield f"- {reference}"
    yield "- BibTeX: `citations.bib`"


def _privacy(spec: Mapping[str, Any]) -> Iterator[str]:
    left = spec["left the sites"]
    yield "## Privacy"
    yield ""
    yield "What left a training site:"
    yield ""
    for what in left["what"]:
        yield f"- {what}"
    yield ""
    if left["by site"]:
        yield "| site | rounds | received | sent |"
        yield "|:--|--:|--:|--:|"
        for site, own in left["by site"].items():
            sizes = f"{readable(own['down'])} | {readable(own['up'])}"
            yield f"| {_line(site)} | {own['rounds']} | {sizes} |"
        yield ""
        yield "Bytes of tensors, without scalars and the envelopes of messages."
    if left["ledger"]:
        yield ""
        yield from left["ledger"]
    yield ""
    yield (
        "The training data were in one place: nothing stayed at its site."
        if left["pooled"]
        else "The sites were simulated in one process: this is what would have been sent. Examples "
        "stay at their site. Whoever receives what is sent in plain form, or this model, may learn "
        "about single examples."
    )


def _limits(spec: Mapping[str, Any]) -> Iterator[str]:
    sites = spec["sites"]
    yield "## Limits"
    yield ""
    n = len(sites["sources"])
    yield f"- {counted(n, 'training site')}, one seed: others may give another model"
    if sites["targets"]:
        held = counted(len(sites["targets"]), "unseen site")
        yield f"- {held}, {', '.join(sites['targets'])}: others may be unlike"
    else:
        yield "- never tried at a site that it was not trained on"
    if below := spec.get("worse than a constant"):
        what = "mean label" if spec["classes"] is None else "classes' shares"
        yield (
            f"- worse than a constant at {', '.join(map(_line, below))}: by {spec['metric']}, "
            f"an answer from the training sites' {what} alone is better there"
        )
    small = [f["site"] for f in spec["results"] if f["examples"] < 30]
    if small:
        yield f"- few examples to measure by (below 30): {', '.join(map(_line, small))}"
    yield from _flags(spec)
    if spec["input"]["kind"] == "table":
        yield "- `predict` refuses a category that no training site had, unless told otherwise"
        if spec["study"]["privacy"].get("columns") is None:
            yield "- `model.json` holds the sites' summed statistics: means, deviations and counts"
    if spec["classes"] is not None:
        yield "- probabilities were not calibrated"
    for warning in spec["warnings"]:
        yield f"- {_line(warning)}"


def _flags(spec: Mapping[str, Any]) -> Iterator[str]:
    """Which inputs `predict` flags, and that others may be as far from training."""
    from unseen.serving.bounds import BOUND

    kept, kind = spec.get("usual inputs"), spec["input"]["kind"]
    far = f"more than {BOUND:g} deviations from training's mean"
    rest = (
        "in the column `unusual`, and `--strict` refuses it; values that are far from training "
        "together, but none by itself, pass"
    )
    if kind == "table":
        public = spec["study"]["privacy"].get("columns") is not None
        where = "outside the public range" if public else far
        where += ", or outside the rounded range of training," if kept else ""
        yield f"- `predict` names a number {where} {rest}"
    elif kind == "images" and kept:
        yield (
            f"- `predict` names an image whose brightness, contrast, detail, colour or size is "
            f"{far}, or outside their rounded range, {rest}; what it shows is not looked at"
        )
    elif kind == "images":
        yield "- `predict` flags no image: what training's were like did not leave the sites"


def _files(spec: Mapping[str, Any]) -> Iterator[str]:
    yield "## Files"
    yield ""
    yield "- `model.safetensors`: the tensors, by the names of the network's own state"
    yield "- `model.json`: everything else that a prediction needs, and how the model came about"
    yield "- `report/report.html`: curves of the training; `training/`: its records"


def _line(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
