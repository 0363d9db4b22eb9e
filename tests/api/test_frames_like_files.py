"""A data frame means what the same rows mean as a file, in training and in use."""

import csv
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import unseen
from unseen.data.tables.frames import arrow_of, parquet_of
from unseen.errors import UnseenError
from unseen.serving.evaluate import Site
from unseen.serving.reading.new_rows import from_mappings


def rows(count: int = 120, gap: bool = False) -> pandas.DataFrame:
    """Three sites whose label follows from two numbers; with gaps, every fourth age is −9."""
    draws = np.random.default_rng(0)
    age, dose = draws.normal(60, 9, count).round(), draws.normal(size=count).round(2)
    died = np.where(age - 60 + 9 * dose + draws.normal(size=count) * 3 > 0, "yes", "no")
    age = np.where(np.arange(count) % 4 == 0, -9, age) if gap else age
    site = np.array(["east", "north", "south"])[np.arange(count) % 3]
    drug = np.array(list("ab"))[draws.integers(0, 2, count)]
    return pandas.DataFrame(
        {"site": site, "age": age.astype(int), "dose": dose, "drug": drug, "died": died}
    )


def study(data: Any, **options: Any) -> unseen.Study:
    if isinstance(data, Path):
        names = {"domain": "site", "label": "died", **options}
        listed = ", ".join(f"{name}={value!r}" for name, value in names.items())
        return unseen.Study(dataset=f"table(path={str(data)!r}, {listed})", methods=["glm"])
    return unseen.Study(dataset=data, domain="site", label="died", methods=["glm"], **options)


def trained(data: Any, out: Path, **options: Any) -> Any:
    return unseen.train(study(data, **options), out / "model")


def written(frame: pandas.DataFrame, folder: Path) -> Path:
    path = folder / "rows.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("missing", [[-9], ["-9"], -9])
@pytest.mark.parametrize("kind", [int, float])
def test_a_code_for_missing_is_one_in_use_however_it_is_spelt(
    missing: Any, kind: type, tmp_path: Path
) -> None:
    frame = rows(gap=True)
    model = trained(frame.astype({"age": kind}), tmp_path, missing=missing)
    assert "age missing" in model.inputs.features
    gap = frame.iloc[:1]
    coded, floating = gap, gap.astype({"age": float})
    empty = gap.astype({"age": float}).assign(age=np.nan)
    answers = [unseen.predict(model, cells)["p(yes)"].item() for cells in (coded, floating, empty)]
    assert answers == [answers[0]] * 3
    (items,) = from_mappings(model.inputs, [{**gap.iloc[0].to_dict(), "age": None}], None, False)
    assert items[0].error is None


def test_a_file_with_a_code_and_a_frame_with_a_gap_have_one_answer(tmp_path: Path) -> None:
    frame = rows(gap=True)
    path = written(frame, tmp_path)
    model = trained(path, tmp_path, missing=[-9])
    read = pandas.read_csv(path, na_values=["-9"])
    assert read.age.isna().any()
    by_file = unseen.predict(model, path)["p(yes)"]
    np.testing.assert_array_equal(by_file, unseen.predict(model, read)["p(yes)"])
    assert close(unseen.evaluate(model).sites, unseen.evaluate(model, path).sites)


def close(ours: Sequence[Site], theirs: Sequence[Site]) -> bool:
    """Whether sites are the same but for the order in which a kernel adds float32 numbers."""
    eps = 64 * torch.finfo(torch.float32).eps
    return all(
        (a.name, a.role, a.examples) == (b.name, b.role, b.examples)
        and {n: own.value for n, own in a.metrics.items()}
        == pytest.approx({n: own.value for n, own in b.metrics.items()}, rel=eps)
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("kind", ["bool", "boolean", "object"])
def test_true_and_false_are_one_flag_in_files_and_frames(kind: str, tmp_path: Path) -> None:
    frame = rows()
    frame["flag"] = (frame.age > 60).astype(kind)
    path = written(frame, tmp_path)
    by_file, by_frame = trained(path, tmp_path / "a"), trained(frame, tmp_path / "b")
    for model in (by_file, by_frame):
        answers = [unseen.predict(model, data) for data in (path, frame)]
        assert all(found["error"].isna().all() for found in answers)
        np.testing.assert_array_equal(*(found["p(yes)"] for found in answers))


def test_a_gap_among_nullable_flags_is_a_gap(tmp_path: Path) -> None:
    frame = rows()
    frame["flag"] = (frame.age > 60).astype("boolean").mask(np.arange(len(frame)) % 5 == 0)
    model = trained(frame, tmp_path)
    assert unseen.predict(model, frame)["error"].isna().all()


def test_true_and_false_as_labels_are_those_of_the_file(tmp_path: Path) -> None:
    frame = rows()
    frame["died"] = frame.died == "yes"
    path = written(frame, tmp_path)
    model = trained(path, tmp_path)
    assert model.classes == ("False", "True")
    assert unseen.evaluate(model, frame).sites == unseen.evaluate(model, path).sites


def test_numbers_in_an_object_column_are_numbers(tmp_path: Path) -> None:
    frame = rows()
    frame["age"] = frame.age.astype(object)
    model = trained(frame, tmp_path)
    assert "age" in model.inputs.features


def test_a_word_at_one_site_does_not_turn_the_numbers_of_others_into_categories(
    tmp_path: Path,
) -> None:
    frame = rows()
    frame["age"] = frame.age.astype(object)
    frame.loc[frame.index[frame.site == "south"][0], "age"] = "unknown"
    with pytest.raises(UnseenError, match="words in others, such as 'unknown'"):
        trained(frame, tmp_path)


def test_a_frame_as_x_keeps_its_columns(tmp_path: Path) -> None:
    frame = rows()
    x = frame[["age", "dose", "drug"]].set_axis(range(5, 125))
    recipe = unseen.Study(dataset=(x, frame.died, frame.site), methods=["glm"])
    model = unseen.train(recipe, tmp_path / "model")
    assert model.inputs.features == ("age", "dose", "drug=a", "drug=b")


def test_answers_that_pandas_takes_for_gaps_are_answers(tmp_path: Path) -> None:
    frame = rows().replace({"died": {"no": "None", "yes": "sick"}})
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False, quoting=csv.QUOTE_ALL)
    answers = unseen.predict(trained(path, tmp_path), frame)
    assert {*answers["prediction"]} == {"None", "sick"}


def test_labels_that_are_not_finite_are_faults(tmp_path: Path) -> None:
    frame = rows().drop(columns="died").assign(died=lambda f: f.age * 1.5 + f.dose)
    model = trained(frame, tmp_path)
    frame.loc[4, "died"] = np.inf
    (fault,) = unseen.evaluate(model, frame).faults
    assert "is not a finite number" in str(fault)


def test_sites_that_are_equal_numbers_are_one(tmp_path: Path) -> None:
    frame = rows().replace({"site": {"east": "1", "north": "2", "south": "3"}})
    model = trained(written(frame, tmp_path), tmp_path)
    measured = unseen.evaluate(model, frame.astype({"site": float}))
    assert [site.name for site in measured.sites] == ["1", "2", "3"]
    assert measured.sites == unseen.evaluate(model, frame).sites


def test_a_carriage_return_ends_no_row(tmp_path: Path) -> None:
    frame = rows().assign(note="a\rb")
    model = trained(frame.drop(columns="note"), tmp_path)
    plain = unseen.predict(model, frame.drop(columns="note"))
    pandas.testing.assert_frame_equal(unseen.predict(model, frame), plain)
    assert not unseen.evaluate(model, frame).faults


def test_names_of_columns_are_read_without_the_blanks_around_them(tmp_path: Path) -> None:
    frame = rows().rename(columns={"age": "age ", "died": " died"})
    model = trained(frame, tmp_path)
    assert unseen.predict(model, frame)["error"].isna().all()


def test_a_frame_has_decimal_points_whatever_the_training_file_had(tmp_path: Path) -> None:
    frame = rows().assign(dose=lambda f: (f.dose + 2).round(3))
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False, sep=";", decimal=",")
    model = trained(path, tmp_path, decimal=",")
    some = frame.iloc[:3].assign(dose=[1.234, 2.345, 3.456])
    assert unseen.predict(model, some)["error"].isna().all()


def test_several_frames_are_refused_with_what_is_taken(tmp_path: Path) -> None:
    frame = rows()
    model = trained(frame, tmp_path)
    with pytest.raises(UnseenError, match="a file or a folder, or several of the last two"):
        unseen.predict(model, [frame, frame])


def test_rows_of_sites_that_are_not_asked_for_are_no_faults(tmp_path: Path) -> None:
    frame = rows()
    model = trained(frame, tmp_path)
    frame.loc[frame.index[frame.site == "north"][0], "died"] = "perhaps"
    assert len(unseen.evaluate(model, frame).faults) == 1
    assert not unseen.evaluate(model, frame, domains=["east"]).faults


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_frames_of_other_libraries_are_those_of_pandas(library: str, tmp_path: Path) -> None:
    module = pytest.importorskip(library)
    plain = rows()
    make = module.DataFrame if library == "polars" else module.table
    frame = make(plain.to_dict("list"))
    model = trained(frame, tmp_path / "a")
    usual = trained(plain, tmp_path / "b")
    assert model.inputs.features == usual.inputs.features
    theirs = unseen.predict(usual, plain)
    pandas.testing.assert_frame_equal(unseen.predict(model, frame), theirs)
    assert unseen.evaluate(model, frame).sites == unseen.evaluate(usual, plain).sites
    arrays = (make({"age": plain.age, "drug": plain.drug}), plain.died, plain.site)
    of_arrays = unseen.train(unseen.Study(dataset=arrays, methods=["glm"]), tmp_path / "c")
    assert of_arrays.inputs.features == ("age", "drug=a", "drug=b")


def test_faults_name_the_row_of_the_frame(tmp_path: Path) -> None:
    frame = rows().assign(note="two\nlines")
    model = trained(frame.drop(columns="note"), tmp_path)
    frame.loc[frame.index[7], "died"] = "perhaps"
    (fault,) = unseen.evaluate(model, frame).faults
    assert str(fault).startswith("row 7: its label died = 'perhaps'")


def test_an_estimator_takes_words_as_scikit_learn_does_behind_an_encoder() -> None:
    frame = rows()
    frame.loc[frame.index[::11], "drug"] = None
    x, numbers = frame[["age", "dose", "drug"]], ["age", "dose"]
    estimator = unseen.FederatedClassifier("glm").fit(x, frame.died, groups=frame.site)
    encoder = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), ["drug"]))
    theirs = make_pipeline(encoder, LogisticRegression(C=1, tol=1e-10)).fit(x, frame.died)
    for own in (
        x,
        x.astype({"drug": "category"}),
        x.assign(drug=x.drug.map({"a": " a", "b": "b"})),
    ):
        found = estimator.predict_proba(own)
        np.testing.assert_allclose(found, theirs.predict_proba(x), atol=1e-5)
    assert np.isfinite(estimator.predict_proba(x.assign(drug="new"))).all()
    other = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(other.predict(x), estimator.predict(x))
    with pytest.raises(UnseenError, match="in place of an array"):
        unseen.FederatedClassifier().fit(x.to_numpy(), frame.died)


def test_an_estimator_takes_words_of_polars() -> None:
    polars = pytest.importorskip("polars")
    frame = rows()
    x = frame[["age", "drug"]]
    by_pandas = unseen.FederatedClassifier().fit(x, frame.died, groups=frame.site)
    own = polars.DataFrame(x.to_dict("list"))
    by_polars = unseen.FederatedClassifier().fit(own, frame.died, groups=frame.site)
    np.testing.assert_array_equal(by_polars.predict_proba(own), by_pandas.predict_proba(x))


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("offset", [0.0, 1e9, 1e12])
def test_figures_of_numbers_far_from_0_are_those_of_the_file(
    offset: float, form: str, tmp_path: Path
) -> None:
    frame = rows().drop(columns=["died", "drug"])
    frame["y"] = 2 * frame.age + 3 * frame.dose + offset
    data: Any = frame
    if form == "csv":
        data = written(frame, tmp_path)
    elif form == "parquet":
        data = tmp_path / "rows.parquet"
        data.write_bytes(parquet_of(arrow_of(frame)))
    options = {"label": "y", "task": "regression"}
    model = trained(data, tmp_path, **options) if form != "frame" else unseen.train(
        unseen.Study(dataset=frame, domain="site", methods=["glm"], **options), tmp_path / "m"
    )  # fmt: skip
    answers = unseen.predict(model, data)["prediction"].to_numpy(float)
    right = np.sqrt(np.mean((answers - frame.y) ** 2))
    measured = unseen.evaluate(model, data, metrics=["rmse", "r2"])
    squares = [site.metrics["rmse"].value ** 2 * site.examples for site in measured.sites]
    assert np.sqrt(sum(squares) / len(frame)) == pytest.approx(right, rel=1e-3)
    assert right < 1


@pytest.mark.parametrize("role", ["text", "drop"])
def test_a_cell_of_any_length_is_read(role: str, tmp_path: Path) -> None:
    frame = rows().assign(note=["fine, all well"] * 60 + ["not well"] * 60)
    frame.loc[frame.index[7], "note"] = "w " * 100_000
    path = written(frame, tmp_path)
    model = trained(path, tmp_path, **{role: ["note"]})
    assert unseen.predict(model, path)["error"].isna().all()
    assert unseen.predict(model, frame)["error"].isna().all()
    assert not unseen.evaluate(model, path).faults
