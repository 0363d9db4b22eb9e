"""The commands as functions: they take and return frames, and print nothing."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from unseen.data.tables.frames import NAME, arrow_of, is_frame, parquet_of
from unseen.data.tables.sheet import names_of
from unseen.errors import UnseenError, check_known, optional
from unseen.serving import directory, fit
from unseen.serving.answer_options import AnswerOptions, PredictOptions, TrainOptions
from unseen.serving.directory import Trained
from unseen.serving.evaluate import Evaluation
from unseen.serving.evaluate import evaluate as measure
from unseen.serving.policy import policy_of
from unseen.serving.predict import Columns, writing
from unseen.serving.predictions import predictions
from unseen.serving.reading.labelled import Request
from unseen.serving.reading.new_rows import Item, check_frame
from unseen.serving.spreadsheet import restored
from unseen.studies.choice.answer import Choice
from unseen.studies.choice.choice_page import expectation_of
from unseen.studies.choice.rates import around
from unseen.studies.execution import Study
from unseen.studies.results.search_records import SearchRecord
from unseen.studies.settings.study import StudySpec

Folder = str | Path
Options = TypeVar("Options", bound=AnswerOptions)


def train(
    study: StudySpec | Choice | Folder,
    out: Folder,
    *,
    method: str | None = None,
    holdout: str | None = None,
    calibrate: str | None = None,
    leave_out: int | None = None,
    data_dir: Folder | None = None,
    progress: bool = False,
) -> Trained:
    """Train one model by one federation, as `unseen train` does.

    Args:
        study: A study, or its name or file; its settings are `unseen.Study(**settings)`. Or an
            answer of `unseen.choose`, whose recommended recipe is trained at all sites.
        out: The model's directory.
        method: Of several, which.
        holdout: The domain to evaluate on and not to train on.
        calibrate: `temperature`, `platt` or `none`.
        leave_out: Groups of sites that are left out in turn, for calibration and prediction sets.
        data_dir: Where data files are.
        progress: Whether to show a bar.
    """
    if not isinstance(study, StudySpec | Choice | str | Path):
        raise UnseenError(
            f"what is trained is a study, or its name or file; found {type(study).__name__}.",
            remedy="Make a study of settings, unseen.Study(**settings), or ask unseen.choose.",
        )
    overrides = {"holdout": holdout} if holdout is not None else {}
    expected = expectation_of(study.to_json()) if isinstance(study, Choice) else None
    if expected is not None:
        spec = fit.study_of(None, overrides, method, expected["study"])
    elif isinstance(study, StudySpec):
        recipe = study.model_dump(exclude_defaults=True)
        spec = fit.study_of(None, overrides, method, recipe)
    else:
        spec = fit.study_of(str(study), overrides, method)
    return fit.train(
        spec,
        Path(out),
        TrainOptions(None, calibrate, leave_out),
        data_dir=Path(data_dir) if data_dir is not None else None,
        progress=progress,
        expected=expected,
    )


class AnswerKeywords(TypedDict, total=False):
    """Options of `predict` and `evaluate`, those of the commands.

    Attributes:
        threshold: From which probability on class 1 is answered, or a rule.
        abstain: The probability below which there is no answer.
        coverage: Of prediction sets or intervals.
    """

    threshold: str | float | None
    abstain: float | None
    coverage: float | None


class PredictKeywords(AnswerKeywords, total=False):
    """Options of `predict`, those of the command.

    Attributes:
        times: When to give survival, of a model of times; the ends of its intervals by default.
        accept_unseen: Predict rows with categories new to the model.
        strict: Predict nothing for rows far from training.
    """

    times: Sequence[float]
    accept_unseen: bool
    strict: bool


def predict(
    model: Trained | Folder,
    data: Any,
    *,
    allow_code: bool = False,
    **options: Unpack[PredictKeywords],
) -> Any:
    """Return a data frame with an answer for each row or image; its columns are the command's.

    Args:
        model: A model, or its directory.
        data: A data frame, a file or a folder, or several files and folders.
        allow_code: Whether code outside `unseen` that a directory names may run.
        options: See `PredictKeywords`.
    """
    pandas = optional("pandas", "unseen.predict needs", "pandas", "take the command")
    asked = options_of(PredictOptions, PredictKeywords, options)
    trained = opened(model, allow_code)
    policy = policy_of(trained, asked)
    columns, framed = Columns.of(trained, policy, (), False), is_frame(data)
    rows = arrow_of(data) if framed else None
    if rows is not None:
        check_frame(trained.inputs, rows.column_names)
    with tempfile.TemporaryDirectory(prefix="unseen-") as place:
        empty = rows is not None and not len(rows)
        paths = [] if empty else files_of(data if rows is None else rows, Path(place))
        every = predictions(trained, paths, asked, policy=policy)
        path = Path(place) / "answers.csv"
        with writing(path, "csv", columns) as write_lines:
            for lines in every:
                write_lines(lines)
        kinds = {"prediction": "str"} | dict.fromkeys(columns.numbers, "float")
        # An answer may be called None or NA.
        frame = pandas.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
        for name in frame.columns.difference(columns.numbers):
            frame[name] = frame[name].map(restored, na_action="ignore")
    if framed:
        frame = frame.drop(columns=["input", "line"])
        frame = frame.set_axis(data.index) if hasattr(data, "index") else frame
    return frame


class EvaluateKeywords(AnswerKeywords, total=False):
    """Options of `evaluate`, those of the command.

    Attributes:
        metrics: Names of metrics, one or several, or "all".
        label: The column of labels; of times until an event "TIME,EVENT".
        domain: The column of domains.
        domains: Only these, one or several.
        groups: Columns of subgroups, one or several.
    """

    metrics: str | Sequence[str] | None
    label: str | None
    domain: str | None
    domains: str | Sequence[str] | None
    groups: str | Sequence[str]


def evaluate(
    model: Trained | Folder,
    data: Any = None,
    *,
    detail: bool = False,
    importance: int = 0,
    allow_code: bool = False,
    **options: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Return a model's metrics at every domain, with intervals, as `unseen evaluate` does.

    Args:
        model: A model, or its directory.
        data: A data frame or a file with labels; None for the data of training.
        detail: Whether to add the mean over sites, classes and the confusion matrix.
        importance: How often each column's values are exchanged, to see what answers rest on.
        allow_code: Whether code outside `unseen` that a directory names may run.
        options: See `EvaluateKeywords`.

    Raises:
        UnseenError: No row or image could be measured. Where some could, the result's `faults`
            name the others.
    """
    asked = options_of(AnswerOptions, EvaluateKeywords, options)
    trained = opened(model, allow_code)
    policy = policy_of(trained, asked)
    domains, metrics = options.get("domains"), options.get("metrics")
    framed = is_frame(data)
    if framed:
        data = arrow_of(data)
        check_frame(trained.inputs, data.column_names)
    with tempfile.TemporaryDirectory(prefix="unseen-") as place:
        (path,) = files_of(data, Path(place)) if data is not None else (None,)
        request = Request(
            path,
            names_of(domains) if domains is not None else None,
            names_of(metrics) if metrics is not None else None,
            options.get("label"),
            options.get("domain"),
            groups=names_of(options.get("groups", ())),
            called=NAME if framed else "",
        )
        evaluation = measure(trained, request, None, policy, detail, importance)
        if framed:
            faults = tuple(map(_in_frame, evaluation.faults))
            evaluation = replace(evaluation, faults=faults)
    if not evaluation.sites:
        raise _unusable(evaluation.faults)
    return evaluation


def report(folder: Folder, out: Folder) -> Path:
    """Write the page of finished runs, and return where it lies."""
    from unseen.studies.report.write import report as write_report

    return write_report(folder, out)


def tune(
    study: StudySpec,
    out: Folder,
    *,
    space: Mapping[str, str] | None = None,
    trials: int | None = None,
    jobs: int = 1,
    data_dir: Folder | None = None,
    progress: bool = False,
) -> tuple[SearchRecord, ...]:
    """Search settings on the sources alone, as `unseen tune` does.

    All domains are sources, unless the study sets `holdout` or `targets`.

    Args:
        study: The study.
        out: The folder of the trials.
        space: Setting -> its text with ranges, such as `sgd(lr=log(0.001, 1))`. Where neither this
            nor the study names a setting, it is the learning rate, from a tenth to ten times.
        trials: For each method.
        jobs: Processes.
        data_dir: Where data files are.
        progress: Whether to show a bar.
    """
    search: dict[str, Any] = study.tune.model_dump() if study.tune is not None else {}
    search |= {"trials": trials} if trials is not None else {}
    search["space"] = {**search.get("space", {}), **(space or {})}
    if not search["space"]:
        search["space"] = {"training.optimiser": around(study.training.optimiser)}
    values = study.model_dump(exclude_defaults=True) | {"tune": search}
    if not study.model_fields_set & {"holdout", "targets"}:
        values["holdout"] = "none"
    return Study(**values).search(out, jobs, data_dir, progress)


def _in_frame(fault: Item) -> Item:
    """Return a fault with its row's place in the frame, which a Parquet file counts from 1."""
    if fault.line is None:
        return replace(fault, source=NAME)
    return replace(fault, source=f"row {fault.line - 1}", line=None)


def _unusable(faults: Sequence[Item]) -> UnseenError:
    """Return the error for data of which nothing could be measured."""
    if not faults:
        return UnseenError("none of the data can be measured: no row has a label.")
    more = f" (the first of {len(faults)})" if len(faults) > 1 else ""
    return UnseenError(f"none of the data can be measured; {faults[0]}{more}.")


def options_of(kind: type[Options], keywords: type, values: Mapping[str, object]) -> Options:
    """Return the options of a command from keywords; refuse those that are not in the class."""
    check_known("option", keywords.__annotations__, *values)
    own: dict[str, Any] = {f.name: values.get(f.name) for f in fields(kind)}
    own = {name: value for name, value in own.items() if value is not None}
    if "threshold" in own:
        own["threshold"] = str(own["threshold"])
    if "times" in own:
        own["times"] = tuple(own["times"])
    return kind(**own)


def opened(model: Trained | Folder, allow_code: bool = False) -> Trained:
    """Return a model, read from its directory unless it is there already."""
    if isinstance(model, Trained):
        return model
    return directory.read(model, allow_code=allow_code)


def files_of(data: Any, place: Path) -> list[Path]:
    """Return the files of data; the rows of a data frame are written to one."""
    if isinstance(data, str | Path):
        return [Path(data)]
    if is_frame(data):
        path = place / "rows.parquet"
        path.write_bytes(parquet_of(data))
        return [path]
    if isinstance(data, Sequence) and all(isinstance(item, str | Path) for item in data):
        return [Path(item) for item in data]
    raise UnseenError(
        "data is a data frame, a file or a folder, or several of the last two; found "
        f"{type(data).__name__}."
    )
