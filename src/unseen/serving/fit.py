"""One federation from a study's file to a directory with a model that is ready for use."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast, get_args

from safetensors.torch import load, save

from unseen.core.atomic import write_atomically
from unseen.core.exchange import Method
from unseen.core.metrics.evaluation import LOWER, METRICS, UNORDERED
from unseen.core.record_lines import Record
from unseen.data.dataset import UNIT
from unseen.errors import UnseenError, choice, number
from unseen.serving import directory
from unseen.serving.answer_options import TrainOptions
from unseen.serving.decisions import (
    KEY,
    Calibrate,
    Evidence,
    decide_by,
    disclosures,
    size_of,
)
from unseen.serving.description import ROLES, card, not_in_the_clear
from unseen.serving.directory import Trained
from unseen.serving.evaluation.measures import Measured, cells, measured
from unseen.serving.novelty import novelty_of
from unseen.serving.one_model import RECORDS, Fitted, answers_of, fit_model, left_out, validation_of
from unseen.studies.execution.plan import Plan
from unseen.studies.execution.prepare import Prepared
from unseen.studies.results.selection import beside_constant, value
from unseen.studies.settings.holdout import PLANS
from unseen.studies.settings.named import put_all, settings_of
from unseen.studies.settings.study import StudySpec

#: Where the report of the training lies in the model's directory.
REPORT = "report"
#: Said where no later round was better.
FIRST = (
    "this is the first round: by {metric} nothing that came later is better on the training sites' "
    "validation rows. Another metric may tell more (`metric=...`), such as one of probabilities"
)


def study_of(
    file: str | None,
    overrides: Record,
    method: str | None = None,
    recipe: Record | None = None,
) -> StudySpec:
    """Return the study of one model: one method, one seed, one task.

    Args:
        file: A study's file or name. Without `holdout` it holds no domain out; `holdout = "name"`
            holds out that domain. The first of several seeds is used.
        overrides: Settings that replace the file's.
        method: The method; None for the file's.
        recipe: The settings instead of a file's, as `unseen choose` writes them.
    """
    if (file is None) == (recipe is None):
        raise UnseenError(
            "a model is trained by a study's file or by the answer of `unseen choose`.",
            remedy="Write: unseen train FILE.toml, or unseen train --recipe DIR/choice.json.",
        )
    settings = settings_of(file)[0] if file is not None else dict(recipe or {})
    changed = dict(overrides)
    if not {"holdout", "targets"} & {key.partition(".")[0] for key in (*settings, *changed)}:
        changed["holdout"] = "none"
    holdout = changed.get("holdout", settings.get("holdout"))
    if isinstance(holdout, str) and holdout not in PLANS:
        changed |= {"holdout": "leave-one-domain-out", "targets": [holdout]}
    if method is not None:
        changed["methods"] = [method]
    if file is not None:
        study = StudySpec.read(file, changed)
    else:
        put_all(settings, changed)
        study = StudySpec(**settings)
    if len(study.methods) > 1:
        raise UnseenError(
            f"a model is trained by one method; the study has {', '.join(study.methods)}.",
            remedy="Choose with --method (in Python: method=...).",
        )
    if study.tune is not None:
        raise UnseenError(
            "a model is trained by one setting, and the file has a [tune] table.",
            remedy="Search first with `unseen tune`, and train the file that it writes.",
        )
    if {"locals"} & set(study.save):
        raise UnseenError("save = ['locals'] is for studies;", remedy="leave it out.")
    if study.partition:
        what = "partition makes several clients of a domain, for studies; a model's sites are real."
        raise UnseenError(what, remedy="Leave it out.")
    return study.model_copy(
        update={"seeds": study.seed_list[:1], "save": ("selected",), "published": {}}
    )


def train(
    study: StudySpec,
    out: Path,
    options: TrainOptions = TrainOptions(),
    *,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = False,
    expected: Record | None = None,
) -> Trained:
    """Train the study's one model, choose its round, and write the directory.

    Args:
        study: As `study_of` returns it.
        out: The directory. What was trained there with the same settings is not trained again.
        options: What the directory keeps of the training sites beside the model. Without
            `leave_out`, calibration and thresholds are of the sites' validation splits.
        data_dir: The data folder.
        say: Receives lines of progress.
        progress: Whether to show a bar of the rounds.
        expected: What `unseen choose` expects at a new site, for the card.

    Raises:
        UnseenError: The model that was written, read again, does not give the recorded figures.
    """
    reason, leave_out = not_in_the_clear(study), options.leave_out
    check = partial(check_decisions, options=options, reason=reason)
    fitted = fit_model(study, out, data_dir, say, progress, options.ranges, check)
    kind = check(fitted.planned, fitted.prepared)
    spec, prepared, metrics = fitted.spec, fitted.prepared, fitted.planned.setting.metrics
    if expected is not None:
        same = expected["data"].split()[-1] == fitted.planned.setting.data
        rest = {name: value for name, value in expected.items() if name != "study"}
        spec["expected at a new site"] = {**rest, "same data": same}
    spec["results"] = results(fitted.trained, prepared, metrics)
    records = (*fitted.records.source, *fitted.records.target)
    evaluated = [record for record in records if record["round"] == spec["round"] - 1]
    _check_results(spec, evaluated)
    if worse := beside_constant(evaluated, fitted.records.constant)[0].get(spec["metric"]):
        spec["worse than a constant"] = list(worse)
    decides = prepared.classes == 2 and not prepared.masks
    evidence, tensors = None, fitted.tensors
    if not reason and (leave_out is not None or decides or kind != "none"):
        evidence = validation_of(fitted.trained, prepared)
        if leave_out is not None:
            evidence = left_out(study, fitted.planned, leave_out, out, data_dir, say)
        spec[KEY] = _decisions(fitted, evidence, kind)
    private = reason or study.privacy.columns is not None
    if options.ranges is not False and not private and not prepared.masks:
        tensors = _with_novelty(fitted)
    left = spec["left the sites"]
    left["what"] += disclosures(spec.get(KEY, {}), prepared.classes)
    for traffic in left["by site"].values():
        traffic["up"] += size_of(spec.get(KEY, {}), prepared.classes)
    directory.write(out, spec, tensors)
    trained = directory.read(out, allow_code=True)
    if calibrated := trained.decisions.calibration is not None:
        spec["results"] = results(trained, prepared, metrics)
    warnings = [*filter(None, (below_expected(spec, evidence), unlearned_classes(spec, evidence)))]
    for warning in warnings:
        say(f"warning: {warning}")
    spec["warnings"] = [*warnings, *spec["warnings"]]
    if calibrated or warnings:
        directory.write(out, spec, tensors)
        trained = directory.read(out, allow_code=True)
    write_pages(out, trained.spec, fitted.method, fitted.planned.data.citation)
    of = "" if fitted.method.rounds is not None else f" of {study.rounds}"
    say(f"round {spec['round']}{of}, by {spec['selection']} on {spec['metric']}")
    if fitted.method.rounds is None and spec["round"] <= study.evaluate_every < study.rounds:
        say(FIRST.format(metric=spec["metric"]))
    return trained


def _decisions(fitted: Fitted, evidence: Evidence, kind: Calibrate) -> Record:
    """Return what the directory keeps to act by; sets only of sites that were left out."""
    scale, weights = fitted.trained.scale, fitted.planned.setting.study.training.weights
    unit = scale.deviation if scale is not None else 1.0
    content = decide_by(evidence, fitted.prepared.classes, kind, weights == "uniform", unit)
    if evidence.kind == "validation":
        del content["sets"]  # they would promise too much
    return content


def _with_novelty(fitted: Fitted) -> bytes:
    """Return the tensors with those that distances are measured by; the layer is in the content."""
    trained = fitted.trained
    read = novelty_of(trained.model, trained.method, trained.inbox, fitted.prepared)
    if read is None:
        return fitted.tensors
    novelty, layer = read
    about = {"layer": layer, "sites": novelty.sites, "features": len(novelty.factor)}
    fitted.spec.setdefault(KEY, {})["novelty"] = about
    return save(load(fitted.tensors) | novelty.tensors())


def check_decisions(
    planned: Plan, prepared: Prepared, options: TrainOptions, reason: str
) -> Calibrate:
    """Return the calibration that will be fitted; refuse what cannot be done with the model.

    By default it is temperature where sites are left out, and none where they are not: fitted to
    the validation splits of sites that were trained on, it often helps at another site, but can
    make probabilities there much worse (docs/results/prediction-sets.md).
    """
    kind, leave_out, what = options.calibrate, options.leave_out, ""
    if kind is not None:
        choice("calibrate", kind, get_args(Calibrate))
    if leave_out is not None:
        number("leave_out", leave_out, 2, whole=True)
    calibrates = kind not in (None, "none")
    if calibrates or leave_out is not None:
        if prepared.masks:
            what = "calibrate and leave_out are for answers of one class or number per example. "
            what += "This model predicts masks."
        elif prepared.times:
            what = "leave_out and calibrate are for classes and numbers; this model is of times."
        elif calibrates and prepared.classes is None:
            what = f"calibrate = {kind!r} is for probabilities of classes; this model predicts a "
            what += "number."
        elif reason:
            what = "calibrate and leave_out make sums over the sites' answers leave in the clear; "
            what += f"this study has {reason}."
        elif leave_out is not None and len(planned.tasks[0].sources) < 3:
            what = (
                "leave_out needs three training sites or more: one to leave out and two to train "
            )
            what += "on."
    if what:
        raise UnseenError(what, remedy="Leave them out: probabilities are then the model's own.")
    default = "temperature" if leave_out is not None and prepared.classes is not None else "none"
    return cast(Calibrate, kind or default)


def write_pages(out: Path, spec: Record, method: Method, citation: str = "") -> None:
    """Write the card, the citations and the report of the training beside a model."""
    from unseen.studies.report.citations import bibtex
    from unseen.studies.report.write import report

    cited = bibtex((method.name, reference) for reference in method.references)
    entries = "\n\n".join(filter(None, [cited, citation]))
    write_atomically(out / "citations.bib", f"{entries}\n".encode())
    text = card(spec, [r.text for r in method.references])
    write_atomically(out / "README.md", text.encode())
    if spec["metrics"]:
        report(out / RECORDS, out / REPORT, files=False)


def results(trained: Trained, prepared: Prepared, metrics: Sequence[str]) -> list[Record]:
    """Return every site's metrics with intervals, as `model.json` has them."""
    roles = zip(ROLES, (prepared.sources, prepared.validators, prepared.targets), strict=True)
    sites = []
    for role, name, client in ((r, n, c) for r, clients in roles for n, c in clients.items()):
        trained.at(name if name in trained.sites else None)
        split = client.split("validation")
        outputs, y = answers_of(trained, prepared, split)
        units = split.meta.get(UNIT)
        values = {m: list(v) for m, v in measured(outputs, y, metrics, units=units).items()}
        trains = len(client.train) if client.train is not None else 0
        sites.append(
            {
                "site": name,
                "role": role,
                "trained on": trains,
                "examples": len(split),
                "metrics": values,
            }
        )
    trained.at(None)
    return sites


def _check_results(spec: Record, evaluated: Sequence[Record]) -> None:
    records = {record["domain"]: record for record in evaluated}
    for site in spec["results"]:
        for metric, (now, _, _) in site["metrics"].items():
            then = value(records[site["site"]], metric)
            # Equal but for the rounding of another batch; NaN stands for an undefined metric.
            pair = [math.nan if x is None else x for x in (now, then)]
            if now is not then and not math.isclose(*pair, rel_tol=1e-4, abs_tol=1e-4):
                raise UnseenError(
                    f"the model that was written gives {metric} {now} at {site['site']}, and "
                    f"{then} was recorded: its directory does not hold all that it predicts with.",
                    remedy="Please report this with the study's file.",
                )


def site_rows(results: Sequence[Record], metrics: Sequence[str]) -> list[list[str]]:
    """Return a header and a row per site, as text."""
    body = (
        [r["site"], ROLES[r["role"]], str(r["examples"]), *cells(r["metrics"])] for r in results
    )
    return [["site", "role", "examples", *metrics], *body]


def below_expected(spec: Record, evidence: Evidence | None) -> str:
    """Return a warning where a model does worse at its own sites than is expected of it elsewhere.

    What is expected comes of models that were trained without some sites. The model of all sites
    that is handed out may still have failed, and nothing else would show it.
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


def unlearned_classes(spec: Record, evidence: Evidence | None) -> str:
    """Return a warning where calibration rests on answers about classes that a model never met."""
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
