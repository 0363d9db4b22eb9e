"""Estimators refuse and warn of what studies do, in the same words."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from torch import nn

from unseen import FederatedClassifier, FederatedRegressor, Study
from unseen.errors import UnseenError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4))
SITES = RNG.choice(list("abc"), 300)
WELL = (X[:, 0] > 0).astype(int)


class Normed(nn.Sequential):
    """A linear model of standardised batches."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], outputs))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "training",
    [{"batch_size": 512, "drop_last": True}, {"augment": "flip"}, {"loss": "cox"}],
    ids=lambda training: next(iter(training)),
)
def test_settings_that_a_study_refuses_are_refused_in_its_words(training: dict[str, Any]) -> None:
    study = Study(
        dataset=(X, WELL, SITES), methods=["fedavg"], training=training, seeds=1, holdout="none",
        validation=0.001,  # a row of each site, which an estimator trains on
    )  # fmt: skip
    with pytest.raises(UnseenError) as expected:
        study.run()
    with pytest.raises(UnseenError) as caught:
        FederatedClassifier("fedavg", training=training).fit(X, WELL, groups=SITES)

    def words(error: UnseenError) -> list[str]:
        return [word for word in str(error).split() if not word.isdecimal()]

    assert [word.replace("arrays", "table") for word in words(caught.value)] == words(
        expected.value
    )


def test_a_batch_that_no_site_fills_trains_nothing() -> None:
    training = {"batch_size": 512, "drop_last": True}
    with pytest.raises(UnseenError, match=r"batch_size = 512 is larger .*drop_last = false"):
        FederatedClassifier("fedavg", training=training).fit(X, WELL, groups=SITES)
    FederatedClassifier("glm", training=training).fit(X, WELL, groups=SITES)  # it takes no steps


@pytest.mark.parametrize("name", ["fedsr", "fedadg", "fpl"])
def test_numbers_are_refused_where_a_method_needs_classes(name: str) -> None:
    with pytest.raises(UnseenError, match=f"^{name} needs classes"):
        FederatedRegressor(name, rounds=2).fit(X, X[:, 0], groups=SITES)


@pytest.mark.parametrize("name", ["jigen", "randconv", "fedavg+jigen"])
def test_columns_are_refused_where_a_method_needs_images(name: str) -> None:
    with pytest.raises(UnseenError, match="needs images"):
        FederatedClassifier(name, rounds=2).fit(X, WELL, groups=SITES)


def test_a_batch_of_one_is_refused_where_the_model_has_batchnorm() -> None:
    model = FederatedClassifier("fedavg", model=f"{__name__}:Normed")
    with pytest.raises(UnseenError, match=r"33 training examples.* a batch of one remains"):
        model.fit(X[:33], WELL[:33])
    model.fit(X[:34], WELL[:34])


def test_a_fitted_model_is_read_back_without_checks_of_its_data() -> None:
    training = {"batch_size": 64, "drop_last": True}
    model = FederatedClassifier("fedavg", rounds=2, training=training).fit(X, WELL, groups=SITES)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_a_column_of_a_large_offset_is_named(kind: str) -> None:
    late = X.copy()
    late[:, 2] = 1.7e9 + RNG.uniform(0, 300, 300)
    table: Any = late
    if kind == "frame":
        pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")
        table = pandas.DataFrame(late, columns=["age", "dose", "arrived", "weight"])
    name = {"array": "x2", "frame": "arrived"}[kind]
    with pytest.warns(UserWarning, match=rf"^'{name}' counts as constant.*subtract"):
        FederatedClassifier("glm").fit(table, WELL, groups=SITES)


def test_columns_of_an_ordinary_spread_are_not_spoken_of() -> None:
    table = X.copy()
    table[:, 1] = 2020 + RNG.integers(0, 3, 300)
    table[:, 2], table[:, 3] = 0, np.nan  # what is 0 everywhere is 0 for the network too
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedClassifier("glm").fit(table, WELL, groups=SITES)
        FederatedRegressor("glm").fit(table[:1], X[:1, 0])  # one row has no spread


def test_rare_classes_are_repeated_where_the_training_says_so() -> None:
    """Of inputs that say nothing, the probability is the class's share of what is trained on."""
    y = (np.arange(300) % 10 == 0).astype(int)
    even = {"oversample": True}
    for training, share in ((None, 0.1), (even, 0.5)):
        model = FederatedClassifier("glm", training=training).fit(0.01 * X, y, groups=SITES)
        assert model.predict_proba(np.zeros((1, 4)))[0, 1] == pytest.approx(share, abs=0.05)
