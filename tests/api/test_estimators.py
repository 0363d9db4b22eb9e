"""scikit-learn's own checks of the estimators, and their fit against the pooled one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from unseen import FederatedClassifier, FederatedRegressor, UnseenError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * [1, 5, 0.1, 2] + [0, 3, 1, -1]
SITES = np.repeat(["a", "b", "c"], 40)
LOGIT = X @ [1.0, 0.2, 3.0, -0.5]
Y = np.where(LOGIT + RNG.normal(size=120) > np.median(LOGIT), "ill", "well")


@pytest.mark.parametrize("estimator", [FederatedClassifier(), FederatedRegressor()])
def test_scikit_learns_checks(estimator: FederatedClassifier) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the array API is not set up here
        results = check_estimator(estimator, on_fail=None)
    assert not [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert sum(r["status"] == "passed" for r in results) > 40


def test_glm_is_the_pooled_logistic_regression() -> None:
    model = FederatedClassifier(method="glm").fit(X, Y, groups=SITES)
    scaled = (X - X.mean(0)) / X.std(0)
    pooled = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(scaled, Y)
    np.testing.assert_allclose(model.predict_proba(X), pooled.predict_proba(scaled), atol=1e-5)
    assert model.sites_.tolist() == ["a", "b", "c"] and model.classes_.tolist() == ["ill", "well"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_numbers_are_the_pooled_ridge() -> None:
    y = 100 + 3 * X[:, 0] - X[:, 1]
    model = FederatedRegressor(method="glm").fit(X, y, groups=SITES)
    scaled = (X - X.mean(0)) / X.std(0)
    pooled = Ridge(alpha=1.0).fit(scaled, (y - y.mean()) / y.std())
    expected = pooled.predict(scaled) * y.std() + y.mean()
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-3)


def test_sites_are_left_out_as_scikit_learn_does() -> None:
    cv = LeaveOneGroupOut()
    cv = LeaveOneGroupOut()
    scores = cross_val_score(FederatedClassifier(), X, Y, groups=SITES, cv=cv)
    assert len(scores) == 3 and scores.min() > 0.6


def test_rounds_of_a_network_learn_and_a_missing_cell_is_no_fault() -> None:
    gaps = X.copy()
    gaps[::7, 2] = np.nan
    training = {"optimiser": "sgd(lr=0.1)"}
    model = FederatedClassifier("fedavg", rounds=10, training=training).fit(gaps, Y, groups=SITES)
    assert model.score(gaps, Y) > 0.7
    assert model.get_params()["method"] == "fedavg"


@pytest.mark.parametrize("lacking", [None, np.nan, float("nan"), np.datetime64("NaT")])
def test_a_row_without_a_site_is_refused(lacking: object) -> None:
    groups = np.array([*SITES[:80], *[lacking] * 40], dtype=object)
    for sites in (groups, groups.tolist()):
        with pytest.raises(ValueError, match="no site for 40 of 120 rows; the first is row 80"):
            FederatedClassifier().fit(X, Y, groups=sites)


def test_a_missing_number_of_a_site_and_pandas_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="no site for 40 of 120 rows"):
        FederatedClassifier().fit(X, Y, groups=np.repeat([1.0, 2.0, np.nan], 40))
    pandas = pytest.importorskip("pandas", reason="the extra pandas is not installed")
    for kind in ("string", "category", "object"):
        groups = pandas.Series([*SITES[:80], *[None] * 40], dtype=kind)
        with pytest.raises(ValueError, match="no site for 40 of 120 rows"):
            FederatedClassifier().fit(X, Y, groups=groups)


def test_a_site_of_one_row_is_warned_of() -> None:
    sites = ["alone", *SITES[1:]]
    with pytest.warns(UserWarning, match="sites of one row: 'alone'. A study refuses such sites"):
        FederatedClassifier().fit(X, Y, groups=sites)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedClassifier().fit(X, Y, groups=SITES)
        FederatedRegressor().fit(X[:1], LOGIT[:1])


def test_labels_that_cannot_be_written_to_are_no_fault() -> None:
    """As pandas 3 hands them out."""
    y = LOGIT.copy()
    y.flags.writeable = False
    torch.set_warn_always(True)  # else it warns once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedRegressor().fit(X, y, groups=SITES)
    torch.set_warn_always(False)


def test_a_fitted_model_is_kept_whatever_is_set_for_the_next_fit() -> None:
    model = FederatedClassifier(method="glm", random_state=np.random.default_rng(0))
    model.fit(X, Y, groups=SITES)
    expected = model.predict_proba(X)
    model.set_params(method="fedavg", rounds=3)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)


def test_an_estimator_does_not_wait_for_what_chooses_and_serves() -> None:
    script = (
        "import sys; from unseen import FederatedClassifier; "
        "heavy = {'unseen.studies.choice', 'unseen.serving', 'matplotlib'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


def test_logarithms_of_probabilities_are_those_of_probabilities() -> None:
    model = FederatedClassifier().fit(X, Y, groups=SITES)
    np.testing.assert_array_equal(model.predict_log_proba(X), np.log(model.predict_proba(X)))


def test_no_seed_is_the_seed_0_and_a_pickle_is_as_large_as_the_model() -> None:
    fitted = [
        FederatedClassifier("fedavg", rounds=2, random_state=seed).fit(X, Y, groups=SITES)
        for seed in (None, 0)
    ]
    first, second = (model.predict_proba(X) for model in fitted)
    np.testing.assert_array_equal(first, second)
    numbers = sum(entry.numel() for entry in fitted[0]._inbox.values())
    assert len(pickle.dumps(fitted[0])) < 8 * numbers + 4_000


def test_what_an_estimator_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(UnseenError, match="rounds must be a whole number; found 'until-flat'"):
        FederatedClassifier("fedavg", rounds="until-flat").fit(X, Y, groups=SITES)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sample_weight"):
        FederatedClassifier().fit(X, Y, groups=SITES, sample_weight=np.ones(120))  # type: ignore[call-arg]
