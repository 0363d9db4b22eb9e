"""`unseen train`, `predict`, `evaluate` and `export`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import Settings, Site, names, numbers
from unseen.cli.model_use import end_with, export_of, name_code, name_faults

ModelDir = Annotated[Path, typer.Argument(metavar="MODEL_DIR")]
Count = Annotated[int, typer.Option(min=0)]
Batch = Annotated[int | None, typer.Option(min=1)]
#: A training site whose own BatchNorm statistics are used.
AsSite = Annotated[str | None, typer.Option(metavar="SITE")]
AllowCode = Annotated[bool, typer.Option("--allow-code")]


def train(
    file: Annotated[str | None, typer.Argument(metavar="[FILE.toml]")] = None,
    settings: Settings = None,
    out: Path | None = None,
    method: str | None = None,
    recipe: Path | None = None,
    holdout: str | None = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    weights: Path | None = None,
    device: str | None = None,
    data_dir: Path | None = None,
    ranges: Annotated[bool | None, typer.Option("--ranges/--no-ranges")] = None,
    calibrate: str | None = None,
    leave_out: Annotated[int | None, typer.Option(min=2)] = None,
) -> None:
    """Train one model by one federation, for use: on your images, your csv, with your own model.

    FILE.toml is a study's file with one method. All sites train, unless holdout = "NAME" or a
    \\[holdout] table keeps some for an honest evaluation. The directory holds the model, its card,
    the report of its training and its citations.

    Args:
        file: A study's file.
        settings: Settings of the file, to be changed.
        out: The model's directory (default: models/NAME).
        method: Such as "fedprox(mu=0.1)+ga".
        recipe: The choice.json of `unseen choose`, instead of FILE.toml.
        holdout: A site to evaluate on, not to train on; or none.
        seed: Of all random draws.
        weights: Initial weights, .pth or .safetensors.
        device: cpu or cuda.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        ranges: Keep what training's inputs were like, for `predict` to flag others; left out: where
            privacy.channel is clear and no noise was asked for.
        calibrate: temperature, platt or none; left out: temperature with --leave-out, else none.
        leave_out: Train again without each of this many groups of training sites, so that
            calibration, thresholds and prediction sets are of sites that no model had seen.
    """
    from unseen.core.metrics.class_metrics import looked_for
    from unseen.serving.fit import site_rows, study_of
    from unseen.serving.fit import train as run
    from unseen.studies.results.formats import plain
    from unseen.studies.settings.named import parse_override

    expected = None
    if recipe is not None:
        from unseen.studies.choice.choice_page import expectation

        expected = expectation(recipe)
        if file is not None and "=" in file:  # a setting: there is no file
            settings, file = [file, *(settings or [])], None
    overrides = dict(map(parse_override, settings or []))
    others = {"holdout": holdout, "device": device, "weights": str(weights) if weights else None}
    overrides |= {key: value for key, value in others.items() if value is not None}
    if seed is not None:
        overrides["seeds"] = [seed]
    study = study_of(file, overrides, method, expected["study"] if expected else None)
    target = out or Path("models") / study.name
    try:
        trained = run(study, target, data_dir, print, sys.stderr.isatty(), ranges, expected,
                      calibrate, leave_out)  # fmt: skip
    except KeyboardInterrupt:
        print("Stopped. Run the same command to resume.", file=sys.stderr)
        raise typer.Exit(130) from None
    spec = trained.spec
    rows = [[(text, "") for text in row] for row in site_rows(spec["results"], spec["metrics"])]
    percent = any("accuracy" in name for name in spec["metrics"])
    note = "[...]: 95% interval over the site's examples"
    note += "; none from fewer than ten of the rarer kind"
    notes = [note + "; accuracies in percent" * percent]
    notes += filter(None, [looked_for(spec["metrics"], spec["classes"])])
    if worse := spec.get("worse than a constant"):
        notes.append(f"worse than a constant: {', '.join(worse)}")
    print(plain("", [rows], notes))
    print(f"model, card and report: {target}")


def predict(
    model_dir: ModelDir,
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...")],
    out: Path | None = None,
    form: Annotated[str | None, typer.Option("--format")] = None,
    keep: str | None = None,
    accept_unseen: bool = False,
    strict: bool = False,
    threshold: str | None = None,
    abstain: float | None = None,
    coverage: float | None = None,
    times: str | None = None,
    runtime: str = "torch",
    as_site: AsSite = None,
    batch: Batch = None,
    device: str = "cpu",
    profile: bool = False,
    allow_code: AllowCode = False,
) -> None:
    """Predict for images or the rows of csv and Parquet files: classes, numbers or masks.

    What cannot be predicted is named in the output, and the exit code is then 1. The column
    `unusual` names values far from what training saw; with --strict these are not predicted.

    Args:
        model_dir: What `unseen train` wrote.
        inputs: Images, folders of them, csv or Parquet files.
        out: A file, .csv, .jsonl or .parquet (default: stdout); for masks a folder of PNG files.
        form: csv, jsonl or parquet.
        keep: Columns of the files to copy, such as an identifier.
        accept_unseen: Predict rows with categories new to the model.
        strict: Predict nothing for inputs far from what training saw.
        threshold: From which probability on class 1 of two is answered: a number, or a rule on the
            training sites: youden, sensitivity>=0.9, specificity>=0.9, cost=10:1 (a miss costs
            ten false alarms).
        abstain: Answer nothing where the answer's probability is below this.
        coverage: Add prediction sets, or intervals of numbers, that hold the truth of a new site's
            row at least this often, such as 0.8.
        times: When to give survival, such as 90,365 (default: the ends of the model's intervals).
        runtime: torch, or onnx for its export.
        as_site: Use this training site's own BatchNorm statistics, if the model has them.
        batch: Inputs per pass (default: 32 images or 512 rows).
        device: cpu or cuda.
        profile: Print where the time went.
        allow_code: Let code outside unseen run that the directory names, such as a model of your
            own; without it a directory is data.
    """
    start = time.perf_counter()
    from unseen.cli.mask_command import of_masks
    from unseen.errors import choice
    from unseen.serving import predict as module
    from unseen.serving.directory import read
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.bounds import Tally, check_strict
    from unseen.serving.reading.new_rows import Clock
    from unseen.serving.reading.row_files import check_copies

    choice("--runtime", runtime, ("torch", "onnx"))
    clock = Clock({"imports": time.perf_counter() - start})
    with clock.phase("loading"):
        trained = read(model_dir, device, allow_code)
        name_code(trained)
        trained.at(as_site)
        other = export_of(trained, None, as_site) if runtime == "onnx" else None
    lines_form = module.form_of(form, out) if not trained.masks else ""
    columns, rows = names(keep), trained.spec["input"]["kind"] == "table"
    check_copies(trained.inputs, inputs, columns)
    policy = policy_of(trained, threshold, abstain, coverage, numbers("--times", times))
    count, faults, tally = 0, [], Tally(trained.bounds)
    if strict:
        check_strict(trained.bounds)
    if trained.masks:
        asked, how_masks = columns or accept_unseen or form, (other, batch, clock, strict)
        return end_with(*of_masks(trained, inputs, out, asked, how_masks, profile))
    how = (other, batch, clock, accept_unseen, strict, policy)
    cells = module.Columns.of(trained, policy, columns, other is not None)
    with module.writing(out, lines_form, cells) as write:
        for lines in module.predictions(trained, inputs, *how):
            with clock.phase("writing"):
                write(lines)
            tally.count(lines.batch)
            count += len(lines.batch.usable)
            faults += lines.batch.faults
    if profile:
        print("\n".join(clock.lines()), file=sys.stderr)
    for remark in (*policy.notes(), *tally.lines()):
        print(remark, file=sys.stderr)
    end_with(count, faults, rows, "the output")


def evaluate(
    model_dir: ModelDir,
    data: Path | None = None,
    sites: Annotated[str | None, typer.Option("--sites", "--domains", metavar="NAMES")] = None,
    metrics: str | None = None,
    label: str | None = None,
    site: Site = None,
    groups: str | None = None,
    threshold: str | None = None,
    abstain: float | None = None,
    coverage: float | None = None,
    detail: bool = False,
    importance: Count = 0,
    page: Path | None = None,
    runtime: str = "torch",
    onnx: Path | None = None,
    as_site: AsSite = None,
    form: Annotated[str, typer.Option("--format")] = "text",
    out: Path | None = None,
    batch: Batch = None,
    device: str = "cpu",
    allow_code: AllowCode = False,
) -> None:
    """Measure a model on data with labels: metrics per site, with intervals.

    Without --data it is the data set of training, where UNSEEN_DATA says. What cannot be used is
    named, and the exit code is then 1.

    Args:
        model_dir: What `unseen train` wrote.
        data: A csv or Parquet file, a folder [site/]class/image, or the data set's folder.
        sites: Only these, comma-separated.
        metrics: Such as accuracy,auroc, or all.
        label: The file's column of labels; of times until an event TIME,EVENT.
        site: The file's column of sites.
        groups: Columns of subgroups, whose metrics are shown too, with the worst.
        threshold: As for predict; metrics of decisions move with it.
        abstain: As for predict; shows how many rows are answered, and how many of these rightly.
        coverage: As for predict; shows how often sets or intervals hold the truth.
        detail: Add the mean over sites, the worst site, every class and the confusion matrix.
        importance: Exchange the values of each column this often, to see what answers rest on.
        page: Write all of it as one HTML file, with ROC, calibration and decision curves.
        runtime: torch, or onnx for its export.
        onnx: The export (default: its model.onnx).
        as_site: Use this training site's own BatchNorm statistics, if the model has them.
        form: text, markdown, csv or json.
        out: A file (default: stdout).
        batch: Inputs per pass (default: 32 images or 512 rows).
        device: cpu or cuda.
        allow_code: Let code outside unseen run that the directory names; see predict.
    """
    from unseen.core.atomic import write_atomically
    from unseen.errors import choice
    from unseen.serving.directory import read
    from unseen.serving.evaluate import evaluate as run
    from unseen.serving.evaluation.evaluation_page import page as as_page
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.labelled import Request

    choice("--runtime", runtime, ("torch", "onnx"))
    choice("--format", form, ("text", "markdown", "csv", "json"))
    trained = read(model_dir, device, allow_code)
    name_code(trained)
    trained.at(as_site)
    other = export_of(trained, onnx, as_site) if runtime == "onnx" or onnx is not None else None
    policy = policy_of(trained, threshold, abstain, coverage)
    few = names(sites) or None, names(metrics) or None
    request = Request(data, *few, label, site, batch, names(groups))
    evaluation = run(trained, request, other, policy, detail or page is not None, importance)
    if page is not None:
        write_atomically(page, as_page(trained, evaluation).encode())
    if out is not None:
        write_atomically(out, evaluation.text(form).encode())
    elif evaluation.sites:
        print(evaluation.text(form), end="")
    used = sum(site.examples for site in evaluation.sites)
    end_with(used, evaluation.faults, trained.spec["input"]["kind"] == "table", "--format json")


def export(
    model_dir: ModelDir,
    form: Annotated[str, typer.Option("--format")] = "onnx",
    check: list[Path] | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    allow_code: AllowCode = False,
) -> None:
    """Write a model for other runtimes, checked against the model on real inputs.

    Without --check these are the data of training, read again from --data-dir. An export that
    differs by more than 1e-4 (of numbers: 1e-4 of their deviation in training), the rounding of
    large numbers aside, is not written.

    Args:
        model_dir: What `unseen train` wrote.
        form: onnx or torch-export.
        check: Real inputs to check by: images, folders, csv or Parquet files.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: The file (default: in MODEL_DIR).
        allow_code: Let code outside unseen run that the directory names, such as a model of your
            own; without it a directory is data.
    """
    from unseen.serving.export import export as run

    exported = run(model_dir, form, check or (), data_dir, out, allow_code)
    name_faults(exported.faults, None)
    print(
        f"checked on {exported.checked}: largest difference {exported.difference:.1e}, "
        f"{exported.allowed:.0e} allowed"
    )
    if exported.rounding is not None:
        print(
            "the model computes in bfloat16, its export in float32: outputs change by up to "
            f"{exported.rounding:.1e}{exported.unit}"
        )
    print(f"{exported.path}, its inputs and outputs described in {exported.path.name}.md")
