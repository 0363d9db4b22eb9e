"""The check of a table, against pandas' reading, means by site and description of the same file.

And reading of labelled rows for training, prediction and evaluation, up to the features of a
network, against pandas' reading and scikit-learn's scaling and encoding.

A csv file of 23 columns: measurements with gaps, whole numbers, categories, a flag and a label at
eight sites.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Goal, interleaved, main, peak_memory

from unseen import Study, train
from unseen.data import load
from unseen.data.summary import inspect
from unseen.data.tables.encoding import encode
from unseen.expression import Call
from unseen.serving.directory import Trained
from unseen.serving.policy import policy_of
from unseen.serving.predict import Columns, writing
from unseen.serving.predictions import predictions
from unseen.serving.reading.labelled import LabelledData, Request

ROWS = (100_000, 1_000_000)
extras = ("pandas",)
goals = [
    Goal("ratio", "CPU seconds of the check, over those of pandas, 100,000 rows", at_most=4),
    Goal("seconds", "CPU seconds of the check of 1,000,000 rows", at_most=20),
    Goal("training", "CPU seconds of reading for training, over theirs", at_most=2),
    Goal("prediction", "CPU seconds of answers from csv to csv, over theirs", at_most=2),
    Goal("evaluation", "CPU seconds of reading labelled rows, over theirs", at_most=2),
    Goal("memory", "MiB that the check of 1,000,000 rows takes", at_most=1024),
]


def write(path: Path, rows: int) -> None:
    """Write a table drawn at random."""
    import pandas

    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"site": draw.choice([f"hospital {i}" for i in range(8)], rows)}
    for j in range(12):
        values = draw.normal(50, 10, rows).round(4) if j % 3 else draw.integers(0, 200, rows) / 1
        columns[f"lab{j}"] = np.where(draw.random(rows) < 0.03 * (j % 4 == 0), np.nan, values)
    for j in range(6):
        columns[f"cat{j}"] = draw.choice([*"abcdefg"][: j + 2], rows)
    columns |= {"code": draw.integers(0, 40, rows), "flag": draw.integers(0, 2, rows)}
    columns["stay"] = draw.exponential(5, rows).round(2)
    columns["died"] = (draw.random(rows) < 0.2).astype(int)
    pandas.DataFrame(columns).to_csv(path, index=False)


def check(path: Path) -> None:
    inspect(Call("table", {"path": str(path), "domain": "site", "label": "died"}), None)


def described(path: Path) -> None:
    import pandas

    frame = pandas.read_csv(path)
    frame.groupby("site").mean(numeric_only=True)
    frame.describe(include="all")


def pipeline() -> Any:
    """Return scikit-learn's gaps, scaling, indicators and logistic regression."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    words = make_column_selector(dtype_exclude="number")
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")), (OneHotEncoder(), words)
    )
    return make_pipeline(columns, LogisticRegression(max_iter=1000))


def rows_of(path: Path) -> tuple[Any, Any]:
    import pandas

    frame = pandas.read_csv(path)
    return frame.drop(columns=["site", "died"]), frame["died"]


def transformed(path: Path) -> None:
    pipeline()[:-1].fit_transform(rows_of(path)[0])


def answered(fitted: Any, path: Path) -> None:
    import pandas

    x, _ = rows_of(path)
    frame = pandas.DataFrame(fitted.predict_proba(x)).assign(prediction=fitted.predict(x))
    frame.to_csv(path.with_suffix(".answers"), index=False)


def for_training(path: Path) -> None:
    data = load("table", None, path=str(path), domain="site", label="died")
    assert data.schema is not None
    statistics = torch.stack([data.schema.sums(domain.x) for domain in data.domains]).sum(0)
    for domain in data.domains:
        encode(data.schema, statistics, domain.x)


def for_prediction(trained: Trained, path: Path) -> None:
    policy = policy_of(trained)
    columns = Columns.of(trained, policy, (), False)
    with writing(path.with_suffix(".lines"), "csv", columns) as write_lines:
        for lines in predictions(trained, [path], policy=policy):
            write_lines(lines)


def for_evaluation(trained: Trained, path: Path) -> None:
    for _ in LabelledData(trained, Request(path)).batches():
        pass


def run(quick: bool) -> dict[str, Any]:
    """Time both in turn on a small file, and the check on a large one."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = (Path(folder) / f"{n}.csv" for n in ("small", "large"))
        write(small, 2_000 if quick else ROWS[0])
        ways = {"pandas": partial(described, small), "check": partial(check, small)}
        repeats = 1 if quick else 5
        timings = interleaved(ways, repeats=repeats)
        measured = timings.rows("23 columns, 100,000 rows", "pandas")
        dataset = f"table(path={str(small)!r}, site='site', label='died')"
        trained = train(Study(dataset=dataset, methods=["glm"]), Path(folder) / "model")
        fitted = pipeline().fit(*rows_of(small))
        readers: dict[str, Callable[[], object]] = {
            "pandas and scikit-learn": partial(transformed, small),
            "their answers": partial(answered, fitted, small),
            "training": partial(for_training, small),
            "prediction": partial(for_prediction, trained, small),
            "evaluation": partial(for_evaluation, trained, small),
        }
        reading = interleaved(readers, repeats=repeats)
        measured += reading.rows("rows as features", "pandas and scikit-learn")
        if quick:
            return {"measured": measured, "goals": {}, "notes": []}
        write(large, ROWS[1])
        alone = interleaved({"check": partial(check, large)}, repeats=3)
        measured += alone.rows("23 columns, 1,000,000 rows", "check")
        goal = {
            "ratio": timings.ratio("check", "pandas", cpu=True).list(),
            "seconds": statistics.median(alone.cpu["check"]),
            "training": reading.ratio("training", "pandas and scikit-learn", cpu=True).list(),
            "prediction": reading.ratio("prediction", "their answers", cpu=True).list(),
            "evaluation": reading.ratio("evaluation", "pandas and scikit-learn", cpu=True).list(),
            "memory": peak_memory(check, partial(Path, str(large))),
        }
    return {"measured": measured, "goals": goal, "notes": []}


if __name__ == "__main__":
    main(__file__)
