"""`unseen train`, `predict`, `evaluate` and `export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import Settings, Site, names
from unseen.cli.model_use import AllowCode, ModelDir, ModelUse, end_with, name_faults
from unseen.serving.answer_options import AnswerOptions, PredictOptions, TrainOptions

if TYPE_CHECKING:
    from unseen.serving.directory import Trained
    from unseen.serving.export import OnnxModel
    from unseen.serving.reading.new_rows import Item


@dataclass(frozen=True)
class Changes:
    """What replaces settings of a study's file, and where its data are.

    Attributes:
        method: Such as "fedprox(mu=0.1)+ga".
        holdout: A site to evaluate on, not to train on; or none.
        seed: Of all random draws.
        weights: Initial weights, .pth or .safetensors.
        device: cpu or cuda.
        data_dir: Where data files are (default: $UNSEEN_DATA).
    """

    method: str | None = None
    holdout: str | None = None
    seed: Annotated[int | None, typer.Option(min=0)] = None
    weights: Path | None = None
    device: str | None = None
    data_dir: Path | None = None


def train(
    changes: Changes,
    options: TrainOptions,
    file: Annotated[str | None, typer.Argument(metavar="[FILE.toml]")] = None,
    settings: Settings = None,
    out: Path | None = None,
    recipe: Path | None = None,
) -> None:
    """Train one model by one federation, for use: on your images, your csv, with your own model.

    FILE.toml is a study's file with one method. All sites train, unless holdout = "NAME" or a
    \\[holdout] table keeps some for an honest evaluation. The directory holds the model, its card,
    the report of its training and its citations.

    Args:
        changes: What replaces settings of the file.
        options: What the directory keeps of the training sites.
        file: A study's file.
        settings: Settings of the file, to be changed.
        out: The model's directory (default: models/NAME).
        recipe: The choice.json of `unseen choose`, instead of FILE.toml.
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
    weights = str(changes.weights) if changes.weights else None
    others = {"holdout": changes.holdout, "device": changes.device, "weights": weights}
    overrides |= {key: value for key, value in others.items() if value is not None}
    if changes.seed is not None:
        overrides["seeds"] = [changes.seed]
    study = study_of(file, overrides, changes.method, expected["study"] if expected else None)
    target, bar = out or Path("models") / study.name, sys.stderr.isatty()
    try:
        trained = run(
            study,
            target,
            options,
            data_dir=changes.data_dir,
            say=print,
            progress=bar,
            expected=expected,
        )
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
    options: PredictOptions,
    use: ModelUse,
    out: Path | None = None,
    form: Annotated[str | None, typer.Option("--format")] = None,
    keep: str | None = None,
) -> None:
    """Predict for images or the rows of csv and Parquet files: classes, numbers or masks.

    What cannot be predicted is named in the output, and the exit code is then 1. The column
    `unusual` names values far from what training saw; with --strict these are not predicted.

    Args:
        model_dir: What `unseen train` wrote.
        inputs: Images, folders of them, csv or Parquet files.
        options: How outputs become answers.
        use: How the model is opened and used.
        out: A file, .csv, .jsonl or .parquet (default: stdout); for masks a folder of PNG files.
        form: csv, jsonl or parquet.
        keep: Columns of the files to copy, such as an identifier.
    """
    from unseen.errors import UnseenError
    from unseen.serving import predict as module
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.bounds import Tally, check_strict
    from unseen.serving.reading.row_files import check_copies

    trained, runtime = use.open(model_dir)
    form_of_lines = module.form_of(form, out) if not trained.masks else ""
    columns, rows = names(keep), trained.spec["input"]["kind"] == "table"
    check_copies(trained.inputs, inputs, columns)
    policy = policy_of(trained, options)
    if options.strict:
        check_strict(trained.bounds)
    if trained.masks:
        if columns or options.accept_unseen or form:
            what = "--format, --keep and --accept-unseen are for rows; this model predicts masks."
            raise UnseenError(what, remedy="Leave them out.")
        return end_with(*write_masks(trained, inputs, out, options, use.batch, runtime))
    faults: list[Item] = []
    count, tally = 0, Tally(trained.bounds)
    every = module.predictions(
        trained, inputs, options, policy=policy, runtime=runtime, batch=use.batch
    )
    cells = module.Columns.of(trained, policy, columns, runtime is not None)
    with module.writing(out, form_of_lines, cells) as write:
        for lines in every:
            write(lines)
            tally.count(lines.batch)
            count += len(lines.batch.usable)
            faults += lines.batch.faults
    for remark in (*policy.notes(), *tally.lines()):
        print(remark, file=sys.stderr)
    end_with(count, faults, rows, "the output")


def write_masks(
    trained: Trained,
    inputs: Sequence[Path],
    out: Path | None,
    options: PredictOptions,
    batch: int | None,
    runtime: OnnxModel | None,
) -> tuple[int, list[Item]]:
    """Write the masks of images and their list into a folder.

    Returns:
        How many images have a mask, and what could not be predicted.
    """
    from unseen.serving.mask_images import LIST, check_out, predict_masks, write_list
    from unseen.serving.reading.bounds import Tally

    folder, tally = check_out(out), Tally(trained.bounds)
    lines = list(predict_masks(trained, inputs, folder, options, runtime=runtime, batch=batch))
    for line in lines:
        tally.add(line.item)
    write_list(folder / LIST, trained.classes or (), lines)
    print("\n".join([*tally.lines(), f"masks and {LIST}: {folder}"]), file=sys.stderr)
    faults = [line.item for line in lines if line.item.error is not None]
    return len(lines) - len(faults), faults


@dataclass(frozen=True)
class Labelled:
    """Data with labels, and what is measured on them.

    Attributes:
        data: A csv or Parquet file, a folder [site/]class/image, or the data set's folder.
        sites: Only these, comma-separated.
        metrics: Such as accuracy,auroc, or all.
        label: The file's column of labels; of times until an event TIME,EVENT.
        site: The file's column of sites.
        groups: Columns of subgroups, whose metrics are shown too, with the worst.
        detail: Add the mean over sites, the worst site, every class and the confusion matrix.
        importance: Exchange the values of each column this often, to see what answers rest on.
    """

    data: Path | None = None
    sites: Annotated[str | None, typer.Option("--sites", "--domains", metavar="NAMES")] = None
    metrics: tuple[str, ...] | None = None
    label: str | None = None
    site: Site = None
    groups: tuple[str, ...] = ()
    detail: bool = False
    importance: Annotated[int, typer.Option(min=0)] = 0


def evaluate(
    model_dir: ModelDir,
    labelled: Labelled,
    options: AnswerOptions,
    use: ModelUse,
    page: Path | None = None,
    onnx: Path | None = None,
    form: Annotated[str, typer.Option("--format")] = "text",
    out: Path | None = None,
) -> None:
    """Measure a model on data with labels: metrics per site, with intervals.

    Without --data it is the data set of training, where UNSEEN_DATA says. What cannot be used is
    named, and the exit code is then 1. Metrics of decisions move with --threshold; --abstain shows
    how many rows are answered, and how many of these rightly; --coverage how often sets or
    intervals hold the truth.

    Args:
        model_dir: What `unseen train` wrote.
        labelled: The data, and what is measured on them.
        options: How outputs become answers.
        use: How the model is opened and used.
        page: Write all of it as one HTML file, with ROC, calibration and decision curves.
        onnx: The export (default: its model.onnx).
        form: text, markdown, csv or json.
        out: A file (default: stdout).
    """
    from unseen.core.atomic import write_atomically
    from unseen.errors import choice
    from unseen.serving.evaluate import evaluate as run
    from unseen.serving.evaluation.evaluation_page import page as as_page
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.labelled import Request

    choice("--format", form, ("text", "markdown", "csv", "json"))
    trained, runtime = use.open(model_dir, onnx)
    request = Request(
        labelled.data,
        names(labelled.sites) or None,
        labelled.metrics,
        labelled.label,
        labelled.site,
        use.batch,
        labelled.groups,
    )
    detail, policy = labelled.detail or page is not None, policy_of(trained, options)
    evaluation = run(trained, request, runtime, policy, detail, labelled.importance)
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
    """Write a model as ONNX for other runtimes, checked against the model on real inputs.

    Without --check these are the data of training, read again from --data-dir. An export that
    differs by more than 1e-4 (of numbers: 1e-4 of their deviation in training), the rounding of
    large numbers aside, is not written.

    Args:
        model_dir: What `unseen train` wrote.
        form: onnx.
        check: Real inputs to check by: images, folders, csv or Parquet files.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: The file (default: in MODEL_DIR).
        allow_code: Let code outside unseen run that the directory names, such as a model of your
            own; without it a directory is data.
    """
    from unseen.errors import choice
    from unseen.serving.export import export as run

    choice("--format", form, ("onnx",))
    exported = run(model_dir, check or (), data_dir, out, allow_code)
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
